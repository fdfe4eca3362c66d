"""The input itself, and its sums: one output is an input."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x, x.sum(-1)


def get_inputs():
    return [torch.randn(512, 1024)]


def get_init_inputs():
    return []
