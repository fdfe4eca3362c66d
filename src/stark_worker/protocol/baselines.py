"""What a kernel is compared with: PyTorch eager and torch.compile, judged by the same path as any candidate. No torch.

A baseline is a candidate like any other: the task's own model, compiled as a whole. So it gets the same inputs, the
same checks and the same clock.
"""

from __future__ import annotations

EAGER = "eager"


COMPILED = "torch.compile default"


MODES = {COMPILED: "default", "torch.compile max-autotune": "max-autotune"}


BASELINES = (EAGER, *MODES)


COMPILE_S = 900.0  # max-autotune tries many kernels at its first call


def baseline_source(task_source: str, baseline: str) -> tuple[str, str]:
    """The candidate that stands for a baseline, and the class in it to load."""
    if baseline == EAGER:
        return task_source, "Model"
    return f"{task_source.rstrip()}\n{_COMPILED.format(mode=MODES[baseline])}", "ModelNew"


# The processes in which torch compiles take torch's own ptxas, where it has one. Who asked them takes Triton's, finds
# nothing of what they compiled and compiles all of it again, one kernel after the other; here it does as they do.
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
