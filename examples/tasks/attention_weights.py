"""The weights of an attention: products of queries and keys, scaled, softly capped, biased, and a softmax of each row."""

import torch
from torch import nn

HEADS = 8
TOKENS = 512
WIDTH = 32
CAP = 10.0


class Model(nn.Module):
    def __init__(self, tokens: int, width: int, cap: float) -> None:
        super().__init__()
        self.scale = width**-0.5
        self.cap = cap
        self.bias = nn.Parameter(0.5 * torch.randn(tokens, tokens))

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        scores = torch.matmul(queries, keys.transpose(-2, -1)) * self.scale
        capped = self.cap * torch.tanh(scores / self.cap)
        return torch.softmax(capped + self.bias, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(HEADS, TOKENS, WIDTH), torch.randn(HEADS, TOKENS, WIDTH)]


def get_init_inputs() -> list[float]:
    return [TOKENS, WIDTH, CAP]
