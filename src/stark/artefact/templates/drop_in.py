from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import inspect
import itertools
import linecache
import operator
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._C._dynamo import guards
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.fx import _symbolic_trace
from torch.nn.modules import module as torch_module
from torch.optim.optimizer import register_optimizer_step_post_hook
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

ALIGNMENT = 16  # bytes: kernels load several numbers at a time
ROUGHLY = 0.03  # of the largest value, in the comparison at the first call
SCALES = (0.5, 0.02)  # by which weights are changed on trial; large results can overflow
LEAST_MOVED, OFF_SHARE = 1e-3, 0.1  # of a result by changed weights: a module that noticed them is closer
MAX_TRIED = 64  # weights; a kernel with more is made again when one is written
LOADERS = ("load", "load_inline")
INERT = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)

Tensors = Sequence[torch.Tensor]
Weights = Mapping[str, torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]


class NotJudged(RuntimeError):
    """A call lies outside of what was judged, and the model is strict."""


class _Unfit(Exception):
    """The kernel cannot be used. The text says why."""


# -- the two sources --------------------------------------------------------------------------------------------------


def _digest(*parts: object) -> str:
    """Return a hash of values; of tensors all bytes count."""
    return hashlib.sha256(repr([_plain(part) for part in parts]).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous()
        return str(data.dtype), tuple(data.shape), bytes(data.flatten().view(torch.uint8).tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


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


_lock: threading.RLock = cpp_extension.__dict__.setdefault("_stark_lock", threading.RLock())  # one for all drop-ins


@contextlib.contextmanager
def _own_names() -> Iterator[None]:
    """Name extensions that are built meanwhile by a hash of their source: two kernels never share a library."""

    def renamed(load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            name = f"stark_{_digest(args, kwargs, torch.__version__, KERNEL)}"
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
    """True if a value has this structure and these constants; append its tensors. Lists may be tuples."""
    ((kind, content),) = packed.items()
    if kind == "tensor":
        tensors.append(value)
        return isinstance(value, torch.Tensor)
    if kind == "dict":
        is_dict = type(value) is dict and list(value) == [key for key, _ in content]
        return is_dict and all(_matches(item, value[key], tensors) for key, item in content)
    if kind in ("list", "tuple"):
        is_sequence = type(value) in (list, tuple) and len(value) == len(content)
        return is_sequence and all(_matches(*pair, tensors) for pair in zip(content, value, strict=True))
    return type(value) is type(content) and bool(value == content)


def _flatten(result: Any) -> list[torch.Tensor]:
    tensors: list[torch.Tensor] = []
    if not _matches(RESULT, result, tensors):
        raise _Unfit("the result has another structure than the judged one")
    return tensors


class _Any:
    """Equals every tensor, and stands for any number of them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, torch.Tensor)

    def __getitem__(self, number: int) -> _Any:
        return self


IS_PLAIN = [*ARGUMENTS] == ["list"] and all([*item] == ["tensor"] for item in ARGUMENTS["list"])
IS_ONE = [*RESULT] == ["tensor"]


# -- the original, as it was made and with any weights ----------------------------------------------------------------

_pristine: dict[str, nn.Module] = {}  # by the arguments of their constructors; their weights hold no data
_pristine_lock = threading.RLock()


class _Plain(nn.Module):
    """Calls the original's forward() of a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Any:
        return _original.Model.forward(self.model, *args)


def _keep_pristine(key: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Keep a model as its constructor makes it: what a user does to a model never reaches it."""
    with _lock:
        if key not in _pristine:
            fork = torch.random.fork_rng(range(torch.cuda.device_count()))
            with fork, torch.inference_mode(False), torch.device("cpu"):
                model = _original.Model(*args, **kwargs)
            for child in model.modules():
                for name, weight in child._parameters.items():
                    if weight is not None:
                        child._parameters[name] = nn.Parameter(weight.detach().to("meta"), requires_grad=False)
                for name in child._buffers.keys() - child._non_persistent_buffers_set:
                    if (buffer := child._buffers[name]) is not None:
                        child._buffers[name] = buffer.to("meta")
            _pristine[key] = model


def _run_original(key: str, weights: Weights, tensors: Tensors) -> list[torch.Tensor]:
    """Run a pristine model with these weights."""
    if key not in _pristine:
        raise RuntimeError("Make a ModelNew with the same arguments first: this program needs it.")
    named = {f"model.{name}": weight for name, weight in weights.items()}
    given = tuple(_build(ARGUMENTS, tensors))
    with _pristine_lock:  # meanwhile the model holds these weights
        return _flatten(functional_call(_Plain(_pristine[key]), named, given, tie_weights=False))


def _weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers. A tied weight appears under all its names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters | dict(model.named_buffers(remove_duplicate=False))


def _kind(weight: torch.Tensor | None) -> str:
    return "missing" if weight is None else f"{weight.dtype}{list(weight.shape)}"


# -- changes of a model -----------------------------------------------------------------------------------------------

_MODULE = frozenset(nn.Module().__dict__)  # names that every module has
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_steps = 0  # of optimisers: fused ones write weights without a trace


def _count_step(*_: object) -> None:
    global _steps
    _steps += 1


register_optimizer_step_post_hook(_count_step)


class _Snapshot:
    """The state of a model's modules and weights at one time. It does not keep the model alive."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        places = [place for child in modules for place in (child._parameters, child._buffers)]
        weights = [weight for place in places for weight in place.values() if weight is not None]
        opened, others = _open_containers(
            value for child in modules if not isinstance(child, nn.RNNBase) for value in _own(child).values()
        )
        ids = set(map(id, weights))
        self.keeps_weights = any(id(each) in ids for each in others)  # besides those that are registered
        others = [each for each in others if id(each) not in ids]
        others += [child._buffers[name] for child in modules for name in child._non_persistent_buffers_set]
        kinds = [
            _dict_of(kind) for kind in itertools.takewhile(lambda kind: kind is not nn.Module, type(model).__mro__)
        ]
        containers = [*opened, *places, *(child._modules for child in modules), *map(vars, modules[1:]), *kinds]
        mappings = [each for each in containers if isinstance(each, dict)]
        self._lists = [each for each in containers if not isinstance(each, dict)]
        self._listed = list(_chain(self._lists))
        self._mappings = mappings
        self._writes = self._count_writes(model)  # first: another thread may write meanwhile
        own = {name: value for name, value in vars(model).items() if name != "_stark"}
        self._model, self._names, self._own = weakref.ref(model), list(own), list(own.values())
        # Views show what is there at any time.
        self._keys = [mapping.keys() for mapping in mappings]
        self._values = [mapping.values() for mapping in mappings]
        self._known_keys, self._known = list(_chain(self._keys)), list(_chain(self._values))
        self._typed, self._type = [*modules[1:], *weights], type(model)
        self._types = list(map(type, self._typed))
        self._hooks = [child.__dict__[name] for child in modules[1:] for name in HOOKS]
        self._weights, self._others = _Stamps(weights), _Stamps(others)  # a kernel may have copied others
        self._is_inference = torch.is_inference_mode_enabled()

    def has_hooks(self) -> bool:
        return any(self._hooks)

    def sees_all_writes(self) -> bool:
        """True if torch counts how often each tensor is written that is no weight."""
        return self._others.are_counted()

    def is_current(self, looks_at_values: bool, looks_at_layouts: bool = True) -> bool:
        """True if nothing was replaced since. With ``looks_at_values`` no weight was written either."""
        model = self._model()
        return (
            type(model) is self._type
            and (self._count_writes(model) == self._writes or self._has_same_names(model))
            and list(map(type, self._typed)) == self._types
            and (not self._lists or self._has_same_lists())
            and self._weights.are_current(looks_at_values, looks_at_layouts)
            and self._others.are_current(True, True)
            and not any(self._hooks)
            and self._is_inference == torch.is_inference_mode_enabled()
        )

    def _count_writes(self, model: nn.Module) -> list[Any]:
        return [_count_writes(model.__dict__), *map(_count_writes, self._mappings)]

    def _has_same_names(self, model: nn.Module) -> bool:
        """True if what was written meanwhile is what was there."""
        writes, own = self._count_writes(model), model.__dict__
        is_same = (
            len(own) == len(self._names) + ("_stark" in own)
            and all(map(operator.is_, map(own.get, self._names), self._own))
            and sum(map(len, self._values)) == len(self._known)
            and all(map(operator.is_, _chain(self._values), self._known))
            and list(_chain(self._keys)) == self._known_keys
        )
        self._writes = writes if is_same else self._writes
        return is_same

    def _has_same_lists(self) -> bool:
        is_as_long = sum(map(len, self._lists)) == len(self._listed)
        return is_as_long and all(map(operator.is_, _chain(self._lists), self._listed))


def _dict_of(kind: type) -> Any:
    """Return the dictionary behind the view that ``vars`` shows of a class."""
    return next(each for each in gc.get_referents(vars(kind)) if isinstance(each, dict))


# Returns a number that changes when a dictionary does. torch may change what is not public; then names are compared.
_count_writes: Callable[[Any], Any] = getattr(guards, "dict_version", lambda mapping: object())
_chain = itertools.chain.from_iterable


def _open_containers(values: Iterable[Any]) -> tuple[list[Any], list[torch.Tensor]]:
    """Return all containers in some values, however deep, and all tensors in these."""
    containers: list[Any] = []
    tensors: list[torch.Tensor] = []
    waiting, seen = list(values), set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, list | tuple | set | dict) and id(value) not in seen:
            seen.add(id(value))
            containers.append(value)
            waiting += value.values() if isinstance(value, dict) else value
    return containers, tensors


class _Stamps:
    """Where tensors lay at one time, and how often each was written."""

    def __init__(self, tensors: Iterable[torch.Tensor | None]) -> None:
        self._tensors = [tensor for tensor in tensors if tensor is not None]
        self._counted = [tensor for tensor in self._tensors if not tensor.is_inference()]
        self._pointers, self._versions = self._find_pointers(), self._find_versions()
        self._layouts = self._find_layouts()

    def are_counted(self) -> bool:
        return len(self._counted) == len(self._tensors)

    def are_current(self, looks_at_values: bool, looks_at_layouts: bool) -> bool:
        return not self._tensors or (
            self._find_pointers() == self._pointers
            and (not looks_at_values or self._find_versions() == self._versions)
            and (not looks_at_layouts or self._find_layouts() == self._layouts)
        )

    def _find_pointers(self) -> list[int]:
        return list(map(torch.Tensor.data_ptr, self._tensors))

    def _find_versions(self) -> list[int]:
        return [_steps, *[tensor._version for tensor in self._counted]]

    def _find_layouts(self) -> list[tuple[Any, ...]]:
        return [(tensor.shape, tensor.stride(), tensor.dtype) for tensor in self._tensors]


def _own(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that not every module has."""
    return {name: value for name, value in module.__dict__.items() if name not in _MODULE and name != "_stark"}


def _why_changed(model: nn.Module, pristine: nn.Module) -> str | None:
    """Return how a model differs from one that its constructor just made, apart from weights and mode."""
    mine, judged = (dict(each.named_modules(remove_duplicate=False)) for each in (model, pristine))
    if list(mine) != list(judged) or list(_weights_of(model)) != list(_weights_of(pristine)):
        return "modules or weights were added, removed or put in another order"
    for name, child in mine.items():
        where = f"{name}." if name else ""
        if name and type(child) is not type(judged[name]):
            return f"the module {name} was replaced"
        own, right = _own(child), _own(judged[name])
        for attribute in {**own, **right}:
            is_new = attribute not in right
            if is_new and not hasattr(type(judged[name]), attribute) and attribute not in ORIGINAL:
                continue  # the original cannot know it
            if is_new or attribute not in own or not _is_same(own[attribute], right[attribute]):
                return f"the attribute {where}{attribute} was changed"
    return None


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, nn.Parameter | weakref.ref):
        return True  # a module that lists its weights; they are compared elsewhere
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, types.FunctionType):
        return one.__code__ is other.__code__ and not (one.__closure__ or one.__defaults__ or one.__kwdefaults__)
    return isinstance(one, INERT) and bool(one == other)


def _depends_on_mode(model: nn.Module) -> bool:
    """True if a module may behave otherwise in evaluation mode. The kernel was judged in training mode."""
    if "training" in ORIGINAL:
        return True
    for child in model.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd) and child.p == 0:
            continue
        if isinstance(child, nn.RNNBase | nn.MultiheadAttention) and child.dropout == 0:
            continue
        for kind in type(child).__mro__:
            is_known = kind in (nn.Module, object) or kind.__module__ in (_original.__name__, __name__)
            if not is_known and (not kind.__module__.startswith("torch.nn.") or "training" in inspect.getsource(kind)):
                return True
    return False


# -- the kernel -------------------------------------------------------------------------------------------------------

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


@contextlib.contextmanager
def _changed(weights: Tensors, scale: float) -> Iterator[None]:
    """Change weights, each number by about its own size times ``scale``, and set them back."""
    kept = [weight.clone() for weight in weights]
    try:
        for number, weight in enumerate(weights):
            weight.copy_(_alter(weight, scale, number))
        yield
    finally:
        for weight, old in zip(weights, kept, strict=True):
            weight.copy_(old)


def _alter(weight: torch.Tensor, scale: float, seed: int) -> torch.Tensor:
    if weight.dtype == torch.bool:
        return ~weight
    if not _is_inexact(weight):
        return weight.flatten().flip(0).view_as(weight)  # the same numbers: they may be indices
    numbers = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return weight + (scale * (weight.abs().mean() + 0.01) * numbers.to(weight.device)).to(weight.dtype)


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return how far two results are apart, as a share of the larger one; of integers how many differ."""
    if one.shape != other.shape or not one.numel():
        return float(one.shape != other.shape)
    if not _is_inexact(one):
        return float((one != other).float().mean())
    share = (one - other).abs().max() / (other.abs().max() + 1e-30)
    return float(share) if bool(share.isfinite()) else float("inf")


class _Call:
    """A call for which all guards held. torch's own guards of compiled code recognise another like it."""

    def __init__(self, tensors: Tensors, weights: Tensors, stride: tuple[int, ...]) -> None:
        shapes = [list(each.shape) for each in (*tensors, *weights)]
        strides = [list(each.stride()) for each in (*tensors, *weights)]
        own = guards.TensorGuards(*tensors, *weights, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
        self.stride, self._weights, self._check = stride, weights, own.check
        self._check_globals = guards.GlobalStateGuard().check
        self._stream = _find_stream()

    def is_like(self, args: Sequence[Any]) -> bool:
        """True if inputs, weights and torch's state are the same but for the values of tensors."""
        for tensor in args:
            if type(tensor) is not torch.Tensor or tensor.is_nested:  # the check below would end the process
                return False
        if not (len(args) == len(DTYPES) and self._check_globals() and self._check(*args, *self._weights)):
            return False
        for tensor in args:
            if tensor.data_ptr() % ALIGNMENT:
                return False
        return _why_not_now() is None and _find_stream() == self._stream


def _find_stream() -> tuple[int, int] | None:
    """Return the current device and stream of a GPU; nothing of a stream that is captured."""
    if DEVICE == "cpu" or torch.cuda.is_current_stream_capturing():
        return None
    device = torch._C._cuda_getDevice()
    return device, torch._C._cuda_getCurrentRawStream(device)


def _make_module(key: str, args: Sequence[Any], kwargs: Mapping[str, Any], weights: Weights) -> nn.Module:
    """Make the kernel's module as it was judged, with these weights in place of its own."""
    device = next((weight.device for weight in weights.values()), torch.device(DEVICE))
    indices = [device.index or 0] if device.type == "cuda" else []
    with _own_names(), torch.inference_mode(False), torch.random.fork_rng(indices), torch.device("cpu"):
        module: nn.Module = _run_source("kernel", KERNEL).ModelNew(*args, **kwargs).to(device, CAST)
    pristine, kept = _pristine[key], module.state_dict()
    own = {name: each for name, each in _weights_of(module).items() if name in weights or name in kept}  # no scratch
    for name in {**own, **weights}:
        if name not in own and name not in pristine.state_dict() and name in weights:
            if not _is_same(weights[name], _weights_of(pristine)[name]):
                raise _Unfit(f"the buffer {name} was changed, which the kernel computes itself")
        elif _kind(own.get(name)) != _kind(weights.get(name)):
            raise _Unfit(f"{name} is {_kind(weights.get(name))}; the kernel was judged with {_kind(own.get(name))}")
    memory: dict[int, int] = {}
    with torch.inference_mode(False):
        for name in own.keys() & weights.keys():
            if memory.setdefault(id(own[name]), weights[name].data_ptr()) != weights[name].data_ptr():
                raise _Unfit(f"{name} is not tied to another weight, as it was when the kernel was judged")
            own[name].requires_grad_(False)
            own[name].data = weights[name].detach()
    return module


def _count_owners(tensor: torch.Tensor) -> tuple[int, ...]:
    """Count all that hold a tensor or its memory."""
    uses = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return sys.getrefcount(tensor), tensor._use_count(), uses


def _owners_of_new() -> tuple[int, ...]:
    results = [torch.empty(1)]
    return _count_owners(results[0])


OWNERS = _owners_of_new()


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _copy(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_close(result: torch.Tensor, right: torch.Tensor) -> bool:
    if result.shape != right.shape or result.dtype != right.dtype:
        return False
    if not right.numel() or not (_is_inexact(right) and bool(right.isfinite().all())):
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

_models: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()  # all of ModelNew, by their names
_numbers = itertools.count(1)
# A file that is imported under a second name needs a second operator.
_original.imports = getattr(_original, "imports", 0) + 1
_library = torch.library.Library(f"stark_{_digest(KERNEL, ORIGINAL, SHAPES, SIZES)}_{_original.imports}", "DEF")


def _run_operator(name: str, tensors: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the kernel of a model. Run the original outside of the guards, and if the model has other weights now."""
    model = _models.get(name)
    kernel = model._stark.kernel_of(model) if model is not None else None
    if kernel and [each.data_ptr() for each in kernel.weights.values()] == [each.data_ptr() for each in weights]:
        reason = _why_not(tensors) or _why_not_sizes(tensors) or kernel.why_not(tensors)
        if reason is None:
            return kernel.run(tensors)  # type: ignore[no-any-return]
        _warn(reason)
        if _why_not_mode(model) is None:  # a program keeps the mode in which it was made
            results = _flatten(_original.Model.forward(model, *_build(ARGUMENTS, tensors)))
            return [_copy(result, result.stride()) for result in results]
    return [_copy(result, result.stride()) for result in _run_unnamed(name, weights, tensors)]


def _differentiate_operator(name: str, tensors: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run the original where a recorded program needs gradients."""
    if _needs_gradients(tensors, weights):
        return _run_unnamed(name, weights, tensors)
    with torch._C._AutoDispatchBelowAutograd():
        return _operator(name, tensors, weights)  # type: ignore[no-any-return]


def _describe_operator(name: str, tensors: list[torch.Tensor], weights: list[torch.Tensor]) -> list[torch.Tensor]:
    results = _run_unnamed(name, weights, tensors)
    return [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device) for each in results]


def _run_unnamed(name: str, weights: Tensors, tensors: Tensors) -> list[torch.Tensor]:
    key = name.partition("/")[0]
    if key not in _pristine:
        raise RuntimeError("Make a ModelNew with the same arguments first: this program needs it.")
    return _run_original(key, dict(zip(_weights_of(_pristine[key]), weights, strict=True)), tensors)


_library.define("run(str name, Tensor[] tensors, Tensor[] weights) -> Tensor[]")
_library.impl("run", _run_operator, "CompositeExplicitAutograd")
_library.impl("run", _differentiate_operator, "Autograd")
torch.library.register_fake(f"{_library.ns}::run", _describe_operator, lib=_library)
_operator = getattr(torch.ops, _library.ns).run.default


class _Differentiable(torch.autograd.Function):
    """Forward by the kernel, backward through the original. Second derivatives go through the original too."""

    @staticmethod
    def forward(ctx: Any, kernel: _Kernel, flags: Sequence[bool], count: int, *tensors: torch.Tensor) -> Any:
        ctx.key, ctx.names, ctx.count = kernel.key, list(kernel.weights), count
        ctx.save_for_backward(*tensors)
        results = kernel.run(tensors[:count])
        ctx.mark_non_differentiable(*(result for result, flag in zip(results, flags, strict=True) if not flag))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        again = torch.is_grad_enabled()  # a second derivative may be wanted
        with torch.enable_grad():
            saved = ctx.saved_tensors
            tensors = saved if again else [each.detach().requires_grad_(each.requires_grad) for each in saved]
            weights = dict(zip(ctx.names, tensors[ctx.count :], strict=True))
            results = _run_original(ctx.key, weights, tensors[: ctx.count])
        pairs = [pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad]
        wanted = [each for each in tensors if each.requires_grad]
        outputs, given = [result for result, _ in pairs], [gradient for _, gradient in pairs]
        found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True, create_graph=again))
        return None, None, None, *(next(found) if each.requires_grad else None for each in tensors)


# -- the guards -------------------------------------------------------------------------------------------------------


def _why_never(model: ModelNew, snapshot: _Snapshot) -> str | None:
    """Return why no call can use the kernel as long as the model stays as it is."""
    state, reason = model._stark, _unfit.get(model._stark.key) or _why_not_mode(model)
    if reason is not None:
        return reason
    bind = inspect.signature(_original.Model.__init__).bind
    mine, judged = bind(model, *state.arguments[0], **state.arguments[1]), bind(model, *_build(CONSTRUCTED, _Any()))
    mine.apply_defaults()
    judged.apply_defaults()
    if mine.arguments != judged.arguments:
        return "the model was made with other arguments than the judged one"
    if snapshot.has_hooks():
        return "a module inside has hooks"
    if snapshot.keeps_weights:
        return "an attribute of the model holds a weight"
    if not snapshot.sees_all_writes():
        return "a tensor of the model was made in inference mode, where torch does not count writes"
    for kind in type(model).__mro__[: type(model).__mro__.index(ModelNew) + 1]:
        known = _names_of_model if kind is ModelNew else {"forward"}
        own = {name for name in vars(kind).keys() - known if hasattr(_original.Model, name)}
        if own := {name for name in own if not name.startswith("__")}:
            return f"{kind.__name__} overrides {', '.join(sorted(own))}"
    return _why_changed(model, _pristine[state.key])


def _why_not_mode(model: ModelNew) -> str | None:
    if CHANGES_STATE:
        return "a call of the original changes its state, and the kernel's does not"
    if model._stark.depends_on_mode and not all(child.training for child in model.modules()):
        return "a module is in evaluation mode; the kernel was judged in training mode"
    return None


def _why_not_weights(weights: Weights) -> str | None:
    if len({weight.device for weight in weights.values()}) > 1:
        return "the weights lie on several devices"
    for name, weight in weights.items():
        if type(weight) not in (torch.Tensor, nn.Parameter) or weight.is_inference():
            return f"{name} is no ordinary tensor"
        if weight.device.type != DEVICE:
            return f"{name} is on {weight.device.type}; the kernel was judged on {DEVICE}"
        if not weight.is_contiguous() or weight.data_ptr() % ALIGNMENT or weight.is_conj() or weight.is_neg():
            return f"{name} is not contiguous or not aligned"
    return None


def _why_not_now() -> str | None:
    """Return why torch's state forbids the kernel."""
    if torch.is_autocast_enabled(DEVICE):
        return "autocast is on"
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "a transform of torch.func or forward-mode differentiation is active"
    if torch._C._len_torch_function_stack() or torch.get_default_dtype() is not torch.float32:
        return "another default device or type is set"
    if (
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    ):
        return "hooks are set for all modules"
    return None


def _why_not(tensors: Tensors) -> str | None:
    """Return why a call cannot use the kernel, apart from the sizes of its inputs."""
    for tensor, dtype in zip(tensors, DTYPES, strict=True):
        if tensor.is_nested:
            return "an input is a nested tensor"
        if tensor.dtype is not dtype:
            return f"an input is {tensor.dtype}; the kernel was judged with {dtype}"
        if tensor.device.type != DEVICE or tensor.device != tensors[0].device:
            return f"an input is on {tensor.device.type}; the kernel was judged on {DEVICE}"
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            return "an input is not contiguous"
        if not _is_traced() and (tensor.is_conj() or tensor.is_neg()):
            return "an input waits to be conjugated or negated"
    return None


def _why_not_sizes(tensors: Tensors) -> str | None:
    shapes = tuple([tensor.shape for tensor in tensors])
    return None if shapes == SHAPES or _has_judged_sizes(shapes) else f"the kernel was judged {JUDGED}"


def _has_judged_sizes(shapes: Shapes) -> bool:
    """True if the shapes differ from the judged ones in one size alone, for which the kernel was found right."""
    if [len(shape) for shape in shapes] != [len(shape) for shape in SHAPES]:
        return False
    places = [(number, place) for number, shape in enumerate(shapes) for place in range(len(shape))]
    changed = [(number, place) for number, place in places if shapes[number][place] != SHAPES[number][place]]
    sizes = {shapes[number][place] for number, place in changed}
    return len(sizes) == 1 and any(changed == list(same) and least <= min(sizes) <= most for same, least, most in SIZES)


def _keep(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _needs_gradients(*tensors: Iterable[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for group in tensors for tensor in group)


def _is_observed() -> bool:
    """True if something records torch's operators, such as torch.fx: a kernel would hide them."""
    return torch._C._len_torch_dispatch_stack() > 0 or _symbolic_trace._is_fx_tracing_flag


def _is_traced() -> bool:
    """True if a program is made of this call."""
    return torch.compiler.is_dynamo_compiling() or torch._C._is_tracing() or torch.compiler.is_exporting()


@torch.compiler.assume_constant_result
def _warn(reason: str) -> bool:
    """Warn of a reason once. torch.compile runs this while it compiles."""
    if reason not in _warned:
        _warned.add(reason)
        warnings.warn(f"{TASK}: the original model runs in place of the kernel: {reason}.", stacklevel=6)
    return True


_warned: set[str] = set()


# -- the model --------------------------------------------------------------------------------------------------------


class _State:
    """What a ModelNew keeps besides the original's attributes."""

    def __init__(self, model: ModelNew, args: tuple[Any, ...], kwargs: dict[str, Any], strict: bool) -> None:
        self.arguments, self.strict, self.key = (args, kwargs), strict, _digest(args, kwargs)
        self.depends_on_mode = _depends_on_mode(model)
        self.kernel: _Kernel | None = None  # for the model as it was at the last call
        self.flags: dict[tuple[bool, ...], list[bool]] = {}  # results that need gradients, by tensors that do
        self._model = weakref.ref(model)
        _keep_pristine(self.key, args, kwargs)
        self.name = f"{self.key}/{next(_numbers)}"
        _models[self.name] = model

    def is_of(self, model: ModelNew) -> bool:
        return self._model() is model

    def kernel_of(self, model: ModelNew) -> _Kernel:
        """Return the kernel for the model as it is now."""
        if self.kernel is None or not self.kernel.is_current():
            with _lock:
                self.kernel = _Kernel(model)
        return self.kernel


_takes_strict = {"strict"} & inspect.signature(_original.Model.__init__).parameters.keys()


class ModelNew(_original.Model):  # type: ignore[name-defined, misc]
    """The original model, with the kernel in its place wherever the kernel was judged.

    Outside of that the original runs, with one warning that says why. With ``strict=True`` an error is raised there.
    """

    _stark: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        strict = False if _takes_strict else kwargs.pop("strict", False)
        super().__init__(*args, **kwargs)
        self._stark = _State(self, args, kwargs, strict)

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        if isinstance(state, dict) and self._stark is not None:
            state = {**state, "_stark": (*self._stark.arguments, self._stark.strict)}
        return state

    def __setstate__(self, state: Any) -> None:
        kept = state.pop("_stark", None) if isinstance(state, dict) else None
        super().__setstate__(state)
        if kept is not None:
            self._stark = _State(self, *kept)

    def __prepare_scriptable__(self) -> nn.Module:
        """Return the original with the same modules and weights: TorchScript cannot compile what surrounds a kernel."""
        model = _original.Model.__new__(_original.Model)
        model.__dict__.update({name: value for name, value in vars(self).items() if name != "_stark"})
        return model  # type: ignore[no-any-return]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        state, is_traced = self._stark, _is_traced()
        if state is None or (not is_traced and (_is_observed() or not state.is_of(self))):
            return super().forward(*args, **kwargs)  # what lacks a state is a copy
        kernel = state.kernel
        if not is_traced and kernel is not None and not kwargs and (before := kernel.find_before(args)):
            return kernel.run_again(before, args)
        return self._find_way(args, kwargs)

    def _find_way(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Find out if the kernel can run, in full, and say why if it cannot."""
        tensors: list[torch.Tensor] = []
        if kwargs:
            bound = inspect.signature(_original.Model.forward).bind(self, *args, **kwargs)
            if bound.kwargs:
                return self._run_original("it was called with keywords that were not judged", args, kwargs)
            args, kwargs = bound.args[1:], {}
        if not _matches(ARGUMENTS, args, tensors):
            return self._run_original("the arguments are others than the judged ones", args)
        reason = _why_not(tensors)
        if reason is None and _is_traced():
            return self._run_traced(tensors, args)
        if reason is None and not all(type(each) in (torch.Tensor, nn.Parameter) for each in tensors):
            reason = "an input is no ordinary tensor"
        reason = reason or _why_not_sizes(tensors) or _why_not_now()
        if reason is None:
            kernel = self._stark.kernel_of(self)
            reason = kernel.why_not(tensors)
        if reason is not None:
            return self._run_original(reason, args)
        try:
            if _needs_gradients(tensors, kernel.weights.values()):
                return self._run_with_gradients(kernel, tensors, args)
            results = kernel.run(tensors)
            kernel.remember(tensors)
            return _build(RESULT, results)
        except _Unfit as unfit:
            kernel.reason = str(unfit)
            return self._run_original(kernel.reason, args)

    def _run_traced(self, tensors: list[torch.Tensor], args: Sequence[Any]) -> Any:
        """Call the operator, which a tracer records. Where gradients are needed it records the original."""
        weights = list(_weights_of(self).values())
        if _needs_gradients(tensors, weights):
            return self._run_original("gradients are needed while the model is traced", args)
        if (reason := _why_not_mode(self)) is not None:
            return self._run_original(reason, args)
        return _build(RESULT, _operator(self._stark.name, tensors, weights))

    def _run_with_gradients(self, kernel: _Kernel, tensors: list[torch.Tensor], args: Sequence[Any]) -> Any:
        if IS_RANDOM:
            return self._run_original("gradients need the same random numbers again", args)
        inputs = [*tensors, *kernel.weights.values()]
        wanted = tuple(each.requires_grad for each in inputs)
        if wanted not in self._stark.flags:  # the original's results show which of them need gradients
            with torch.autograd.graph.saved_tensors_hooks(_keep, _keep):  # no checkpoint counts what is saved here
                results = _run_original(kernel.key, kernel.weights, tensors)
            self._stark.flags[wanted] = [result.requires_grad for result in results]
        return _build(RESULT, _Differentiable.apply(kernel, self._stark.flags[wanted], len(tensors), *inputs))

    def _run_original(self, reason: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Any:
        if self._stark.strict:
            raise NotJudged(f"{TASK}: the kernel cannot be used: {reason}.")
        _warn(reason)
        return super().forward(*args, **kwargs or {})


_names_of_model = frozenset(vars(ModelNew))
ModelNew.forward.__wrapped__ = _original.Model.forward  # type: ignore[attr-defined]  # its signature, for torch.fx
