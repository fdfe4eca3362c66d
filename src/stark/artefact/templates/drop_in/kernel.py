"""The kernel."""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from .calls import ALIGNMENT, _Call
from .facts import ARGUMENTS, DEVICE
from .guards import _why_never, _why_not_weights
from .model import ModelNew
from .nested import IS_ONE, IS_PLAIN, _build, _flatten
from .original import _pristine, _run_original, _weights_of
from .results import OWNERS, _copy, _count_owners, _is_close, _memory, _same_random_numbers
from .snapshots import _Snapshot
from .sources import NotJudged, Shapes, Tensors, _own_names, _Unfit
from .weights import LEAST_MOVED, MAX_TRIED, OFF_SHARE, SCALES, _changed, _distance, _make_module

_layouts: dict[str, dict[Shapes, list[tuple[int, ...]]]] = {}  # strides of the original's results
_follows: dict[str, bool] = {}  # True if a kernel computes with weights as they are, False if it keeps what it derived
_unfit: dict[str, str] = {}  # reasons that hold whatever the weights are
_keep_memory: set[str] = set()  # of kernels that return the same memory every time, perhaps without an owner


@contextlib.contextmanager
def _refusing(kernel: _Kernel, how: str) -> Iterator[None]:
    """Do not use a kernel that raises here: a compiler may be missing."""
    try:
        yield
    except _Unfit as unfit:
        kernel.reason = str(unfit)
    except Exception as error:  # noqa: BLE001 - a kernel can raise anything
        kernel.reason = f"the kernel {how}: {type(error).__name__}: {error}"


class _Kernel:
    """The kernel with the weights of one model. ``reason`` says why it cannot be used, if it cannot."""

    def __init__(self, model: ModelNew) -> None:
        state = model._stark
        self.key, self.snapshot, self.weights = state.key, _Snapshot(model), _weights_of(model)
        self._layouts, self._lock, self._is_warm = _layouts.setdefault(self.key, {}), threading.Lock(), False
        self._before: _Call | None = None
        self._stream: Any = None  # of its last call on a GPU
        self._make = functools.partial(_make_module, state.key, *state.arguments)
        self.reason = _why_never(model, self.snapshot) or _why_not_weights(self.weights)
        if self.reason is None:
            with _refusing(self, "cannot be built here"):
                self._module = self._make(self.weights)

    def why_not(self, tensors: Tensors) -> str | None:
        """Return why the kernel cannot be used with these inputs, apart from what they are by themselves."""
        is_elsewhere = any(weight.device != tensors[0].device for weight in self.weights.values()) if tensors else False
        return self.reason or ("the inputs are on another device than the weights" if is_elsewhere else None)

    def is_current(self) -> bool:
        """True if the model has not changed since. Written weights matter if the kernel keeps what it derived."""
        return self.snapshot.is_current(looks_at_values=not _follows.get(self.key, False))

    def run(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return results in memory of their own, laid out as the original's."""
        layouts = self._layouts.get(tuple([tensor.shape for tensor in tensors]))
        if layouts is None:
            return self._run_first(tensors)
        with self._lock:
            results = self._call(tensors)
            for number, stride in enumerate(layouts):
                if (
                    self.key in _keep_memory
                    or results[number].stride() != stride
                    or _count_owners(results[number]) != OWNERS
                ):
                    results[number] = _copy(results[number], stride)
        return results

    def find_before(self, args: Sequence[Any]) -> _Call | None:
        """Return the call before this one if this one is like it in all that the guards look at. Quick."""
        before = self._before  # another thread may replace it
        is_like = before is not None and before.is_like(args)
        looks_at_values = not _follows.get(self.key, False)
        return before if is_like and self.snapshot.is_current(looks_at_values, looks_at_layouts=False) else None

    def run_again(self, before: _Call, args: Sequence[Any]) -> torch.Tensor:
        """Return the one result of a call that is like one before it."""
        with self._lock:
            results = [self._module.forward(*args)]
            if self.key in _keep_memory or results[0].stride() != before.stride or _count_owners(results[0]) != OWNERS:
                results[0] = _copy(results[0], before.stride)
        return results[0]

    def remember(self, tensors: Tensors) -> None:
        """Remember a call for which all guards held."""
        layouts = self._layouts.get(tuple([tensor.shape for tensor in tensors]))
        if layouts and IS_PLAIN and IS_ONE and all(type(each) is torch.Tensor for each in tensors):
            with contextlib.suppress(AttributeError, TypeError):  # torch may change what is not public
                self._before = _Call(tensors, list(self.weights.values()), layouts[0])

    def _call(self, tensors: Tensors) -> list[torch.Tensor]:
        if any(tensor.data_ptr() % ALIGNMENT for tensor in tensors):
            tensors = [each.clone() for each in tensors]
        with contextlib.ExitStack() as stack:
            if not self._is_warm:
                stack.enter_context(_own_names())  # it may build an extension at its first call
            if DEVICE == "cuda" and tensors:
                stack.enter_context(torch.cuda.device(tensors[0].device))
                self._order_streams()
            results = _flatten(self._module.forward(*_build(ARGUMENTS, tensors)))
        self._is_warm = True
        return results

    def _order_streams(self) -> None:
        """Wait for the last call if it was on another stream: the kernel may keep memory from call to call."""
        if torch.cuda.is_current_stream_capturing():
            _captured.add(self)  # the graph uses what the kernel keeps
            return
        stream = torch.cuda.current_stream()
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    def _run_first(self, tensors: Tensors) -> list[torch.Tensor]:
        """Compare the kernel with the original on inputs of a new shape. After a wrong result it is not used again."""
        if DEVICE == "cuda" and torch.cuda.is_current_stream_capturing():
            raise NotJudged("Call the model once on inputs of these shapes before a CUDA graph captures it.")
        found: list[torch.Tensor] = []
        pristine = _Snapshot(_pristine[self.key])
        with torch.no_grad(), _same_random_numbers() as again:
            with _refusing(self, "fails on this machine"), self._lock:
                first, second = self._call(tensors), self._call(tensors)
                if any(map(operator.eq, map(_memory, first), map(_memory, second))):
                    _keep_memory.add(self.key)
                self._find_out_if_it_follows(tensors, again)
                again()
                found = [result.clone() for result in self._call(tensors)]
            again()
            expected = _run_original(self.key, self.weights, tensors)
        given = {_memory(tensor) for tensor in (*tensors, *self.weights.values())}
        if not pristine.is_current(looks_at_values=True):
            self.reason = "a call of the original stores something, and the kernel's does not"
        elif any(_memory(result) in given for result in expected):
            self.reason = "a result of the original shares memory with its inputs or weights"
        elif self.reason is None and not all(map(_is_close, found, expected)):
            self.reason = "the kernel's result differs from the original's on this machine"
        if self.reason is None:
            self._layouts[tuple([tensor.shape for tensor in tensors])] = [result.stride() for result in expected]
        return expected

    def _find_out_if_it_follows(self, tensors: Tensors, again: Callable[[], None]) -> None:
        """Find out once if the kernel notices written weights. If not, a new module of it has to notice them."""
        if self.key in _follows:
            return
        with torch.inference_mode(False):
            copies = {id(weight): weight.detach().clone() for weight in self.weights.values()}
        weights = {name: copies[id(weight)] for name, weight in self.weights.items()}  # tied ones stay tied

        def run(module: nn.Module | None) -> list[torch.Tensor]:
            again()
            if module is None:
                return _run_original(self.key, weights, tensors)
            return [result.clone() for result in _flatten(module.forward(*_build(ARGUMENTS, tensors)))]

        def is_noticed(changed: Tensors, module: Callable[[], nn.Module]) -> bool | None:
            """Return if a module computes with changed weights; None if no result shows the change."""
            for scale in SCALES:
                with _changed(changed, scale):
                    right, found = run(None), run(module())
                moved, off = list(map(_distance, right, before)), list(map(_distance, found, right))
                if max(10 * rounding, LEAST_MOVED) <= max(moved) < float("inf"):
                    return all(mine <= OFF_SHARE * most + 2 * rounding for mine, most in zip(off, moved, strict=True))
            return None

        before, kept = run(None), self._make(weights)
        rounding = max(1e-6, *map(_distance, run(kept), before))
        _follows[self.key] = len(copies) <= MAX_TRIED and all(
            is_noticed([each], lambda: kept) for each in copies.values()
        )
        if copies and is_noticed(list(copies.values()), lambda: self._make(weights)) is False:
            _unfit[self.key] = "the kernel keeps what it derived from weights after they change"
            raise _Unfit(_unfit[self.key])


_captured: set[_Kernel] = set()  # by CUDA graphs: they have to live on
