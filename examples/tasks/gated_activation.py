"""A gated activation: each feature is scaled and shifted, squashed, gated, damped and added to the input.

Sixteen elementwise operations over 8 MB. Eager PyTorch reads and writes memory for each of them; one pass is enough.
"""

import torch
from torch import nn

ROWS = 1024
FEATURES = 2048


class Model(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(1.0 + 0.2 * torch.randn(features))
        self.bias = nn.Parameter(0.2 * torch.randn(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * self.scale + self.bias
        value = h / (1.0 + h.abs())
        gate = torch.clamp(value * 0.75 + 0.5, 0.0, 1.0)
        mixed = gate * value / (1.0 + x * x)
        return x + mixed / (1.0 + mixed.abs())


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs() -> list[int]:
    return [FEATURES]
