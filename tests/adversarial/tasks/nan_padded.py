"""A block, and rows of NaN where nothing is known yet."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return nn.functional.pad(x, (0, 0, 0, 7 * x.shape[0]), value=float("nan"))


def get_inputs():
    return [torch.randn(256, 2048)]


def get_init_inputs():
    return []
