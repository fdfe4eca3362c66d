"""A linear layer whose result is activated, scaled per feature and added to a skip connection."""

import torch
from torch import nn
from torch.nn import functional as F

ROWS = 2048
INPUTS = 128
OUTPUTS = 1024


class Model(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.scale = nn.Parameter(1.0 + 0.2 * torch.randn(outputs))

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return skip + self.scale * F.gelu(self.linear(x))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, INPUTS), torch.randn(ROWS, OUTPUTS)]


def get_init_inputs() -> list[int]:
    return [INPUTS, OUTPUTS]
