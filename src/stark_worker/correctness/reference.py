"""The referee's copy of the task: draws inputs and computes the expected outputs.

Models stay in train mode, as in KernelBench. Both sides seed the generator equally before every call, so dropout draws
the same mask. Batch norm normalises by the batch: its running statistics start equal and reach no output. A task whose
outputs depend on earlier calls cannot be judged; ``degenerate`` reports it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from stark_worker.correctness.compare import (
    DEFAULT_RULES,
    Rules,
    Tolerance,
    all_finite,
    finite_wherever,
    is_inexact,
    tolerance,
)
from stark_worker.correctness.double_precision import DoublePrecision, is_telling
from stark_worker.correctness.input_source import InputSource, Resize
from stark_worker.correctness.inputs import (
    FAR,
    FEW,
    KERNELBENCH_SEED,
    OTHER_DISTRIBUTIONS,
    Change,
    changes,
    choose_timed,
    few_changes,
    kernelbench_seeds,
    rescaling,
    secret_seed,
)
from stark_worker.correctness.model import forward, import_file, is_out_of_memory, run_task_code, unpack_result
from stark_worker.correctness.nested import Layout, is_new, layout, pack, tensors_in, unpack
from stark_worker.correctness.randomness import depends_on_seed
from stark_worker.correctness.weights import construct_model, seed_generators
from stark_worker.device import cuda
from stark_worker.device.arena import nbytes
from stark_worker.protocol.errors import TaskFault
from stark_worker.protocol.request import Precision, Score

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
OWN_DISTRIBUTION = "the task's own distribution"
HUGE_CALL_BYTES = 2**31  # inputs and outputs; from here on only some timed calls are compared
Tensors = list[torch.Tensor]
NOT_EXACT = "The reference itself is not exact enough to tell."


@dataclass(frozen=True)
class Case:
    """New inputs, the expected outputs, and the tolerance of each output.

    The inputs come from ``input_seed``. The candidate never gets it: on a GPU a call arrives before its inputs. For the
    call the generators are set to ``seed``.
    """

    name: str
    input_seed: int
    inputs: list[torch.Tensor]
    expected: list[torch.Tensor]
    allowed: tuple[Tolerance, ...] = ()
    exact: bool = False  # expected outputs are in double precision where possible
    change: Change | None = None  # of what the task draws; the reference may be undefined there
    written: dict[int, torch.Tensor] = field(default_factory=dict)  # inputs that the reference changed, by number
    seed: int = field(default_factory=secret_seed)


class Reference:
    """The model of a task under one random seed; for the score ``kernelbench``, under its public seed."""

    def __init__(
        self,
        source: str,
        precision: Precision,
        folder: Path,
        device: str | torch.device = "cpu",
        score: Score = Score.VERIFIED,
        rules: Rules = DEFAULT_RULES,
        unusable: Mapping[str, str] | None = None,
    ) -> None:
        self.precision, self.score, self.rules = precision, score, rules
        self.device, self.dtype = torch.device(device), DTYPES[precision]
        self._is_kernelbench = score is Score.KERNELBENCH
        self.construct_seed = KERNELBENCH_SEED if self._is_kernelbench else secret_seed()
        self.nontrivial = not self._is_kernelbench  # an argument of ``construct_model`` on both sides
        path = folder / "task.py"
        path.write_text(source, encoding="utf-8")
        self._module = run_task_code("The file", lambda: import_file("task", path))
        self._source = InputSource(lambda: self._module.get_inputs(), self.device, self.dtype)
        self.construct_tensors: list[torch.Tensor] = []
        self.construct = self._construct_arguments()
        self.own_errors: list[float] = []  # on the task's own distribution
        self.outputs: list[torch.Tensor] = []  # on the device "meta": kinds without data
        self.structure = ""
        self.layouts: list[Layout] = []  # of the outputs
        self.writes_output: list[bool] = []  # False for outputs that existed before the call
        self.is_random = False  # True if outputs depend on the seed of the call
        self.left_out = dict(unusable or {})  # changes of inputs on which the reference fails, and the reasons
        self.first = self._start()
        if self.nontrivial and not all(map(all_finite, self.first.expected)):
            self.first = self._start_over(self.first)
        self._is_finite, self._has_tried_few = all(map(all_finite, self.first.expected)), False
        if not self._is_kernelbench:
            self._source.find_fixed(self.first.inputs)

    @property
    def arguments(self) -> str:
        """The arguments of a call, packed; the tensors are apart."""
        return self._source.arguments

    @property
    def exact(self) -> bool:
        """True if double precision has worked so far."""
        return self._double.works

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """Weights to copy into a candidate. KernelBench copies none: weights agree by seed and order alone."""
        return {} if self._is_kernelbench else dict(self.model.state_dict())

    def draw_first_case(self) -> None:
        """Draw a case for the next candidate alone, unless one is ready."""
        if not self.first.expected:
            self.first = self._own_case(seed=kernelbench_seeds()[0] if self._is_kernelbench else None)

    def with_input_sizes(self, resize: Resize) -> Reference:
        """Return the same model on inputs of other sizes; raise ``TaskFault`` if it does not take them."""
        other = copy.copy(self)
        other._source, other.outputs, other.layouts = self._source.with_sizes(resize), [], []
        other._double = copy.copy(self._double)
        other.first = other._own_case()
        if not all(map(all_finite, other.first.expected)):
            raise TaskFault("forward() is not finite on inputs of another size.")
        return other

    def with_other_weights(self) -> Reference:
        """Return the same model with other weights."""
        other = copy.copy(self)
        other.construct_seed = secret_seed()
        other.first = other._start()
        return other

    def release_first_case(self) -> None:
        """Free the case that only one candidate needed."""
        self.first = replace(self.first, inputs=[], expected=[])
        if self.device.type == "cuda":
            cuda.wipe_free_memory()
            torch.cuda.empty_cache()

    @property
    def call_bytes(self) -> int:
        """Bytes of one call's inputs and outputs."""
        return sum(map(nbytes, (*self.first.inputs, *self.outputs)))

    @property
    def is_huge(self) -> bool:
        """True if answering and comparing a call takes far longer than the call."""
        return self.call_bytes >= HUGE_CALL_BYTES

    def draw(self, change: Change | None = None, exact: bool = True, seed: int | None = None) -> Case | None:
        """Draw one case; None if the reference is undefined on the changed inputs."""
        return self.answer(self._draw_inputs(change, seed), exact)

    def _draw_inputs(self, change: Change | None, seed: int | None = None) -> Case:
        """Draw a case without expected outputs.

        Inputs are drawn on the device, which takes milliseconds. KernelBench draws on the host, so on a GPU its seeds
        give other values here, of the same distribution.
        """
        input_seed = secret_seed() if seed is None else seed
        name = OWN_DISTRIBUTION if change is None else change.name
        return Case(name, input_seed, self._source.draw(input_seed, change), [], change=change)

    def answer(self, case: Case, exact: bool = False) -> Case | None:
        """Return the case with expected outputs; None as in ``draw``."""
        given = [tensor.clone() for tensor in case.inputs]
        outputs = self.run_on(self.model, given, case.seed) if case.change is None else self._try(case, given)
        if outputs is None:
            return None
        written = {number: tensor for number, tensor in enumerate(given) if tensor._version}  # torch counts the writes
        del given  # memory for double precision
        if is_first := not self.outputs:
            self.is_random = depends_on_seed(partial(self._run_copy, case.inputs), outputs, case.seed)
            if self.is_random:
                self._double.give_up()  # a dropout mask, for example, differs with the precision
        is_far = case.change is not None and case.change.is_far
        exact, expected, errors = exact or is_far, outputs, self.own_errors
        if exact:
            expected, errors = self._double.sharpen(self.run, case.inputs, outputs, case.seed)
        if is_first:
            self.outputs = [output.to("meta") for output in outputs]
            self.own_errors = errors
        allowed = self._tolerances(expected, errors, case.change)
        if is_far and not all(map(is_telling, outputs, expected, allowed)):
            self.left_out[FAR] = NOT_EXACT
            return None
        return replace(case, expected=expected, allowed=allowed, exact=exact, written=written)

    def _tolerances(self, expected: Tensors, errors: list[float], change: Change | None) -> tuple[Tolerance, ...]:
        has_outliers, loss = (change.has_outliers, change.loss) if change else (False, 0.0)
        return tuple(
            tolerance(*each, self.precision, self.score, self.rules, has_outliers, loss)
            for each in zip(expected, errors, strict=True)
        )

    def _try(self, case: Case, given: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """Return the outputs on changed inputs. If the reference fails there, leave such inputs out from now on.

        A mixture of changes is never left out: each of them is tried alone.
        """
        assert case.change is not None
        try:
            outputs = self.run_on(self.model, given, case.seed)
            reason = self._why_undefined(case, outputs)
            if reason is None:
                return outputs
        except TaskFault as error:
            if is_out_of_memory(error):
                return None
            reason = str(error)
        if not case.change.is_mixed:
            self.left_out[case.change.kind] = self._source.name_unchanged(case.change.kind) + reason
        return None

    def _why_undefined(self, case: Case, outputs: list[torch.Tensor]) -> str | None:
        """Return None if the outputs have the usual shapes, and are finite wherever they are on unchanged inputs."""
        if [output.shape for output in outputs] != [output.shape for output in self.outputs]:
            return "The outputs have other shapes."
        if all(map(all_finite, outputs)):
            return None
        usual = None if self._is_finite else self.run(self.model, self._source.draw(case.input_seed), case.seed)
        return None if usual and all(map(finite_wherever, outputs, usual)) else "The outputs are not finite."

    def _usable_changes(self) -> list[Change]:
        found = changes(few=self._usable_few())
        return [change for change in found if change.kind not in self.left_out and self._can_tell(change)]

    def _can_tell(self, change: Change) -> bool:
        """False for inputs far from zero if an output is an integer, which ties decide there, or if limits are set."""
        is_set = self.rules.atol is not None or self.rules.rtol is not None
        return not change.is_far or (not is_set and all(map(is_inexact, self.outputs)))

    def _usable_few(self) -> Set[str]:
        """Return the kinds of values that can be replaced. Each is tried alone at first."""
        here = [change for change in few_changes() if change.kind in self._source.few_kinds]
        if not self._has_tried_few:
            self._has_tried_few = True
            for change in here:
                if change.kind not in self.left_out:
                    self.draw(change, exact=False)
        return {change.kind for change in here if change.kind not in self.left_out and FEW not in self.left_out}

    def cases(self) -> Iterator[Case]:
        """Yield the cases that a candidate has to get right before it is timed.

        Verified: the task's own distribution and a random choice of others, in random order. KernelBench: its trials.
        """
        if self._is_kernelbench:
            yield self.first
            yield from (self._own_case(seed=seed) for seed in kernelbench_seeds()[1:])
            return
        others = filter(None, (self.draw(change) for change in self._usable_changes()))
        own = random.SystemRandom().randrange(OTHER_DISTRIBUTIONS + 1)
        for place in range(OTHER_DISTRIBUTIONS + 1):
            yield self.first if place == own else next(others, None) or self._own_case()

    def timed_case(self) -> Case:
        """Draw a new case for a timed call, with expected outputs in the task's own precision; a huge one without."""
        if self.is_huge:
            return self.timed_inputs()
        change = self._timed_change()
        return (
            self.draw(self._mixed(change), exact=False)
            or self.draw(change, exact=False)
            or self.draw(rescaling(self._source.is_fixed), exact=False)
            or self._own_case(exact=False)
        )

    def timed_inputs(self) -> Case:
        """Draw a case as ``timed_case`` does, without expected outputs."""
        return self._draw_inputs(self._mixed(self._timed_change()))

    def _timed_change(self) -> Change | None:
        """Choose a distribution; KernelBench keeps the task's own."""
        if self._is_kernelbench:
            return None
        return choose_timed(self._usable_changes(), self._source.is_fixed)

    def _mixed(self, change: Change | None) -> Change | None:
        """Return the change with a few values replaced, as in every timed call: most samples miss them."""
        return change and replace(change, few=self._usable_few())

    def run(self, model: Any, inputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
        """Return the outputs of one call of this model, or of another that should do the same."""
        return self.run_on(model, [tensor.clone() for tensor in inputs], seed)

    def _run_copy(self, inputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
        """Return the outputs of one call of a copy, which leaves the model as it is."""
        return self.run(copy.deepcopy(self.model), inputs, seed)

    def run_on(self, model: Any, given: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
        """Return the outputs of one call, which may change the inputs."""
        arguments = unpack(self.arguments, given)
        result = run_task_code("forward()", lambda: forward(model, arguments, seed))
        outputs, packed = unpack_result(result)
        self.structure = self.structure or packed
        if not self.layouts:
            self.layouts = [layout(output, tensors_in(arguments)) for output in outputs]
            self.writes_output = [is_new(output, arguments, model) for output in outputs]
        return outputs

    def _start_over(self, first: Case) -> Case:
        """Start with the task's own weights, or with random ones again if these are not why a result is undefined."""
        self.nontrivial = False
        own = self._start(first.input_seed)
        self.nontrivial = all(map(finite_wherever, first.expected, own.expected))
        return self._start() if self.nontrivial else own

    def _start(self, seed: int | None = None) -> Case:
        self.model, self.outputs = run_task_code("Model", self._model), []
        self._double = DoublePrecision(None if self._is_kernelbench else self.model, self.device, self.dtype)
        return self._own_case(seed=kernelbench_seeds()[0] if self._is_kernelbench else seed)

    def _own_case(self, exact: bool = True, seed: int | None = None) -> Case:
        return cast("Case", self.draw(None, exact, seed))

    def _construct_arguments(self) -> str:
        """Pack the arguments of ``Model``, tensors separately; a model is made on the host and moved."""
        seed_generators(self.construct_seed)
        given = run_task_code("get_init_inputs()", lambda: list(self._module.get_init_inputs()))
        tensors: list[torch.Tensor] = []
        packed = run_task_code("get_init_inputs()", lambda: pack(given, tensors))
        self.construct_tensors = [tensor.detach().cpu() for tensor in tensors]
        return packed

    def _model(self) -> Any:
        arguments = unpack(self.construct, self.construct_tensors)
        made = construct_model(self._module.Model, arguments, self.construct_seed, self.nontrivial)
        return made.to(self.device, self.dtype)
