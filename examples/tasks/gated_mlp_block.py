"""A whole small model: the feed-forward half of a transformer layer, with RMS norm, a gated MLP and a residual."""

import torch
from torch import nn
from torch.nn import functional as F

TOKENS = 2048
FEATURES = 128
HIDDEN = 256
EPSILON = 1e-5


class Model(nn.Module):
    def __init__(self, features: int, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(1.0 + 0.2 * torch.randn(features))
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean_square = x.pow(2).mean(dim=-1, keepdim=True)
        h = x * torch.rsqrt(mean_square + self.epsilon) * self.weight
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(TOKENS, FEATURES)]


def get_init_inputs() -> list[float]:
    return [FEATURES, HIDDEN, EPSILON]
