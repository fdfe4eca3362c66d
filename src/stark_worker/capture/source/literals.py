"""Writes live values as Python expressions: numbers, containers, functions, and the contents of tensors."""

from __future__ import annotations

import base64
import enum
import functools
import math
import types
import zlib
from typing import TYPE_CHECKING, Any

import torch

from stark_worker.capture.faults import CaptureFault

if TYPE_CHECKING:
    from stark_worker.capture.source.definitions import Definitions

SIMPLE = (bool, int, str, bytes, type(None), type(Ellipsis), complex)
MAX_LISTED = 64  # numbers of a tensor that are written one by one
MAX_PACKED_BYTES = 2**20
UNPACK = '''
def _unpack(text, dtype, *shape):
    """Return a tensor from its compressed bytes."""
    data = bytearray(zlib.decompress(base64.b85decode(text)))
    return torch.frombuffer(data, dtype=dtype).reshape(shape).clone()
'''


def format_value(value: Any, definitions: Definitions, path: str) -> str:
    """Write a value as an expression. ``path`` names it in a message."""
    if (text := _format_plain(value, definitions, path)) is not None:
        return text
    if isinstance(value, torch.Tensor):
        return format_tensor(value, definitions, path)
    if isinstance(value, functools.partial):
        definitions.use_import("import functools")
        parts = [value.func, *value.args]
        texts = [format_value(each, definitions, path) for each in parts]
        texts += [f"{name}={format_value(each, definitions, path)}" for name, each in value.keywords.items()]
        return f"functools.partial({', '.join(texts)})"
    if isinstance(value, enum.Enum):
        return f"{definitions.refer(type(value), path)}.{value.name}"
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.ModuleType):
        return definitions.refer(value, path)
    if callable(value) and hasattr(torch.nn.functional, getattr(value, "__name__", "")):
        return definitions.refer(value, path)
    raise CaptureFault(f"{path} is a {type(value).__name__}, which cannot be written as source.")


def _format_plain(value: Any, definitions: Definitions, path: str) -> str | None:
    """Write numbers, text and containers; None for anything else."""
    if isinstance(value, enum.Enum):
        return None
    if type(value) in SIMPLE:
        return repr(value)
    if type(value) is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return repr(value) if not isinstance(value, torch.device) else f'torch.device("{value.type}")'
    if isinstance(value, int | float | str):  # subclasses, such as a string with more methods
        return repr(next(kind for kind in (bool, int, float, str) if isinstance(value, kind))(value))
    return _format_container(value, definitions, path)


def _format_container(value: Any, definitions: Definitions, path: str) -> str | None:
    if isinstance(value, dict):
        items = [
            f"{format_value(key, definitions, path)}: {format_value(item, definitions, f'{path}[{key!r}]')}"
            for key, item in value.items()
        ]
        return f"{{{', '.join(items)}}}"
    if not isinstance(value, list | tuple | set | frozenset):
        return None
    texts = [format_value(item, definitions, f"{path}[{number}]") for number, item in enumerate(value)]
    listed = ", ".join(texts)
    if isinstance(value, list):
        return f"[{listed}]"
    if isinstance(value, tuple):
        return f"({listed},)" if len(texts) == 1 else f"({listed})"
    kind = "frozenset" if isinstance(value, frozenset) else "set"
    return f"{kind}([{listed}])"


def shape_text(shape: Any) -> str:
    return ", ".join(map(str, shape)) if len(shape) else "()"


def format_tensor(tensor: torch.Tensor, definitions: Definitions, path: str) -> str:
    """Write a tensor with exactly these values."""
    tensor = tensor.detach().cpu()
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise CaptureFault(f"{path} is a sparse or quantised tensor, which cannot be written as source.")
    if (pattern := _format_pattern(tensor)) is not None:
        return pattern
    dtype = repr(tensor.dtype)
    if tensor.numel() <= MAX_LISTED:
        finite = not tensor.is_floating_point() or bool(tensor.isfinite().all())
        if finite and tensor.dtype is not torch.bfloat16:
            return f"torch.tensor({tensor.tolist()}, dtype={dtype})"
    raw = tensor.contiguous().flatten().view(torch.uint8)
    packed = base64.b85encode(zlib.compress(bytes(raw.tolist()), 9)).decode()
    if len(packed) > MAX_PACKED_BYTES:
        raise CaptureFault(f"{path} holds {tensor.numel():,} values without a pattern, too many to write as source.")
    definitions.use_import("import base64")
    definitions.use_import("import zlib")
    definitions.use_helper("_unpack", UNPACK)
    return f"_unpack({packed!r}, {dtype}, {shape_text(tensor.shape)})"


def _format_pattern(tensor: torch.Tensor) -> str | None:
    """Write a constant, a range or a triangle; None for other values."""
    shape, kind = shape_text(tensor.shape), _dtype_argument(tensor)
    if tensor.numel() == 0:
        return f"torch.empty({shape}{kind})"
    first = tensor.flatten()[0]
    if bool((tensor == first).all()):
        return format_constant(tensor, first.item())
    if tensor.dtype in (torch.int64, torch.int32) and tensor.numel() > 2:
        size = tensor.shape[-1]
        line = torch.arange(size, dtype=tensor.dtype) + first
        if size > 1 and bool((tensor == line).all()):
            text = f"torch.arange({int(first)}, {int(first) + size}{kind if tensor.dtype is torch.int32 else ''})"
            return text if tensor.ndim == 1 else f"{text}.expand({shape}).contiguous()"
    return _format_triangle(tensor) if tensor.ndim >= 2 and tensor.numel() > 4 else None


def _format_triangle(tensor: torch.Tensor) -> str | None:
    ones = torch.ones_like(tensor)
    for name in ("tril", "triu"):
        for diagonal in (0, 1, -1):
            if torch.equal(getattr(ones, name)(diagonal), tensor):
                shape = f"torch.ones({shape_text(tensor.shape)}{_dtype_argument(tensor)})"
                return f"{shape}.{name}({diagonal if diagonal else ''})"
    return None


def format_constant(tensor: torch.Tensor, value: Any) -> str:
    """Write a tensor of one value."""
    shape, kind = shape_text(tensor.shape), _dtype_argument(tensor)
    if value in (0, 1) and tensor.dtype is not torch.bool:
        return f"torch.{'ones' if value else 'zeros'}({shape}{kind})"
    sizes = f"({shape},)" if tensor.ndim == 1 else "()" if tensor.ndim == 0 else f"({shape})"
    text = f'float("{value}")' if isinstance(value, float) and not math.isfinite(value) else repr(value)
    return f"torch.full({sizes}, {text}{kind})"


def _dtype_argument(tensor: torch.Tensor) -> str:
    """Return the argument for a type other than the default one; floating-point tensors follow the precision."""
    if tensor.dtype in (torch.float32, torch.bfloat16, torch.float16):
        return ""
    return f", dtype={tensor.dtype!r}"
