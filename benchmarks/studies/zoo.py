"""Captures the twelve modules, optimises each with the playbook, and puts it back into its model.

    python benchmarks/studies/zoo.py [--attempts 4]

A module comes back working if its model returns what it returned before. Where nothing is faster, the original stays.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src", "tests")]

import record
import torch
from torch import nn
from zoo_modules import ENTRIES, Entry

import stark
from stark.core.errors import StarkError
from stark_worker.capture.calls import flatten
from stark_worker.capture.factory import find_block, split_inputs
from torchvision_operators import declare_operators


def run(entry: Entry, folder: Path, attempts: int) -> dict[str, Any]:
    """Return the row of one module."""
    torch.manual_seed(0)
    model, inputs = entry.make()
    args, kwargs = split_inputs(inputs)
    before = call(model, args, kwargs)
    block, given, named = find_block(model, entry.block, args, kwargs) if entry.block else (model, args, kwargs)
    options = {"attempts": attempts, "run": folder, "progress": False, "allow_weak_sandbox": True}
    try:
        result = stark.optimize(block, (tuple(given), named), **options)
    except StarkError as error:
        return {"kind": entry.kind, "faster": False, "stays": str(error)}
    if entry.block:
        model.set_submodule(entry.block, result.module)
    else:
        model = result.module
    works = all(map(is_close, before, call(model, args, kwargs)))
    speedup = round(result.speedup, 2) if result.improved and result.speedup else None
    return {"kind": entry.kind, "faster": result.improved, "speedup": speedup, "works": works}


def call(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return all tensors of the model's result."""
    found: list[torch.Tensor] = []
    with torch.no_grad():
        flatten(to_plain(model(*args, **kwargs)), found, "the result")
    return found


def to_plain(result: Any) -> Any:
    """Return a model's output without caches."""
    if isinstance(result, Mapping):
        return {key: value for key, value in result.items() if isinstance(value, torch.Tensor)}
    return result


def is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-3 * float(one.abs().max()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=4)
    options = parser.parse_args()
    declare_operators()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, entry) in enumerate(ENTRIES.items()):
            rows[name] = run(entry, Path(folder) / str(number), options.attempts)
            print(name, rows[name], flush=True)
            faster = sum(row["faster"] for row in rows.values())
            found = {"torch": torch.__version__, "attempts": options.attempts, "faster": faster, "modules": rows}
            file = record.result_file("zoo", "cpu")
            file.write_text(json.dumps({**record.facts(), **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
