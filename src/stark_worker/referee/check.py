"""Checks a candidate's results against the reference; a wrong one ends the trial."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch

from stark_worker.correctness.compare import error_share, mismatch, same_bits, tolerance
from stark_worker.correctness.inputs import RANDOM_SIGNS
from stark_worker.correctness.nested import Layout, layout, structure
from stark_worker.correctness.reference import OWN_DISTRIBUTION, Case, Reference
from stark_worker.correctness.rounding import find_difference
from stark_worker.device.arena import Arena, Job, TensorSlot, nbytes
from stark_worker.protocol.errors import Failure, Outcome
from stark_worker.protocol.logs import cut
from stark_worker.protocol.request import Score
from stark_worker.referee.labels import precision_of

Description = dict[str, Any]  # of one call's results, by the candidate's process


class OutputChecker:
    """Compares results with the reference: values, types and layouts, and unchanged inputs."""

    def __init__(self, job: Job, reference: Reference) -> None:
        self._job, self._reference = job, reference
        self.weights_by_seed = False  # not copied, so they may differ from the reference's
        self.precision: str | None = None  # inferred from the error on random signs where there are any

    def check_description(self, description: Description) -> None:
        """Refuse results of a wrong type or structure. This helps the log: uncopied outputs are still poisoned."""
        if not isinstance(plain := description.get("plain"), bool):
            raise Failure(Outcome.REJECTED, "The results were not described.", "forged_message")
        if not plain:
            raise self._wrong("The outputs have to be plain torch tensors.")
        expected = [f"{slot.dtype}{list(slot.shape)}" for slot in self._job.outputs]
        if description.get("kinds") != expected:
            raise self._wrong(f"The outputs are {description.get('kinds')}, expected {expected}.")
        if structure(str(description.get("structure"))) != self._reference.structure:
            raise self._wrong("The outputs are nested differently from the reference's.")
        if self._reference.score is Score.VERIFIED:
            self._check_layouts(description.get("layouts"))

    def _check_layouts(self, reported: Any) -> None:
        """Require results that are dense, or laid out as the reference's, and share memory only if the reference's do.

        Otherwise later code would have to finish the work, or would change memory that it should not.
        """
        try:
            layouts = [Layout(tuple(one["stride"]), bool(one["shares"])) for one in reported]
            pairs = list(zip(self._job.outputs, layouts, self._reference.layouts, strict=True))
        except (TypeError, KeyError, ValueError):
            log = "The layouts of the results were not reported."
            raise Failure(Outcome.REJECTED, log, "forged_message") from None
        for number, (slot, mine, expected) in enumerate(pairs):
            dense = layout(torch.empty(slot.shape, device="meta"), []).stride
            if mine.stride not in (dense, expected.stride):
                raise self._wrong(
                    f"Output {number} has the strides {list(mine.stride)}, expected {list(expected.stride)} as the"
                    f" reference's, or {list(dense)}: return it contiguous."
                )
            if mine.shares and not expected.shares:
                raise self._wrong(f"Output {number} shares its memory with an input; the reference's does not.")

    def compare(self, case: Case, outputs: list[torch.Tensor]) -> None:
        """Refuse outputs that differ from the expected ones.

        Expected outputs in the task's own precision may be off themselves, in short formats by more than is allowed. So
        before a candidate is refused, they are computed in double precision.
        """
        wrong = self._difference(case, outputs)
        if wrong and not case.exact and (sharper := self._reference.answer(case, exact=True)):
            wrong = self._difference(sharper, outputs)
        if wrong:
            raise self._wrong(wrong)
        shows_more = case.name == RANDOM_SIGNS or (case.name == OWN_DISTRIBUTION and self.precision is None)
        if shows_more and case.exact and self._reference.exact:
            self.precision = self._precision(case, outputs)

    def _difference(self, case: Case, outputs: list[torch.Tensor]) -> str | None:
        for number, mine in enumerate(outputs):
            if found := find_difference(self._reference, case, number, mine):
                return f"Output {number} differs ({case.name}):\n{found}"
        return None

    def _precision(self, case: Case, outputs: list[torch.Tensor]) -> str:
        def share_of(given: list[torch.Tensor]) -> float:
            return max(map(error_share, given, case.expected))

        reference = self._reference
        return precision_of(
            share_of(outputs),
            lambda: share_of(reference.run(reference.model, case.inputs, case.seed)),
            reference.precision,
        )

    def compare_inputs(self, case: Case, inputs: list[torch.Tensor]) -> None:
        """Refuse changed inputs. If the reference changes one too, it has to get the same values."""
        for number, (mine, before) in enumerate(zip(inputs, case.inputs, strict=True)):
            if number in case.written:
                self._compare_written(number, mine, case.written[number])
            elif not same_bits(mine, before):
                log = f"forward() changed its input {number}, which the reference leaves as it is."
                raise Failure(Outcome.REJECTED, log, "changed_inputs")

    def _compare_written(self, number: int, mine: torch.Tensor, expected: torch.Tensor) -> None:
        """Refuse other values than the reference's. KernelBench compares outputs alone."""
        reference = self._reference
        if reference.score is Score.VERIFIED:
            allowed = tolerance(expected, 0.0, reference.precision, reference.score, reference.rules)
            if found := mismatch(mine, expected, allowed):
                raise self._wrong(f"Input {number}, which the reference changes in place, differs:\n{found}")

    def _wrong(self, log: str) -> Failure:
        if self.weights_by_seed and self._job.weights:
            log += (
                "\nThe candidate's state_dict has other names or shapes than the reference's, so weights agree only if"
                " both constructors draw them in the same order."
            )
        return Failure(Outcome.WRONG_RESULT, cut(log))  # parts of it come from the candidate's process


def locate(description: Description, job: Job, arena: Arena) -> list[torch.Tensor]:
    """Return views of the results where the candidate's process says that they lie: in their slots or in the pool."""
    offsets, layouts = description.get("offsets"), description.get("layouts")
    if not isinstance(offsets, list) or not isinstance(layouts, list) or len(offsets) != len(job.outputs):
        raise Failure(Outcome.REJECTED, "The places of the results were not reported.", "forged_message")
    reported = [*layouts, *[None] * len(offsets)]  # a wrong number of them is refused with the description
    slots = [_bounded(*each, job) for each in zip(job.outputs, offsets, reported, strict=False)]
    views = arena.views(slots)
    ranges = sorted((slot.offset, slot.offset + nbytes(view)) for slot, view in zip(slots, views, strict=True))
    if any(end > begin for (_, end), (begin, _) in itertools.pairwise(ranges)):
        raise Failure(Outcome.REJECTED, "Results lie on top of each other.", "forged_message")
    return views


def _bounded(slot: TensorSlot, offset: Any, reported: Any, job: Job) -> TensorSlot:
    """Return the place of a result. Its layout is the slot's or the usual dense one; no other is believed."""
    if offset == slot.offset:
        return slot
    empty = torch.empty(slot.shape, dtype=getattr(torch, slot.dtype), device="meta")
    inside = type(offset) is int and job.pool_offset <= offset <= job.size - nbytes(empty)
    if not inside or offset % empty.element_size():
        log = f"A result cannot lie at {str(offset)[:40]}: it is outside the memory of results."
        raise Failure(Outcome.REJECTED, log, "forged_message")
    usual = isinstance(reported, dict) and reported.get("stride") == list(layout(empty, []).stride)
    return replace(slot, offset=offset, stride=tuple(empty.stride()) if usual else slot.stride)
