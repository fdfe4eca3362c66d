"""The baselines of a task: PyTorch eager and torch.compile.

A baseline is a candidate: the task's own model, compiled as a whole. It gets the same inputs, checks and clock.
"""

from __future__ import annotations

from stark_worker.protocol.request import Entry

EAGER = "eager"


COMPILED = "torch.compile default"


COMPILE_MODES = {COMPILED: "default", "torch.compile max-autotune": "max-autotune"}


BASELINES = (EAGER, *COMPILE_MODES)


COMPILE_S = 900.0  # max-autotune tries many kernels at its first call


def baseline_source(task_source: str, baseline: str) -> tuple[str, Entry]:
    """Return the source of a baseline as a candidate, and the class to load."""
    if baseline == EAGER:
        return task_source, Entry.REFERENCE
    return f"{task_source.rstrip()}\n{_COMPILED.format(mode=COMPILE_MODES[baseline])}", Entry.CANDIDATE


# Torch's compile workers use torch's own ptxas if it has one. The process that asks them uses Triton's, so it finds
# nothing in the cache and compiles every kernel again, one after the other. Here it uses the same ptxas as they do.
_COMPILED = """

import torch as _torch

try:
    from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path
except ImportError:  # a torch that does it otherwise
    pass
else:
    _set_triton_ptxas_path()


class ModelNew(Model):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._compiled = _torch.compile(super().forward, mode="{mode}")

    def forward(self, *inputs):
        return self._compiled(*inputs)
"""
