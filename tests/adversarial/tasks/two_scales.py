"""Two results of very different size in one tensor."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.linear = nn.Linear(features, features)

    def forward(self, x):
        return torch.cat([x * 1e6, torch.tanh(self.linear(x))], dim=-1)


def get_inputs():
    return [torch.randn(512, 512)]


def get_init_inputs():
    return [512]
