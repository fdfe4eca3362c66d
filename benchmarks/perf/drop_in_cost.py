"""Measures the cost of a drop-in's guards: a call of the drop-in next to a call of the bare kernel, in turns.

    python benchmarks/perf/drop_in_cost.py [--target cpu|cuda] [--save]

The kernel adds up to four small tensors, so that the time is the host's. Each side is timed in rounds of many calls;
the fastest round of each counts. A GPU computes behind the host, and each round waits for it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import timeit
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src", "tests")]

import record
import torch

from drop_in.cases import HEAD, Case, model
from drop_in.uses import load
from stark_worker.protocol.request import Target

CALLS, ROUNDS, ALLOWED_US = 50, 600, 5.0  # short rounds: other programs disturb few of them
NAMES = "wxyz"


def adding(count: int, target: Target) -> Case:
    """Return a task with a weight and so many inputs, and a kernel for it."""
    names = ", ".join(NAMES[:count])
    parts = {
        "init": "self.weight = nn.Parameter(torch.rand(n))",
        "forward": f"return torch.stack([{names}]).sum(0) * self.weight",
        "arguments": f"self, {names}",
    }
    inputs = f"def get_inputs():\n    return [torch.randn(4, 16) for _ in range({count})]\n\n\n"
    task = HEAD + model(**parts) + inputs + "def get_init_inputs():\n    return [16]\n"
    return Case(f"add {count}", task, HEAD + model(**parts, name="ModelNew"), target=target)


def measure(count: int, target: Target, folder: Path) -> dict[str, float]:
    """Return the microseconds of one call of the drop-in and of the kernel."""
    file = folder / f"drop_in_of_{count}.py"
    file.write_text(adding(count, target).drop_in(), encoding="utf-8")
    device = target.device_kind
    new = load(file).ModelNew(16).to(device)
    inputs = [torch.randn(4, 16, device=device) for _ in range(count)]

    def us_per_call(module: torch.nn.Module) -> float:
        seconds = timeit.timeit(lambda: module(*inputs), number=CALLS)
        if device == "cuda":
            torch.cuda.synchronize()
        return 1e6 * seconds / CALLS

    with torch.no_grad():
        for _ in range(3):
            new(*inputs)
        kernel = new._stark.kernel
        if kernel is None or not kernel.find_before(inputs):
            raise SystemExit(f"the kernel is not used the quick way: {kernel and kernel.reason}")
        rounds = [(us_per_call(new), us_per_call(kernel._module)) for _ in range(ROUNDS)]
    return {"inputs": count, "drop_in_us": min(each[0] for each in rounds), "bare_us": min(each[1] for each in rounds)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Target, default=Target.CPU, choices=[Target.CPU, Target.CUDA])
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stark-drop-in-") as folder:
        found = [measure(count, options.target, Path(folder)) for count in range(1, len(NAMES) + 1)]
    for each in found:
        mine, bare = each["drop_in_us"], each["bare_us"]
        print(f"{each['inputs']} inputs: drop-in {mine:.2f} us, kernel {bare:.2f} us, cost {mine - bare:.2f} us")
    device = "cpu" if options.target is Target.CPU else torch.cuda.get_device_name()
    if options.save:
        record.write(record.result_file("drop-in-cost", device), record.facts(device) | {"calls": found})
    return 0 if all(each["drop_in_us"] - each["bare_us"] <= ALLOWED_US for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
