"""Sums the values that a mask leaves. The mask is the same in every call."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, mask):
        return torch.where(mask, x.exp(), 0.0).sum(-1)


def get_inputs():
    return [torch.randn(4096, 2048), torch.arange(2048).expand(4096, 2048) % 8 == 0]


def get_init_inputs():
    return []
