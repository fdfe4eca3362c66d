"""The place of the largest value of each row: integers."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.argmax(-1)


def get_inputs():
    return [torch.randn(1024, 1024)]


def get_init_inputs():
    return []
