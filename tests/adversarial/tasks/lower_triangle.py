"""The lower triangle of a matrix: half of the result is zero."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.tril()


def get_inputs():
    return [torch.randn(4096, 4096)]


def get_init_inputs():
    return []
