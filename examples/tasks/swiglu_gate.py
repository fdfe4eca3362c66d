"""The gate of a gated linear unit: the swish of one tensor times another, softly capped.

Two exponentials per element and eight operations over 16 MB; eager PyTorch goes through memory for each of them.
"""

import torch
from torch import nn
from torch.nn import functional as F

ROWS = 1024
FEATURES = 2048
CAP = 3.0


class Model(nn.Module):
    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        mixed = F.silu(gate) * value
        return self.cap * torch.tanh(mixed / self.cap)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, FEATURES), torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[float]:
    return [CAP]
