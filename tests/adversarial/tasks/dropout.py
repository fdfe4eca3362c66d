"""Dropout: random, and alike on both sides."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(x) + 1.0


def get_inputs():
    return [torch.randn(512, 1024)]


def get_init_inputs():
    return []
