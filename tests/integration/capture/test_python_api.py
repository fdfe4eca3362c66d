"""The Python API as its users call it: a live module in a script and in a notebook's kernel."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import nbformat
from nbclient import NotebookClient

from paths import ROOT
from stark_process import environment

LAYERS = """
import torch
from torch import nn
from .ops import act

class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x, *, scale):
        y = act(self.norm(x)) * scale["by"]
        return y, {"mean": y.mean(dim=-1)}
"""
SCRIPT = """
import asyncio, sys, torch
import stark
from house.layers import Block

model = torch.nn.ModuleDict({"block": Block()}).eval()
inputs = ((torch.randn(512, 256),), {"scale": {"by": torch.rand(256)}})
result = asyncio.run(stark.aoptimize(model["block"], inputs, attempts=1, run="first", allow_weak_sandbox=True))
before = model["block"](*inputs[0], **inputs[1])
model["block"] = result.module
after = model["block"](*inputs[0], **inputs[1])
assert torch.allclose(before[0], after[0], atol=1e-4)
assert torch.allclose(before[1]["mean"], after[1]["mean"], atol=1e-4)
assert list(model.state_dict()) == ["block.norm.weight", "block.norm.bias"]
assert model["block"].norm.weight is result.live.module.norm.weight
loaded = stark.load(result.save("block.pt"))
assert torch.allclose(loaded(*inputs[0], **inputs[1])[0], before[0], atol=1e-4)
assert len(repr(result)) < 200 and result._repr_html_().startswith("<table>")
print(type(model["block"]).__name__, result.improved)
"""


def make_package(folder):
    (folder / "house").mkdir()
    (folder / "house" / "__init__.py").write_text("")
    (folder / "house" / "ops.py").write_text("import torch\n\ndef act(x):\n    return torch.nn.functional.gelu(x)\n")
    (folder / "house" / "layers.py").write_text(LAYERS)


def test_a_module_with_local_imports_keywords_and_a_nested_result_comes_back(tmp_path):
    make_package(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    kind, improved = done.stdout.split()
    assert kind == ("Replacement" if improved == "True" else "Block")
    assert re.search(r"^original  [\d.]+ ms$", done.stderr, re.MULTILINE), "progress is shown"


def test_the_example_of_the_readme_runs_in_a_notebook(tmp_path):
    readme = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert "stark.optimize" in code
    code = code.replace('model="anthropic:claude-sonnet-4-6"', "attempts=1, allow_weak_sandbox=True")
    notebook = nbformat.v4.new_notebook()
    cells = [
        "import torch\nfrom torch import nn",
        "class Block(nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, dim=-1), x.sum(dim=-1)",
        "net = nn.ModuleDict({'block': Block()}).eval()\nx = torch.randn(256, 512)\nbefore = net['block'](x)",
        code,
        "assert all(torch.allclose(*pair, atol=1e-4) for pair in zip(before, net['block'](x)))\nresult",
    ]
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    client = NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment())
    shown = json.dumps(notebook.cells[-1]["outputs"])
    assert "<table>" in shown
    assert "original" in shown


def test_a_module_is_captured_and_ranked_on_the_command_line(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "class Slow(nn.Module):\n    def forward(self, x):\n"
        "        return torch.softmax(torch.erf(x), -1).cumsum(-1)\n\n"
        "def make():\n    return nn.Sequential(nn.Linear(64, 4096), Slow(), nn.ReLU()).eval()\n"
    )
    command = [sys.executable, "-m", "stark.cli", "capture", "mine:make", "--inputs", "256x64"]
    done = subprocess.run(
        [*command, "--rank", "--best", "1"], cwd=tmp_path, capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[2].split()[:2] == ["1", "Slow"]
    assert "class Model(nn.Module)" in (tmp_path / "1.py").read_text()
    again = subprocess.run(
        [*command, "--block", "0.x"], cwd=tmp_path, capture_output=True, text=True, env=environment()
    )
    assert again.returncode == 2
    assert "no block 0.x" in again.stderr
