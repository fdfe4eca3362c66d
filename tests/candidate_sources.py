"""Sources of candidates for the task of ``conformance.evaluator``: right but for what a test adds."""

from __future__ import annotations

from adversarial.processes import CHANNELS

HEAD = "import ctypes, os, stat, sys, time\nimport torch\nfrom torch import nn\n" + CHANNELS

MODEL = """
class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def right(self, x):
        return torch.relu(x * 2.0 + self.bias)

    def forward(self, x):
        {forward}
"""


def forward(body: str) -> str:
    return HEAD + MODEL.replace("{forward}", body)


def at_import(line: str) -> str:
    return HEAD + line + MODEL.replace("{forward}", "return self.right(x)")
