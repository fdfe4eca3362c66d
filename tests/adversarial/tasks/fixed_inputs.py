"""A matrix product whose inputs are the same whenever they are drawn."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, features))

    def forward(self, x):
        return x @ self.weight


def get_inputs():
    return [torch.linspace(-1.0, 1.0, 1024 * 1024).view(1024, 1024).sin()]


def get_init_inputs():
    return [1024]
