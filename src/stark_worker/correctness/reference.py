"""The referee's copy of the task: draws inputs and computes the expected outputs.

Models stay in train mode, as in KernelBench. Both sides seed the generator equally before every call, so dropout draws
the same mask. Batch norm normalises by the batch: its running statistics start equal and reach no output. A task whose
outputs depend on earlier calls cannot be judged; ``degenerate`` reports it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from stark_worker.correctness.compare import (
    DEFAULT_RULES,
    Rules,
    Tolerance,
    all_finite,
    choose_exact,
    equal_up_to_rounding,
    same_bits,
    tolerance,
)
from stark_worker.correctness.inputs import (
    EXCHANGED,
    KERNELBENCH_SEED,
    OTHER_DISTRIBUTIONS,
    Change,
    changes,
    choose_timed,
    kernelbench_seeds,
    rescaling,
    secret_seed,
)
from stark_worker.correctness.model import forward, import_file, is_out_of_memory, run_task_code
from stark_worker.correctness.nested import Layout, is_new, layout, pack, structure, tensors_in, to_double, unpack
from stark_worker.correctness.weights import construct_model, seed_generators
from stark_worker.device import cuda
from stark_worker.device.arena import free_bytes, nbytes
from stark_worker.protocol.errors import TaskFault
from stark_worker.protocol.request import Precision, Score

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
OWN_DISTRIBUTION = "the task's own distribution"
HUGE_CALL_BYTES = 2**31  # inputs and outputs; from here on only some timed calls are compared
DOUBLE_PRECISION_COPIES = 3  # of inputs and outputs, that a double-precision run may need memory for

Resize = Callable[[list[torch.Tensor]], list[torch.Tensor]]


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
        self._resize: Resize = lambda tensors: tensors
        self._is_kernelbench = score is Score.KERNELBENCH
        self.construct_seed = KERNELBENCH_SEED if self._is_kernelbench else secret_seed()
        self.nontrivial = not self._is_kernelbench  # an argument of ``construct_model`` on both sides
        path = folder / "task.py"
        path.write_text(source, encoding="utf-8")
        self._module = run_task_code("The file", lambda: import_file("task", path))
        self.construct_tensors: list[torch.Tensor] = []
        self.construct = self._construct_arguments()
        self.own_errors: list[float] = []  # on the task's own distribution
        self.outputs: list[torch.Tensor] = []  # on the device "meta": kinds without data
        self.arguments = ""
        self.structure = ""
        self.layouts: list[Layout] = []  # of the outputs
        self.writes_output: list[bool] = []  # False for outputs that existed before the call
        self.is_random = False  # True if outputs depend on the seed of the call
        self.left_out = dict(unusable or {})  # changes of inputs on which the reference fails, and the reasons
        self.first = self._start()
        if self.nontrivial and not all(map(all_finite, self.first.expected)):
            self.nontrivial = False  # random values may have made the task undefined
            self.first = self._start()
        self._fixed_integers: set[int] = set()  # numbers of inputs that are the same in every call
        self._has_fixed_inputs = not self._is_kernelbench and self._are_inputs_fixed()

    def _are_inputs_fixed(self) -> bool:
        """True if ``get_inputs`` takes no floating-point numbers from the generator."""
        pairs = zip(self.first.inputs, self._inputs(secret_seed(), None), strict=True)
        fixed = [a.shape == b.shape and same_bits(a, b) for a, b in pairs]
        kinds = [tensor.is_floating_point() for tensor in self.first.inputs]
        self._fixed_integers = {n for n, is_float in enumerate(kinds) if fixed[n] and not is_float}
        return all(is_fixed for is_fixed, is_float in zip(fixed, kinds, strict=True) if is_float)

    @property
    def exact(self) -> bool:
        """True if double precision has worked so far."""
        return self._exact is not None

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
        other._resize, other.outputs, other.layouts = resize, [], []
        other.first = other._own_case()
        if not all(map(all_finite, other.first.expected)):
            raise TaskFault("forward() is not finite on inputs of another size.")
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
        return Case(name, input_seed, self._inputs(input_seed, change), [], change=change)

    def answer(self, case: Case, exact: bool = False) -> Case | None:
        """Return the case with expected outputs; None as in ``draw``."""
        outputs = self.run(self.model, case.inputs, case.seed) if case.change is None else self._try(case, case.change)
        if outputs is None:
            return None
        if is_first := not self.outputs:
            self.is_random = self._depends_on_seed(case, outputs)
        expected, errors = self._add_precision(case.inputs, outputs, case.seed) if exact else (outputs, self.own_errors)
        if is_first:
            self.outputs = [output.to("meta") for output in outputs]
            self.own_errors = errors
        rounds_much = case.change is not None and case.change.has_outliers
        allowed = [
            tolerance(*each, self.precision, self.score, self.rules, rounds_much)
            for each in zip(expected, errors, strict=True)
        ]
        return replace(case, expected=expected, allowed=tuple(allowed), exact=exact)

    def _try(self, case: Case, change: Change) -> list[torch.Tensor] | None:
        """Return the outputs on changed inputs. If the reference fails there, leave such inputs out from now on."""
        try:
            outputs = self.run(self.model, case.inputs, case.seed)
        except TaskFault as error:
            if not is_out_of_memory(error):
                self.left_out[change.kind] = str(error)
            return None
        if all(map(all_finite, outputs)):
            return outputs
        self.left_out[change.kind] = "The outputs are not finite."
        return None

    def _usable_changes(self) -> list[Change]:
        unusable = self.left_out if self._fixed_integers else {*self.left_out, EXCHANGED}
        return [change for change in changes() if change.kind not in unusable]

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
        return (
            self.draw(self._timed_change(), exact=False)
            or self.draw(rescaling(self._has_fixed_inputs), exact=False)
            or self._own_case(exact=False)
        )

    def timed_inputs(self) -> Case:
        """Draw a case as ``timed_case`` does, without expected outputs."""
        return self._draw_inputs(self._timed_change())

    def _timed_change(self) -> Change | None:
        """Choose a distribution; KernelBench keeps the task's own."""
        if self._is_kernelbench:
            return None
        return choose_timed(self._usable_changes(), self._has_fixed_inputs)

    def run(self, model: Any, inputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
        """Return the outputs of one call of this model, or of another that should do the same."""
        arguments = unpack(self.arguments, [tensor.clone() for tensor in inputs])  # a forward may work in place
        result = run_task_code("forward()", lambda: forward(model, arguments, seed))
        outputs: list[torch.Tensor] = []
        packed = structure(run_task_code("forward()", lambda: pack(result, outputs)))
        if not outputs or '{"value"' in packed.replace('{"value": null}', ""):
            raise TaskFault("forward() has to return tensors, alone or in tuples, lists or dicts.")
        if any(output.layout != torch.strided for output in outputs):
            raise TaskFault("forward() returns sparse tensors, which cannot be judged; return them dense.")
        self.structure = self.structure or packed
        if not self.layouts:
            self.layouts = [layout(output, tensors_in(arguments)) for output in outputs]
            self.writes_output = [is_new(output, arguments, model) for output in outputs]
        return [output.resolve_conj().resolve_neg() for output in outputs]

    def _start(self) -> Case:
        self.model, self.outputs = run_task_code("Model", self._model), []
        self._exact = None if self._is_kernelbench else self._double_model()
        return self._own_case(seed=kernelbench_seeds()[0] if self._is_kernelbench else None)

    def _own_case(self, exact: bool = True, seed: int | None = None) -> Case:
        case = self.draw(None, exact, seed)
        assert case is not None
        return case

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
        model = construct_model(self._module.Model, arguments, self.construct_seed, self.nontrivial)
        return model.to(self.device, self.dtype)

    def _inputs(self, seed: int, change: Change | None) -> list[torch.Tensor]:
        seed_generators(seed)
        tensors: list[torch.Tensor] = []
        with self.device:
            given = run_task_code("get_inputs()", lambda: list(self._module.get_inputs()))
        packed = run_task_code("get_inputs()", lambda: pack(given, tensors))
        if packed != (self.arguments or packed):
            raise TaskFault("get_inputs() returns other arguments from call to call; they have to stay the same.")
        self.arguments = packed
        given = [tensor.detach().to(self.device) for tensor in self._resize(tensors)]
        if change is not None and change.kind == EXCHANGED:
            given = [change.apply(each) if n in self._fixed_integers else each for n, each in enumerate(given)]
            change = None
        return [self._changed(tensor, change) for tensor in given]

    def _changed(self, tensor: torch.Tensor, change: Change | None) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        if change is None and tensor.dtype is self.dtype and tensor.stride() == torch.empty_like(tensor).stride():
            return tensor
        # Keep the layout of the task's own tensor, which the candidate gets too: a dropout mask follows memory order.
        return torch.empty_like(tensor, dtype=self.dtype).copy_(change.apply(tensor) if change else tensor)

    def _add_precision(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], seed: int
    ) -> tuple[list[torch.Tensor], list[float]]:
        """Return outputs in double precision where possible, and the error of the given ones."""
        exact = self._in_double(inputs, outputs, seed) or outputs
        better = [
            choose_exact(*pair, is_short=self.dtype is not torch.float32) for pair in zip(outputs, exact, strict=True)
        ]
        return [output for output, _ in better], [error for _, error in better]

    def _in_double(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], seed: int
    ) -> list[torch.Tensor] | None:
        if self.is_random:
            self._exact = None  # a dropout mask, for example, differs with the precision
        if self._exact is not None:
            if DOUBLE_PRECISION_COPIES * 8 * sum(tensor.numel() for tensor in (*inputs, *outputs)) <= free_bytes(
                self.device
            ):
                try:
                    return self.run(self._exact, [to_double(tensor) for tensor in inputs], seed)
                except TaskFault:  # forward() insists on its own precision, or finds no memory
                    pass
            self._exact = None
        return None

    def _depends_on_seed(self, case: Case, outputs: list[torch.Tensor]) -> bool:
        others = self.run(copy.deepcopy(self.model), case.inputs, case.seed + 1)
        return not all(equal_up_to_rounding(*pair) for pair in zip(outputs, others, strict=True))

    def _double_model(self) -> Any:
        try:
            return run_task_code("Model", lambda: copy.deepcopy(self.model).double())
        except TaskFault:
            return None
