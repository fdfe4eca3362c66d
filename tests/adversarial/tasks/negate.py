"""Negation."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return -x


def get_inputs():
    return [torch.randn(2048, 2048)]


def get_init_inputs():
    return []
