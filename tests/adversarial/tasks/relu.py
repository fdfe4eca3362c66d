"""ReLU of values that are all positive as the task draws them: close to the identity there."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.rand(1024, 1024)]


def get_init_inputs():
    return []
