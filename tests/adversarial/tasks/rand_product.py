"""A matrix product of numbers between 0 and 1, as KernelBench draws them."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b.t()


def get_inputs():
    return [torch.rand(512, 16_384), torch.rand(512, 16_384)]


def get_init_inputs():
    return []
