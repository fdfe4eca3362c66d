"""Sums the first values of each row; how many is an input of one integer."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, count):
        return torch.where(torch.arange(x.shape[-1], device=x.device) < count, x.exp(), 0.0).sum(-1)


def get_inputs():
    return [torch.randn(2048, 2048), torch.tensor([512])]


def get_init_inputs():
    return []
