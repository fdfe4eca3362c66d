"""A convolution followed by a scale and shift per channel, a hard swish and a skip connection."""

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 8
CHANNELS = 32
SIZE = 64


class Model(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.scale = nn.Parameter(1.0 + 0.2 * torch.randn(channels, 1, 1))
        self.shift = nn.Parameter(0.2 * torch.randn(channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x) * self.scale + self.shift
        return x + h * F.relu6(h + 3.0) / 6.0


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs() -> list[int]:
    return [CHANNELS]
