from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import inspect
import linecache
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils import cpp_extension

# [facts] STARK replaces these lines by the facts of one kernel.
TASK, KERNEL, ORIGINAL = "", "", "class Model: pass"
JUDGED = "for inputs of 1 only"
DEVICE, CAST, DTYPES = "cpu", None, (torch.float32,)
SHAPES: tuple[tuple[int, ...], ...] = ((1,),)
SIZES: tuple[tuple[tuple[tuple[int, int], ...], int, int], ...] = ()
CONSTRUCTED: dict[str, Any] = {"list": []}
ARGUMENTS: dict[str, Any] = {"list": [{"tensor": 0}]}
RESULT: dict[str, Any] = {"tensor": 0}
IS_RANDOM = CHANGES_STATE = False
# [end of facts]

TRIES = 3  # calls that show if a kernel returns the same memory again
ALIGNMENT = 16  # bytes: kernels load several numbers at a time
ROUGHLY = 0.03  # of the largest value, in the comparison at the first call
LOADERS = ("load", "load_inline")

Tensors = Sequence[torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]


class NotJudged(RuntimeError):
    """A call lies outside of what was judged, and the model is strict."""


# -- the two sources --------------------------------------------------------------------------------------------------


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _run_source(kind: str, source: str) -> types.ModuleType:
    """Run a source as a module of its own, which pickle and inspect can find."""
    name = f"stark_{kind}_{_digest(source)}"
    if name not in sys.modules:
        file, module = f"<{name}>", types.ModuleType(name)
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        module.__file__, sys.modules[name] = file, module
        try:
            exec(compile(source, file, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


_lock = threading.RLock()


@contextlib.contextmanager
def _own_names() -> Iterator[None]:
    """Name extensions that are built meanwhile by a hash of their source: two kernels never share a library."""

    def renamed(load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            name = f"stark_{_digest(args, sorted(kwargs.items()), torch.__version__, KERNEL)}"
            return load(name, *args[1:], **kwargs) if args else load(**kwargs | {"name": name})

        return replacement

    with _lock:
        before = {name: getattr(cpp_extension, name) for name in LOADERS}
        try:
            for name, load in before.items():
                setattr(cpp_extension, name, renamed(load))
            yield
        finally:
            for name, load in before.items():
                setattr(cpp_extension, name, load)


_original = _run_source("original", ORIGINAL)


# -- nested values ----------------------------------------------------------------------------------------------------


def _build(packed: Mapping[str, Any], tensors: Any) -> Any:
    """Put tensors into the places of a nested value."""
    ((kind, content),) = packed.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _build(item, tensors) for key, item in content}
    if kind in ("list", "tuple"):
        items = [_build(item, tensors) for item in content]
        return items if kind == "list" else tuple(items)
    return content


def _matches(packed: Mapping[str, Any], value: Any, tensors: list[Any]) -> bool:
    """True if a value has this structure and these constants; append its tensors."""
    ((kind, content),) = packed.items()
    if kind == "tensor":
        tensors.append(value)
        return isinstance(value, torch.Tensor)
    if kind == "dict":
        return (
            isinstance(value, dict)
            and list(value) == [key for key, _ in content]
            and all(_matches(item, value[key], tensors) for key, item in content)
        )
    if kind in ("list", "tuple"):
        is_sequence = isinstance(value, list | tuple) and len(value) == len(content)
        return is_sequence and all(_matches(*pair, tensors) for pair in zip(content, value, strict=True))
    return type(value) is type(content) and bool(value == content)


def _flatten(result: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    if not _matches(RESULT, result, tensors):
        raise RuntimeError("the kernel's result has another structure than the original's")
    return tensors


class _Any:
    """Equals every tensor, and stands for any number of them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Tensor)

    def __getitem__(self, number: int) -> _Any:
        return self


IS_PLAIN = [*ARGUMENTS] == ["list"] and all([*item] == ["tensor"] for item in ARGUMENTS["list"])


# -- the original, by its weights -------------------------------------------------------------------------------------

_models: dict[str, weakref.WeakSet[Any]] = {}  # all of ModelNew, by the arguments of their constructors


class _Original(nn.Module):
    """The original's forward(), so that it can be called with other weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Any:
        return _original.Model.forward(self.model, *args)


def _run_original(model: nn.Module, weights: Mapping[str, torch.Tensor], tensors: Tensors) -> list[torch.Tensor]:
    named = {f"model.{name}": weight for name, weight in weights.items()}
    return _flatten(functional_call(_Original(model), named, tuple(_build(ARGUMENTS, tensors)), tie_weights=False))


def _weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


# -- the kernel -------------------------------------------------------------------------------------------------------


_modules: dict[tuple[str, torch.device], nn.Module] = {}  # modules of the kernel that were never called
_layouts: dict[str, dict[Shapes, list[tuple[int, ...] | None]]] = {}  # strides of results that have to be copied


class _Kernel:
    """The kernel with the weights of one model. ``reason`` says why it cannot be used, if it cannot.

    It is made again when a weight has changed, because it may keep what it derived from weights.
    """

    def __init__(self, model: ModelNew) -> None:
        self._model, self._key, self._is_warm = weakref.ref(model), model._key, False
        self.weights = _weights_of(model)
        self._holders = [
            (parent._modules, name, child) for parent in model.modules() for name, child in parent._modules.items()
        ]
        places = [(child._parameters, name) for child in model.modules() for name in child._parameters]
        places += [(child._buffers, name) for child in model.modules() for name in child._buffers]
        self._stamps = [(place, name, place[name], _stamp(place[name])) for place, name in places]
        self._layouts = _layouts.setdefault(self._key, {})
        self._is_simple: dict[Shapes, bool] = {}  # shapes for which the result can be returned as it is
        self.reason = model._why_never() or _why_not_weights(self.weights) or self._make(model)

    def is_current(self) -> bool:
        """True if no weight, module or hook has changed since."""
        for holder, name, child in self._holders:
            if holder.get(name) is not child or child._forward_hooks or child._forward_pre_hooks:
                return False
        for place, name, weight, stamp in self._stamps:
            if place.get(name) is not weight or _stamp(weight) != stamp:
                return False
        return True

    def _make(self, model: ModelNew) -> str | None:
        """Make the kernel's module as it was judged, with the model's weights in place of its own; say why not."""
        device = next((weight.device for weight in self.weights.values()), torch.device(DEVICE))
        try:
            self._module = _new_module(model, device)
        except Exception as error:  # noqa: BLE001 - a compiler may be missing, and a kernel can raise anything
            return f"the kernel cannot be built here: {type(error).__name__}: {error}"
        judged, given = self._module.state_dict(), model.state_dict()
        for name in {**judged, **given}:
            if _kind(judged.get(name)) != _kind(given.get(name)):
                return f"{name} is {_kind(given.get(name))}; the kernel was judged with {_kind(judged.get(name))}"
        for name, weight in self.weights.items():
            owner, _, leaf = name.rpartition(".")
            holder = self._module.get_submodule(owner)
            if leaf in holder._parameters:
                holder._parameters[leaf] = nn.Parameter(weight.detach(), requires_grad=False)
            elif leaf in holder._buffers:
                holder._buffers[leaf] = weight.detach()
        return None

    def run(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return results in memory of their own, laid out as the original's."""
        layouts = self._layouts.get(tuple(tensor.shape for tensor in tensors))
        if layouts is None:
            return self._run_first(tensors)
        if self._is_warm:
            results = self._call(tensors)
        else:
            with _own_names():  # it may build an extension at its first call
                results = self._call(tensors)
            self._is_warm = True
        self._is_simple[tuple(tensor.shape for tensor in tensors)] = [*RESULT] == ["tensor"] and layouts == [None]
        for number, stride in enumerate(layouts):
            if stride is not None:
                results[number] = _copy(results[number], stride)
        return results

    def can_run_again(self, model: ModelNew, args: Sequence[Any]) -> bool:
        """True if a call is like one before it, so that all guards hold. This is quick, and may be False for others."""
        if not IS_PLAIN or self.reason is not None or len(args) != len(DTYPES):
            return False
        for tensor, dtype in zip(args, DTYPES):  # noqa: B905 - "strict" takes long
            if (
                type(tensor) is not torch.Tensor
                or tensor.dtype is not dtype
                or not (tensor.is_cuda if DEVICE == "cuda" else tensor.is_cpu)
                or not tensor.is_contiguous()
                or tensor.requires_grad
                or tensor.data_ptr() % ALIGNMENT
            ):
                return False
        return (
            self._is_warm
            and self._is_simple.get(tuple([tensor.shape for tensor in args]), False)
            and not torch._C._are_functorch_transforms_active()
            and not torch.is_autocast_enabled(DEVICE)
            and (model.training or not model._depends_on_mode)
            and not model._is_changed
            and not _needs_gradients(self.weights.values())
            and (DEVICE == "cpu" or args[0].device.index == torch.cuda.current_device())
            and self.is_current()
        )

    def run_again(self, args: Sequence[Any]) -> Any:
        """Return the kernel's result as it is."""
        return self._module(*args)

    def _call(self, tensors: Tensors) -> list[torch.Tensor]:
        for tensor in tensors:
            if tensor.data_ptr() % ALIGNMENT:
                tensors = [each.clone() for each in tensors]
                break
        arguments = tensors if IS_PLAIN else _build(ARGUMENTS, tensors)
        if DEVICE == "cuda" and tensors and tensors[0].device.index != torch.cuda.current_device():
            with torch.cuda.device(tensors[0].device):
                return _flatten(self._module(*arguments))
        return _flatten(self._module(*arguments))

    def _run_first(self, tensors: Tensors) -> list[torch.Tensor]:
        """Compare the kernel with the original on inputs of a new shape. After a wrong result it is not used again."""
        if DEVICE == "cuda" and torch.cuda.is_current_stream_capturing():
            raise NotJudged("Call the model once on inputs of these shapes before a CUDA graph captures it.")
        model = self._model()
        assert model is not None
        with _own_names(), torch.no_grad(), _same_random_numbers() as again:
            tries = [(again(), self._call(tensors))[1] for _ in range(TRIES)]
            again()
            expected = _run_original(model, self.weights, tensors)
        if not all(map(_is_close, tries[0], expected)):
            self.reason = "the kernel's result differs from the original's on this machine"
            return expected
        given = {_memory(tensor) for tensor in (*tensors, *self.weights.values())}
        layouts: list[tuple[int, ...] | None] = []
        for number, right in enumerate(expected):
            found = {_memory(results[number]) for results in tries}
            is_own = len(found) == TRIES and not found & given and tries[0][number].stride() == right.stride()
            layouts.append(None if is_own else right.stride())
            given |= found
        self._layouts[tuple(tensor.shape for tensor in tensors)] = layouts
        return [_copy(result, result.stride()) for result in expected]


def _new_module(model: ModelNew, device: torch.device) -> nn.Module:
    """Make a module of the kernel. A second one is a copy of the first: initial weights take long to draw."""
    args, kwargs = model._arguments
    with _lock:
        made = _modules.get((model._key, device))
        if made is None:
            indices = [device.index or 0] if device.type == "cuda" else []
            with _own_names(), torch.random.fork_rng(indices), torch.device("cpu"):
                made = _run_source("kernel", KERNEL).ModelNew(*args, **kwargs).to(device, CAST)
            _modules[model._key, device] = made
        return copy.deepcopy(made)


def _kind(weight: torch.Tensor | None) -> str:
    return "missing" if weight is None else f"{weight.dtype}{list(weight.shape)}"


def _stamp(weight: torch.Tensor | None) -> tuple[int, int] | None:
    if weight is None:
        return None
    return -1 if weight.is_inference() else weight._version, weight.data_ptr()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copy(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _is_close(result: torch.Tensor, right: torch.Tensor) -> bool:
    if result.shape != right.shape or result.dtype != right.dtype:
        return False
    if not right.numel() or not (right.is_floating_point() and bool(right.isfinite().all())):
        return True  # an integer may be another one after other rounding
    return bool(((result - right).abs().max() <= ROUGHLY * right.abs().max() + 1e-6).item())


@contextlib.contextmanager
def _same_random_numbers() -> Iterator[Callable[[], None]]:
    """Return a function that sets the generators back to where they are now, if the model draws random numbers."""
    states = (torch.get_rng_state(), torch.cuda.get_rng_state_all() if DEVICE == "cuda" else []) if IS_RANDOM else None

    def again() -> None:
        if states is not None:
            torch.set_rng_state(states[0])
            if DEVICE == "cuda":
                torch.cuda.set_rng_state_all(states[1])

    yield again


# -- the operator, for torch.compile, torch.export and torch.jit.trace ------------------------------------------------

# A file that is imported under a second name needs a second operator.
_original.imports = getattr(_original, "imports", 0) + 1
_library = torch.library.Library(f"stark_{_digest(KERNEL, ORIGINAL, SHAPES, SIZES)}_{_original.imports}", "DEF")


def _run_operator(key: str, tensors: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the kernel of the model that has these weights. Otherwise, or outside of the guards, run the original."""
    pointers = [weight.data_ptr() for weight in weights]
    for model in _models.get(key, ()):
        kernel = model._current()
        if [weight.data_ptr() for weight in kernel.weights.values()] == pointers:
            reason = model._why_not(tensors) or _why_not_sizes(tensors) or kernel.reason
            if reason is None:
                return kernel.run(tensors)  # type: ignore[no-any-return]
            _warn(reason)
    model, names = _find_model(key)
    results = _run_original(model, dict(zip(names, weights, strict=True)), tensors)
    return [_copy(result, result.stride()) for result in results]


def _differentiate_operator(key: str, tensors: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the original where a recorded program needs gradients."""
    if _needs_gradients(tensors, weights):
        model, names = _find_model(key)
        return _run_original(model, dict(zip(names, weights, strict=True)), tensors)
    with torch._C._AutoDispatchBelowAutograd():
        return _operator(key, tensors, weights)  # type: ignore[no-any-return]


def _describe_operator(key: str, tensors: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    model, names = _find_model(key)
    results = _run_original(model, dict(zip(names, weights, strict=True)), tensors)
    return [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device) for each in results]


def _find_model(key: str) -> tuple[nn.Module, list[str]]:
    for model in _models.get(key, ()):
        return model, list(_weights_of(model))
    raise RuntimeError("Make a ModelNew with the same arguments first: this program needs it.")


_library.define("run(str key, Tensor[] tensors, Tensor[] weights) -> Tensor[]")
_library.impl("run", _run_operator, "CompositeExplicitAutograd")
_library.impl("run", _differentiate_operator, "Autograd")
torch.library.register_fake(f"{_library.ns}::run", _describe_operator, lib=_library)
_operator = getattr(torch.ops, _library.ns).run.default


class _Differentiable(torch.autograd.Function):
    """Forward by the kernel, backward through the original."""

    @staticmethod
    def forward(ctx: Any, kernel: _Kernel, model: ModelNew, count: int, *tensors: torch.Tensor) -> Any:
        ctx.model, ctx.names, ctx.count = model, list(kernel.weights), count
        ctx.save_for_backward(*tensors)
        results = kernel.run(tensors[:count])
        ctx.mark_non_differentiable(*(each for each in results if not each.is_floating_point()))
        return tuple(results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        with torch.enable_grad():
            tensors = [each.detach().requires_grad_(each.requires_grad) for each in ctx.saved_tensors]
            weights = dict(zip(ctx.names, tensors[ctx.count :], strict=True))
            results = _run_original(ctx.model, weights, tensors[: ctx.count])
        pairs = [pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad]
        wanted = [each for each in tensors if each.requires_grad]
        found = torch.autograd.grad(
            [result for result, _ in pairs], wanted, [gradient for _, gradient in pairs], allow_unused=True
        )
        by_tensor = iter(found)
        return None, None, None, *(next(by_tensor) if each.requires_grad else None for each in tensors)


# -- the guards -------------------------------------------------------------------------------------------------------


def _why_not_weights(weights: Mapping[str, torch.Tensor]) -> str | None:
    if len({weight.device for weight in weights.values()}) > 1:
        return "the weights lie on several devices"
    for name, weight in weights.items():
        if type(weight) not in (torch.Tensor, nn.Parameter) or weight.is_inference():
            return f"{name} is no ordinary tensor"
        if weight.device.type != DEVICE:
            return f"{name} is on {weight.device.type}; the kernel was judged on {DEVICE}"
        if not weight.is_contiguous() or weight.data_ptr() % ALIGNMENT:
            return f"{name} is not contiguous or not aligned"
    return None


def _why_not_sizes(tensors: Tensors) -> str | None:
    shapes = tuple(tensor.shape for tensor in tensors)
    return None if shapes == SHAPES or _has_judged_sizes(shapes) else f"the kernel was judged {JUDGED}"


def _has_judged_sizes(shapes: Shapes) -> bool:
    """True if the shapes differ from the judged ones in one size alone, for which the kernel was found right."""
    if [len(shape) for shape in shapes] != [len(shape) for shape in SHAPES]:
        return False
    places = [(number, place) for number, shape in enumerate(shapes) for place in range(len(shape))]
    changed = [(number, place) for number, place in places if shapes[number][place] != SHAPES[number][place]]
    sizes = {shapes[number][place] for number, place in changed}
    return len(sizes) == 1 and any(changed == list(same) and least <= min(sizes) <= most for same, least, most in SIZES)


def _depends_on_mode(model: nn.Module) -> bool:
    """True if a module behaves otherwise in evaluation mode. The kernel was judged in training mode."""
    for module in model.modules():
        is_inert = getattr(module, "p", None) == 0 or getattr(module, "dropout", None) == 0
        kind = _original.Model if isinstance(module, ModelNew) else type(module)
        if not is_inert and "training" in inspect.getsource(kind):
            return True
    return False


@torch.compiler.assume_constant_result
def _warn(reason: str) -> bool:
    """Warn of a reason once. torch.compile runs this while it compiles."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"{TASK}: the original model runs in place of the kernel: {reason}.", stacklevel=6)
    return True


_warned: set[str] = set()


# -- the model --------------------------------------------------------------------------------------------------------


class ModelNew(_original.Model):  # type: ignore[name-defined, misc]
    """The original model, with the kernel in its place wherever the kernel was judged.

    Outside of that the original runs, with one warning that says why. With ``strict=True`` an error is raised there.
    """

    _kernel: _Kernel | None = None  # for the weights at the last call
    _own: frozenset[str] = frozenset()  # plain attributes of the original, which the kernel may have copied
    _is_changed = False  # one of them was set later

    def __init__(self, *args: Any, strict: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        own = frozenset(self.__dict__.keys() - nn.Module().__dict__.keys())
        self.strict, self._arguments, self._key = strict, (args, kwargs), _digest(args, sorted(kwargs.items()))
        self._depends_on_mode, self._own = _depends_on_mode(self), own
        _models.setdefault(self._key, weakref.WeakSet()).add(self)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._own:
            super().__setattr__("_is_changed", True)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_kernel"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        _models.setdefault(self._key, weakref.WeakSet()).add(self)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        kernel = self._kernel
        if kernel is not None and not kwargs and not _is_traced() and kernel.can_run_again(self, args):
            return kernel.run_again(args)
        return self._forward(args, kwargs)

    def _forward(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Find out if the kernel can run, in full, and say why if it cannot."""
        if kwargs:
            args = inspect.signature(_original.Model.forward).bind(self, *args, **kwargs).args[1:]
        tensors: list[torch.Tensor] = []
        if not _matches(ARGUMENTS, args, tensors):
            return self._run_original("the arguments are others than the judged ones", args)
        reason = self._why_not(tensors) or (None if torch.jit.is_tracing() else _why_not_sizes(tensors))
        if reason is not None:
            return self._run_original(reason, args)
        if _is_traced():
            return self._run_traced(tensors, args)
        kernel = self._current()
        if kernel.reason is not None:
            return self._run_original(kernel.reason, args)
        if not _needs_gradients(tensors, kernel.weights.values()):
            return _build(RESULT, kernel.run(tensors))
        if IS_RANDOM:
            return self._run_original("gradients need the same random numbers again", args)
        weights = kernel.weights.values()
        return _build(RESULT, _Differentiable.apply(kernel, self, len(tensors), *tensors, *weights))

    def _run_traced(self, tensors: list[torch.Tensor], args: Sequence[Any]) -> Any:
        """Call the operator, which a tracer records. Where gradients are needed it records the original."""
        weights = list(_weights_of(self).values())
        if _needs_gradients(tensors, weights):
            return self._run_original("gradients are needed while the model is traced", args)
        return _build(RESULT, _operator(self._key, tensors, weights))

    def _run_original(self, reason: str, args: Sequence[Any]) -> Any:
        if self.strict:
            raise NotJudged(f"{TASK}: the kernel cannot be used: {reason}.")
        _warn(reason)
        return super().forward(*args)

    def _current(self) -> _Kernel:
        """Return the kernel for the weights of now."""
        if self._kernel is None or not self._kernel.is_current():
            with _lock:
                self._kernel = _Kernel(self)
        return self._kernel

    def _why_never(self) -> str | None:
        """Return why no call can use the kernel as long as the model stays as it is."""
        if CHANGES_STATE:
            return "a call of the original changes its buffers, and the kernel's does not"
        bind = inspect.signature(_original.Model.__init__).bind
        mine, judged = bind(self, *self._arguments[0], **self._arguments[1]), bind(self, *_build(CONSTRUCTED, _Any()))
        mine.apply_defaults()
        judged.apply_defaults()
        if mine.arguments != judged.arguments:
            return "the model was made with other arguments than the judged one"
        inner = [child for child in self.modules() if child is not self]
        has_hooks = any(child._forward_hooks or child._forward_pre_hooks for child in inner)
        return "a module inside has hooks" if has_hooks else None

    def _why_not(self, tensors: list[torch.Tensor]) -> str | None:
        """Return why this call cannot use the kernel."""
        for tensor, dtype in zip(tensors, DTYPES, strict=True):
            if tensor.dtype is not dtype:
                return f"an input is {tensor.dtype}; the kernel was judged with {dtype}"
            if tensor.device.type != DEVICE:
                return f"an input is on {tensor.device.type}; the kernel was judged on {DEVICE}"
            if not tensor.is_contiguous():
                return "an input is not contiguous"
        if torch.is_autocast_enabled(DEVICE):
            return "autocast is on"
        if torch._C._are_functorch_transforms_active():
            return "a transform of torch.func is active"
        if not self.training and self._depends_on_mode:
            return "the model is in evaluation mode, in which it differs from the judged training mode"
        return "an attribute of the model was changed" if self._is_changed else None


def _is_traced() -> bool:
    """True if a call has to go through torch's dispatcher, because something records it."""
    return torch.compiler.is_dynamo_compiling() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack() > 0


def _needs_gradients(*tensors: Iterable[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for group in tensors for tensor in group)
