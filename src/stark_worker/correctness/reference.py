"""The trusted side's own copy of the task: draws inputs and computes what should come out.

Models stay in train mode, as in KernelBench, and the generator is seeded alike before every call, so that dropout draws
the same mask on both sides. Batch norm in train mode normalises by the batch: its running statistics advance with every
call on either side, start alike, and reach no output. A task whose outputs do depend on earlier calls cannot be judged;
``admission.degenerate_reasons`` says so.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from stark_worker.correctness.compare import (
    DEFAULT_RULES,
    MAX_SPREAD_SHARE,
    Rules,
    Tolerance,
    all_finite,
    is_inexact,
    largest_error,
    mismatch,
    same_bits,
    same_finite,
    spread,
    tolerance,
)
from stark_worker.correctness.inputs import (
    KERNELBENCH_SEED,
    OTHER_DISTRIBUTIONS,
    Change,
    changes,
    kernelbench_seeds,
    rescaling,
    secret_seed,
)
from stark_worker.correctness.model import forward, import_file
from stark_worker.correctness.nested import Layout, doubled, layout, pack, structure, tensors_in, unpack
from stark_worker.correctness.weights import construct_model, seed_generators
from stark_worker.device.arena import free_bytes, nbytes
from stark_worker.protocol.errors import TaskFault
from stark_worker.protocol.request import Precision, Score

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
OWN_DISTRIBUTION = "the task's own distribution"
OTHER_DISTRIBUTION_SHARE = 0.25  # the share of samples on another distribution than the task's own
HUGE_CALL_BYTES = 2**31  # bytes of inputs and outputs, from which on not every timed call is compared
DOUBLE_PRECISION_COPIES = (
    3  # inputs, outputs and what lies between them, each at most this many times in double precision
)

Resize = Callable[[list[torch.Tensor]], list[torch.Tensor]]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Case:
    """Inputs nobody has seen before, what the reference makes of them, and how far from it each output may be.

    ``input_seed`` is the seed the inputs came from. It is never told, for on a GPU a call comes before its inputs; what the
    generators are set to for the call is another ``seed``.
    """

    name: str
    input_seed: int
    inputs: list[torch.Tensor]
    expected: list[torch.Tensor]
    allowed: tuple[Tolerance, ...] = ()
    exact: bool = False  # expected in double precision where that can be had
    changed: bool = False  # not as the task itself draws them, so that the reference may be undefined there
    seed: int = field(default_factory=secret_seed)


class Reference:
    """The model of a task under one random initialisation; for the score ``kernelbench``, under its public seed."""

    def __init__(
        self,
        source: str,
        precision: Precision,
        folder: Path,
        device: str | torch.device = "cpu",
        score: Score = Score.VERIFIED,
        rules: Rules = DEFAULT_RULES,
    ) -> None:
        self.precision, self.score, self.rules = precision, score, rules
        self.device, self.dtype = torch.device(device), DTYPES[precision]
        self._resize: Resize = lambda tensors: tensors
        self._is_kernelbench = score is Score.KERNELBENCH
        self.construct_seed = KERNELBENCH_SEED if self._is_kernelbench else secret_seed()
        self.nontrivial = not self._is_kernelbench  # what both sides tell ``construct_model``
        path = folder / "task.py"
        path.write_text(source, encoding="utf-8")
        self._module = run_task_code("The file", lambda: import_file("task", path))
        self.construct_tensors: list[torch.Tensor] = []
        self.construct = self._construct_arguments()
        self.own_errors: list[float] = []  # on the task's own distribution
        self.outputs: list[torch.Tensor] = []  # without data: what forward() returns, by kind
        self.arguments = ""
        self.structure = ""
        self.layouts: list[Layout] = []  # how what forward() returns lies in memory
        self.writes_output: list[bool] = []  # whether it has to be written in a call, or was there before
        self.first = self._start()
        if self.nontrivial and not all(map(all_finite, self.first.expected)):
            self.nontrivial = False  # random values may have led where the task is undefined
            self.first = self._start()
        self._has_fixed_inputs = not self._is_kernelbench and self._are_inputs_fixed()

    def _are_inputs_fixed(self) -> bool:
        """Whether ``get_inputs`` takes nothing from the generator."""
        pairs = zip(self.first.inputs, self._inputs(secret_seed(), None), strict=True)
        return all(a.shape == b.shape and same_bits(a, b) for a, b in pairs if a.is_floating_point())

    @property
    def exact(self) -> bool:
        """Whether expected outputs could be had in double precision so far."""
        return self._exact is not None

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """What is copied into a candidate. In KernelBench nothing is: there weights agree by seed and order alone."""
        return {} if self._is_kernelbench else dict(self.model.state_dict())

    def draw_first_case(self) -> None:
        """Draw what one candidate alone is to see, unless that was just done."""
        if not self.first.expected:
            self.first = self._own_case(seed=kernelbench_seeds()[0] if self._is_kernelbench else None)

    def with_input_sizes(self, resize: Resize) -> Reference:
        """The same model on inputs of other sizes; a ``TaskFault`` where it does not take them."""
        other = copy.copy(self)
        other._resize, other.outputs, other.layouts = resize, [], []
        other.first = other._own_case()
        if not all(map(all_finite, other.first.expected)):
            raise TaskFault("forward() is not finite on inputs of another size.")
        return other

    def release_first_case(self) -> None:
        """Let go of what only one candidate needed."""
        self.first = replace(self.first, inputs=[], expected=[])
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def call_bytes(self) -> int:
        """What the inputs and outputs of one call take."""
        return sum(map(nbytes, (*self.first.inputs, *self.outputs)))

    @property
    def huge(self) -> bool:
        """Whether to answer and to compare a call takes far longer than the call."""
        return self.call_bytes >= HUGE_CALL_BYTES

    def draw(self, name: str, change: Change | None = None, exact: bool = True, seed: int | None = None) -> Case | None:
        """One case; None when a change of the inputs led to where the reference is undefined."""
        return self.answer(self._draw_inputs(name, change, seed), exact)

    def _draw_inputs(self, name: str, change: Change | None, seed: int | None = None) -> Case:
        """A case without what should come out.

        Inputs are drawn on the device, where that takes milliseconds. So KernelBench's seeds give other values on a GPU
        than there, which draws on the host, of the same distribution.
        """
        input_seed = secret_seed() if seed is None else seed
        return Case(name, input_seed, self._inputs(input_seed, change), [], changed=change is not None)

    def answer(self, case: Case, exact: bool = False) -> Case | None:
        """The case with what should come out, as ``draw`` has it."""
        try:
            outputs = self.run(self.model, case.inputs, case.seed)
        except TaskFault:
            if not case.changed:
                raise
            return None
        if case.changed and not all(map(all_finite, outputs)):
            return None
        expected, errors = self._add_precision(case.inputs, outputs, case.seed) if exact else (outputs, self.own_errors)
        if not self.outputs:
            self.outputs = [output.to("meta") for output in outputs]
            self.own_errors = errors
        return replace(case, expected=expected, allowed=tuple(map(self._tolerance, expected, errors)), exact=exact)

    def _tolerance(self, expected: torch.Tensor, own_error: float) -> Tolerance:
        return tolerance(expected, own_error, self.precision, self.score, self.rules)

    def cases(self) -> Iterator[Case]:
        """The cases a candidate has to get right before it is timed.

        Verified: the task's own distribution and some others, a random choice in random order. KernelBench: its trials.
        """
        if self._is_kernelbench:
            yield self.first
            yield from (self._own_case(seed=seed) for seed in kernelbench_seeds()[1:])
            return
        others = filter(None, (self.draw(name, change) for name, change in changes()))
        own = random.SystemRandom().randrange(OTHER_DISTRIBUTIONS + 1)
        for place in range(OTHER_DISTRIBUTIONS + 1):
            yield self.first if place == own else next(others, None) or self._own_case()

    def timed_cases(self, count: int = 1) -> list[Case]:
        """Fresh cases for one sample of the clock, with expected outputs in the task's own precision.

        They are all of one distribution, mostly the task's own: the median is not to depend on the others, but who is
        right on the task's own distribution alone is not right.
        """
        name, change = self._timed_distribution()
        return [self.draw(name, change, exact=False) or self._rescaled() for _ in range(count)]

    def own_cases(self, count: int) -> list[Case]:
        """Fresh cases of the task's own distribution, whose outputs differ: otherwise the task would test nothing."""
        return [self._own_case(exact=False) for _ in range(count)]

    def timed_inputs(self, count: int) -> list[Case]:
        """The same, yet to be answered: a case whose answer nobody looks at needs none."""
        name, change = self._timed_distribution()
        return [self._draw_inputs(name, change) for _ in range(count)]

    def _timed_distribution(self) -> tuple[str, Change | None]:
        """KernelBench changes nothing."""
        if self._is_kernelbench:
            return OWN_DISTRIBUTION, None
        chance = random.SystemRandom()
        return (
            chance.choice(changes())
            if chance.random() < OTHER_DISTRIBUTION_SHARE
            else rescaling(self._has_fixed_inputs)
        )

    def _rescaled(self) -> Case:
        return self.draw(*rescaling(self._has_fixed_inputs), exact=False) or self._own_case(exact=False)

    def run(self, model: Any, inputs: list[torch.Tensor], seed: int) -> list[torch.Tensor]:
        """The outputs of one call of this model or of another that should do the same."""
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
            self.writes_output = [_is_new(output, arguments, model) for output in outputs]
        return [output.resolve_conj().resolve_neg() for output in outputs]

    def _start(self) -> Case:
        self.model, self.outputs = run_task_code("Model", self._model), []
        self._exact = None if self._is_kernelbench else self._double_model()
        return self._own_case(seed=kernelbench_seeds()[0] if self._is_kernelbench else None)

    def _own_case(self, exact: bool = True, seed: int | None = None) -> Case:
        case = self.draw(OWN_DISTRIBUTION, None, exact, seed)
        assert case is not None
        return case

    def _construct_arguments(self) -> str:
        """Packed, their tensors apart; a model is made on the host and moved."""
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
        return [self._changed(tensor.detach().to(self.device), change) for tensor in self._resize(tensors)]

    def _changed(self, tensor: torch.Tensor, change: Change | None) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        if change is None and tensor.dtype is self.dtype and tensor.stride() == torch.empty_like(tensor).stride():
            return tensor
        # Laid out as the task's own tensor is, and as the candidate gets it: a dropout mask follows the memory order.
        return torch.empty_like(tensor, dtype=self.dtype).copy_(change(tensor) if change else tensor)

    def _add_precision(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], seed: int
    ) -> tuple[list[torch.Tensor], list[float]]:
        """Outputs in double precision where that fits and is the same computation, and how far the given ones are."""
        exact = self._in_double(inputs, outputs, seed) or outputs
        better = [self._choose_exact(own, other) for own, other in zip(outputs, exact, strict=True)]
        return [output for output, _ in better], [error for _, error in better]

    def _in_double(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], seed: int
    ) -> list[torch.Tensor] | None:
        if not self.outputs and self._exact is not None and self._is_random(inputs, outputs, seed):
            self._exact = None  # what is drawn, a dropout mask for one, differs with the precision
        if self._exact is not None:
            if DOUBLE_PRECISION_COPIES * 8 * sum(tensor.numel() for tensor in (*inputs, *outputs)) <= free_bytes(
                self.device
            ):
                try:
                    return self.run(self._exact, [doubled(tensor) for tensor in inputs], seed)
                except TaskFault:  # a forward that insists on its own precision, or has no room for another
                    pass
            self._exact = None
        return None

    def _is_random(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], seed: int) -> bool:
        """Whether the answer depends on the generator."""
        others = self.run(copy.deepcopy(self.model), inputs, seed + 1)
        return not all(_equal_up_to_rounding(*pair) for pair in zip(outputs, others, strict=True))

    def _choose_exact(self, own: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor, float]:
        if own is exact or not is_inexact(own) or own.shape != exact.shape or own.is_complex() != exact.is_complex():
            return own, 0.0
        # Far apart, the two did not compute the same; what stands out may be off by a share of itself.
        limit = MAX_SPREAD_SHARE if self.dtype is torch.float32 else 10 * MAX_SPREAD_SHARE
        if mismatch(own, exact, Tolerance(limit * spread(own), limit)) or not same_finite(own, exact):
            return own, 0.0
        return exact, largest_error(own, exact)

    def _double_model(self) -> Any:
        try:
            return run_task_code("Model", lambda: copy.deepcopy(self.model).double())
        except TaskFault:
            return None


def run_task_code(part: str, step: Callable[[], Result]) -> Result:
    """Run a part of the task; whatever it raises is the task's fault."""
    try:
        return step()
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:500]
        raise TaskFault(f"{part} fails: {type(error).__name__}: {text}") from error


def _equal_up_to_rounding(own: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two answers differ by no more than rounding can do."""
    limit = MAX_SPREAD_SHARE * spread(own) if is_inexact(own) else 0.0
    return own.shape == other.shape and largest_error(own, other) <= limit


def _is_new(output: torch.Tensor, arguments: list[Any], model: torch.nn.Module) -> bool:
    """Whether a call has to write an output: it is no view of what was there before, and repeats nothing."""
    kept = [
        tensor for module in model.modules() for tensor in vars(module).values() if isinstance(tensor, torch.Tensor)
    ]
    lies = layout(output, [*tensors_in(arguments), *model.parameters(), *model.buffers(), *kept])
    return not lies.shares and 0 not in lies.stride
