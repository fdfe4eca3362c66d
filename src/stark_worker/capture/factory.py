"""Finds what the command line names: ``package.module:factory`` makes a module, ``--inputs`` makes its inputs."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stark_worker.capture.faults import CaptureFault, run_user_code

SHAPE = re.compile(r"(?:(\w+)=)?(?:(\w+):)?((?:\d+x)*\d+)")
INTEGERS_BELOW = 100
FORMS = "--inputs takes package.module:function, or a shape such as 2x128x768, ids=int64:2x128 for a named argument."


def load_object(name: str) -> Any:
    """Return what ``package.module:name`` names; the current folder is searched too."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise CaptureFault(f"{name!r} is not written as package.module:name.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return run_user_code(f"{name} cannot be loaded", lambda: attrgetter(attribute)(importlib.import_module(module)))


def make_module(name: str) -> nn.Module:
    """Return the module that a factory makes, or the module itself."""
    made = load_object(name)
    if isinstance(made, nn.Module):
        return made
    if not callable(made):
        raise CaptureFault(f"{name} is a {type(made).__name__}, neither a module nor a function that makes one.")
    module = run_user_code(f"{name}() fails", made)
    if not isinstance(module, nn.Module):
        raise CaptureFault(f"{name}() returns a {type(module).__name__}, no nn.Module.")
    return module


def make_inputs(words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Return the inputs that the words of ``--inputs`` describe."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for word in words:
        if found := SHAPE.fullmatch(word):
            name, dtype, shape = found.groups()
            tensor = _make_tensor(dtype or "float32", [int(size) for size in shape.split("x")])
            if name:
                kwargs[name] = tensor
            else:
                args.append(tensor)
        elif ":" in word:
            more_args, more_kwargs = split_inputs(load_object(word)())
            args += more_args
            kwargs |= more_kwargs
        else:
            raise CaptureFault(f"{word!r} describes no input. {FORMS}")
    return args, kwargs


def split_inputs(inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and named arguments: a dict is named, a tuple or list positional, all else one argument."""
    if isinstance(inputs, Mapping):
        return [], dict(inputs)
    return (list(inputs), {}) if type(inputs) in (tuple, list) else ([inputs], {})


def _make_tensor(dtype: str, shape: list[int]) -> torch.Tensor:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise CaptureFault(f"torch has no type {dtype}. {FORMS}")
    if kind is torch.bool:
        return torch.ones(shape, dtype=torch.bool)
    return (
        torch.randn(shape, dtype=kind)
        if kind.is_floating_point
        else torch.randint(0, INTEGERS_BELOW, shape, dtype=kind)
    )


def find_block(
    model: nn.Module, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[nn.Module, Any, Any]:
    """Run a model; return the block of that name with the inputs of its first call."""
    try:
        block = model.get_submodule(name)
    except AttributeError as error:
        names = ", ".join(each for each, _ in list(model.named_modules())[1:9])
        raise CaptureFault(f"the model has no block {name}; it has {names}, ...") from error
    calls: list[tuple[Any, Any]] = []
    handle = block.register_forward_pre_hook(
        lambda _, given, named: calls.append((detach(given), detach(named))), with_kwargs=True
    )
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        handle.remove()
    if not calls:
        raise CaptureFault(f"the model does not call {name} on these inputs.")
    return block, *calls[0]


def detach(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(detach, value))
    return {key: detach(item) for key, item in value.items()} if type(value) is dict else value
