"""Makes torchvision importable where torch has no GPU part: the operators of its C++ library are declared there."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import torch

_declared: list[torch.library.Library] = []  # an operator is there as long as its library


def declare_operators() -> None:
    """Declare every operator that ``import torchvision`` describes, unless its own library does."""
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None or _declared:
        return
    text = (Path(spec.origin).parent / "_meta_registrations.py").read_text(encoding="utf-8")
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in dict.fromkeys(re.findall(r'register_(?:fake|meta)\("(?:torchvision::)?(\w+)', text)):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor x) -> Tensor")
    _declared.append(library)
