"""Softmax of rows of numbers between 0 and 1, as KernelBench draws them."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


def get_inputs():
    return [torch.rand(512, 1024)]


def get_init_inputs():
    return []
