"""A whole small model: three linear layers with activations and a log-softmax over the classes."""

import torch
from torch import nn
from torch.nn import functional as F

ROWS = 4096
INPUTS = 64
HIDDEN = 256
CLASSES = 100


class Model(nn.Module):
    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.silu(self.first(x))
        h = F.silu(self.second(h))
        return F.log_softmax(self.last(h), dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(ROWS, INPUTS)]


def get_init_inputs() -> list[int]:
    return [INPUTS, HIDDEN, CLASSES]
