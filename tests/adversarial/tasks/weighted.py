"""Sums exponentials with weights that are the same in every call. Seven of eight weights are zero."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, weight):
        return (x.exp() * weight).sum(-1)


def get_inputs():
    return [torch.rand(2048, 2048), (torch.arange(2048).expand(2048, 2048) % 8 == 0).float()]


def get_init_inputs():
    return []
