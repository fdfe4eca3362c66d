"""Sums of 8,192 squares: long enough for the order of summing to show."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return (x * x).sum(-1)


def get_inputs():
    return [torch.randn(512, 8192)]


def get_init_inputs():
    return []
