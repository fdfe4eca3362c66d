"""Root-mean-square normalisation of each row, with a learned scale per feature.

Eager PyTorch squares, averages, adds, takes the root and multiplies twice, each time over all of memory; a row fits into
the cache, so one pass that reads it twice is enough.
"""

import torch
from torch import nn

ROWS = 1024
FEATURES = 2048
EPSILON = 1e-5


class Model(nn.Module):
    def __init__(self, features: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(1.0 + 0.2 * torch.randn(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        return x * torch.rsqrt(mean_square + self.epsilon) * self.weight


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[float]:
    return [FEATURES, EPSILON]
