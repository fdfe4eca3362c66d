"""Finds tasks that test nothing: answers that compute nothing pass their check.

An answer is accepted if it passes every case that a candidate would get, by the same comparison. This is tested and not
read off a list, because it depends on the score.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from stark_worker.correctness.compare import is_inexact, pieces
from stark_worker.correctness.reference import Case, Reference
from stark_worker.correctness.rounding import find_difference

Answer = Callable[[Case], list[torch.Tensor] | None]


def degenerate_reasons(reference: Reference) -> list[str]:
    """Return why the task is degenerate, one sentence for each reason; an empty list if it is not.

    Only one case is in memory at a time: one may nearly fill it.
    """
    remaining, repeats = _trivial_answers(reference), None
    for case in reference.cases():
        if repeats is None:
            repeats = _is_accepted(reference, case, reference.run(reference.model, case.inputs, case.seed))
        remaining = [(why, answer) for why, answer in remaining if _is_accepted(reference, case, answer(case))]
        del case  # before the next one is drawn
        if not remaining:
            break
    reasons = [why for why, _ in remaining]
    if not repeats:
        reasons.append("The reference's own answer, computed again for the same inputs, is refused.")
    return reasons


def _trivial_answers(reference: Reference) -> list[tuple[str, Answer]]:
    other = _answer_for_another_input(reference)
    answers: list[tuple[str, Answer]] = [
        (
            "Zeros are accepted as the answer.",
            lambda case: [_constant_answer(0, *pair) for pair in zip(case.expected, reference.outputs, strict=True)],
        ),
        ("The mean of the output is accepted in place of every value.", lambda case: _mean_answer(case, reference)),
        ("The answer for another input is accepted, so the output hardly depends on the input.", lambda _: other),
    ]
    for number in range(len(reference.first.inputs)):
        answers.append((f"Input {number} itself is accepted as the answer.", _return_input(number)))
    return answers


def _answer_for_another_input(reference: Reference) -> list[torch.Tensor]:
    """Return the answer to inputs drawn separately, in the type that a candidate returns."""
    other = reference.draw()
    assert other is not None  # only changed inputs can lead to none
    return [mine.to(kind.dtype) for mine, kind in zip(other.expected, reference.outputs, strict=True)]


def _mean_answer(case: Case, reference: Reference) -> list[torch.Tensor] | None:
    if all(output.numel() == 1 for output in case.expected):  # a single value is its own mean
        return None
    pairs = zip(case.expected, reference.outputs, strict=True)
    return [_constant_answer(_mean_of(output), output, kind) for output, kind in pairs]


def _mean_of(output: torch.Tensor) -> complex:
    wide = torch.complex128 if output.is_complex() else torch.float64
    total = sum(
        (piece.sum(dtype=wide).item() for _, piece in pieces(output)), 0.0
    )  # a sum over all would widen all of it at once
    mean = total / max(output.numel(), 1)
    return mean if is_inexact(output) else round(float(mean))


def _constant_answer(value: complex, output: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
    """Return one value expanded to the output's shape, which takes no memory."""
    return torch.full((), value, dtype=kind.dtype, device=output.device).expand(output.shape)


def _return_input(number: int) -> Answer:
    def answer(case: Case) -> list[torch.Tensor] | None:
        given = case.inputs[number]
        fits = all(
            output.shape == given.shape and output.is_complex() == given.is_complex() for output in case.expected
        )
        return [given] * len(case.expected) if fits else None

    return answer


def _is_accepted(reference: Reference, case: Case, outputs: list[torch.Tensor] | None) -> bool:
    """True if the outputs pass, rounded to the type that a candidate has to return."""
    if outputs is None:
        return False
    rounded = [output.to(kind.dtype) for output, kind in zip(outputs, reference.outputs, strict=True)]
    return not any(find_difference(reference, case, number, mine) for number, mine in enumerate(rounded))
