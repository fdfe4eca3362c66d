"""The referee's copy of the task: draws inputs and computes the expected outputs.

Models stay in train mode, as in KernelBench. Both sides seed the generator equally before every call, so dropout draws
the same mask. Batch norm normalises by the batch: its running statistics start equal and reach no output. A task whose
outputs depend on earlier calls cannot be judged; ``degenerate`` reports it.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from stark_worker.correctness.compare import (
    DEFAULT_RULES,
    MAX_SPREAD_SHARE,
    Rules,
    Tolerance,
    all_finite,
    equal_up_to_rounding,
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
from stark_worker.correctness.model import forward, import_file, run_task_code
from stark_worker.correctness.nested import Layout, layout, pack, structure, tensors_in, to_double, unpack
from stark_worker.correctness.weights import construct_model, seed_generators
from stark_worker.device.arena import free_bytes, nbytes
from stark_worker.protocol.errors import TaskFault
from stark_worker.protocol.request import Precision, Score

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}
OWN_DISTRIBUTION = "the task's own distribution"
OTHER_DISTRIBUTION_SHARE = 0.25  # of timed samples
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
    changed: bool = False  # not drawn as the task draws them; the reference may be undefined there
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
        self.first = self._start()
        if self.nontrivial and not all(map(all_finite, self.first.expected)):
            self.nontrivial = False  # random values may have made the task undefined
            self.first = self._start()
        self._has_fixed_inputs = not self._is_kernelbench and self._are_inputs_fixed()

    def _are_inputs_fixed(self) -> bool:
        """True if ``get_inputs`` takes nothing from the generator."""
        pairs = zip(self.first.inputs, self._inputs(secret_seed(), None), strict=True)
        return all(a.shape == b.shape and same_bits(a, b) for a, b in pairs if a.is_floating_point())

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
            torch.cuda.empty_cache()

    @property
    def call_bytes(self) -> int:
        """Bytes of one call's inputs and outputs."""
        return sum(map(nbytes, (*self.first.inputs, *self.outputs)))

    @property
    def is_huge(self) -> bool:
        """True if answering and comparing a call takes far longer than the call."""
        return self.call_bytes >= HUGE_CALL_BYTES

    def draw(self, name: str, change: Change | None = None, exact: bool = True, seed: int | None = None) -> Case | None:
        """Draw one case; None if the reference is undefined on the changed inputs."""
        return self.answer(self._draw_inputs(name, change, seed), exact)

    def _draw_inputs(self, name: str, change: Change | None, seed: int | None = None) -> Case:
        """Draw a case without expected outputs.

        Inputs are drawn on the device, which takes milliseconds. KernelBench draws on the host, so on a GPU its seeds
        give other values here, of the same distribution.
        """
        input_seed = secret_seed() if seed is None else seed
        return Case(name, input_seed, self._inputs(input_seed, change), [], changed=change is not None)

    def answer(self, case: Case, exact: bool = False) -> Case | None:
        """Return the case with expected outputs; None as in ``draw``."""
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
        """Yield the cases that a candidate has to get right before it is timed.

        Verified: the task's own distribution and a random choice of others, in random order. KernelBench: its trials.
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
        """Draw new cases for one timed sample, with expected outputs in the task's own precision.

        All have one distribution, mostly the task's own. The median then does not depend on the others, but a candidate
        has to be right on them too.
        """
        name, change = self._timed_distribution()
        return [self.draw(name, change, exact=False) or self._rescaled() for _ in range(count)]

    def own_cases(self, count: int) -> list[Case]:
        """Draw new cases of the task's own distribution."""
        return [self._own_case(exact=False) for _ in range(count)]

    def timed_inputs(self, count: int) -> list[Case]:
        """Draw cases as ``timed_cases`` does, without expected outputs."""
        name, change = self._timed_distribution()
        return [self._draw_inputs(name, change) for _ in range(count)]

    def _timed_distribution(self) -> tuple[str, Change | None]:
        """Choose a distribution; KernelBench keeps the task's own."""
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
        return [self._changed(tensor.detach().to(self.device), change) for tensor in self._resize(tensors)]

    def _changed(self, tensor: torch.Tensor, change: Change | None) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        if change is None and tensor.dtype is self.dtype and tensor.stride() == torch.empty_like(tensor).stride():
            return tensor
        # Keep the layout of the task's own tensor, which the candidate gets too: a dropout mask follows memory order.
        return torch.empty_like(tensor, dtype=self.dtype).copy_(change(tensor) if change else tensor)

    def _add_precision(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], seed: int
    ) -> tuple[list[torch.Tensor], list[float]]:
        """Return outputs in double precision where possible, and the error of the given ones."""
        exact = self._in_double(inputs, outputs, seed) or outputs
        better = [self._choose_exact(own, other) for own, other in zip(outputs, exact, strict=True)]
        return [output for output, _ in better], [error for _, error in better]

    def _in_double(
        self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], seed: int
    ) -> list[torch.Tensor] | None:
        if not self.outputs and self._exact is not None and self._is_random(inputs, outputs, seed):
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

    def _is_random(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor], seed: int) -> bool:
        """True if the outputs depend on the generator."""
        others = self.run(copy.deepcopy(self.model), inputs, seed + 1)
        return not all(equal_up_to_rounding(*pair) for pair in zip(outputs, others, strict=True))

    def _choose_exact(self, own: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor, float]:
        if own is exact or not is_inexact(own) or own.shape != exact.shape or own.is_complex() != exact.is_complex():
            return own, 0.0
        # If they are far apart, they did not compute the same.
        limit = MAX_SPREAD_SHARE if self.dtype is torch.float32 else 10 * MAX_SPREAD_SHARE
        if mismatch(own, exact, Tolerance(limit * spread(own), limit)) or not same_finite(own, exact):
            return own, 0.0
        return exact, largest_error(own, exact)

    def _double_model(self) -> Any:
        try:
            return run_task_code("Model", lambda: copy.deepcopy(self.model).double())
        except TaskFault:
            return None


def _is_new(output: torch.Tensor, arguments: list[Any], model: torch.nn.Module) -> bool:
    """True if a call has to write this output: it is no view of existing tensors and repeats nothing."""
    kept = [
        tensor for module in model.modules() for tensor in vars(module).values() if isinstance(tensor, torch.Tensor)
    ]
    lies = layout(output, [*tensors_in(arguments), *model.parameters(), *model.buffers(), *kept])
    return not lies.shares and 0 not in lies.stride
