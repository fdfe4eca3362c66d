"""A convolution with a bias."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.convolution = nn.Conv2d(before, after, 3, padding=1)

    def forward(self, x):
        return self.convolution(x)


def get_inputs():
    return [torch.randn(4, 16, 48, 48)]


def get_init_inputs():
    return [16, 32]
