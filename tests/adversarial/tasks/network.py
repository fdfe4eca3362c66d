"""Three layers whose output hardly varies when their biases dominate."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layers = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(features, features), nn.Tanh())])

    def forward(self, x):
        return self.layers(x)


def get_inputs():
    return [torch.randn(256, 256)]


def get_init_inputs():
    return [256]
