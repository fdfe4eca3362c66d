"""A whole small model: two convolutions with smooth activations, an average over each map, and a classifier."""

import torch
from torch import nn
from torch.nn import functional as F

BATCH = 16
CHANNELS = 3
WIDTH = 24
SIZE = 48
CLASSES = 10


class Model(nn.Module):
    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, kernel_size=3, padding=1)
        self.body = nn.Conv2d(width, width, kernel_size=3, stride=2, padding=1)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.stem(x))
        h = F.gelu(self.body(h))
        return self.head(h.mean(dim=(2, 3)))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs() -> list[int]:
    return [CHANNELS, WIDTH, CLASSES]
