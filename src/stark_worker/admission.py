"""Whether a task tests anything: before money is spent on it, answers that compute nothing are put to its check.

An answer counts as accepted when it passes every case a candidate would be tried on, by the same comparison. A task
is admitted by this test and not by a list, for what is degenerate depends on the score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stark_worker.compare import as_real, mismatch
from stark_worker.reference import Case, Reference

Answer = Callable[[Case], list[torch.Tensor] | None]


def admit(reference: Reference) -> list[str]:
    """Why the task is degenerate, one sentence for each reason; none when it is admitted."""
    cases = list(reference.cases())
    reasons = [sentence for sentence, answer in _idle_answers(reference) if _accepted(reference, cases, answer)]
    if not _accepted(reference, cases[:1], lambda case: reference.run(reference.model, case.inputs, case.seed)):
        reasons.append("The reference's own answer, computed again for the same inputs, is refused.")
    return reasons


def _idle_answers(reference: Reference) -> list[tuple[str, Answer]]:
    other = reference.draw("another input")
    assert other is not None  # only a change of the inputs can lead to none
    answers: list[tuple[str, Answer]] = [
        ("Zeros are accepted as the answer.", lambda case: [torch.zeros_like(output) for output in case.expected]),
        ("The mean of the output is accepted in place of every value.", _mean),
        (
            "The answer for another input is accepted, so the output hardly depends on the input.",
            lambda _: other.expected,
        ),
    ]
    for number in range(len(reference.first.inputs)):
        answers.append((f"Input {number} itself is accepted as the answer.", _passed_through(number)))
    return answers


def _mean(case: Case) -> list[torch.Tensor] | None:
    single = all(output.numel() == 1 for output in case.expected)  # its own mean, by nature
    return None if single else [_filled_with_mean(output) for output in case.expected]


def _filled_with_mean(output: torch.Tensor) -> torch.Tensor:
    wide = torch.complex128 if output.is_complex() else torch.float64
    mean = output.mean(dtype=wide) if output.numel() else torch.zeros((), dtype=wide)
    return torch.full_like(
        output, mean.item() if output.is_complex() or output.is_floating_point() else round(float(mean))
    )


def _passed_through(number: int) -> Answer:
    def answer(case: Case) -> list[torch.Tensor] | None:
        given = case.inputs[number]
        fits = all(
            output.shape == given.shape and output.is_complex() == given.is_complex() for output in case.expected
        )
        return [given] * len(case.expected) if fits else None

    return answer


def _accepted(reference: Reference, cases: Sequence[Case], answer: Answer) -> bool:
    return all(_passes(reference, case, answer(case)) for case in cases)


def _passes(reference: Reference, case: Case, outputs: list[torch.Tensor] | None) -> bool:
    """Outputs are rounded to the type a candidate has to return before they are compared."""
    if outputs is None:
        return False
    kinds = [output.dtype for output in reference.outputs]
    rounded = [output.to(kind) for output, kind in zip(outputs, kinds, strict=True)]
    triples = zip(rounded, case.expected, case.allowed, strict=True)
    return not any(mismatch(as_real(mine), as_real(expected), allowed) for mine, expected, allowed in triples)
