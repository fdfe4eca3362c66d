"""The work of models, counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from stark_worker.protocol.bound import Reason, Work
from stark_worker.roofline.trace import trace_call
from stark_worker.roofline.work import least_work

N, FLOAT = 1000, 4


def count(call: Callable[..., object], *inputs: torch.Tensor, weights: object = (), tf32: bool = False):
    """Return the work of a call, and the reasons that make it doubtful."""

    def run() -> list[torch.Tensor]:
        with torch.no_grad():
            result = call(*inputs)
        return [result] if isinstance(result, torch.Tensor) else list(result)  # type: ignore[call-overload]

    model = weights if isinstance(weights, nn.Module) else call if isinstance(call, nn.Module) else None
    kept = [*model.parameters(), *model.buffers()] if model else list(weights)  # type: ignore[call-overload]
    work, suspicions = least_work(trace_call(run, inputs, kept), tf32)
    return work, {each.reason for each in suspicions}


def floats(read: int, weights: int, written: int, **operations: int) -> Work:
    return Work(FLOAT * read, FLOAT * weights, FLOAT * written, operations)


X, Y = torch.randn(N), torch.randn(N)
M = torch.randn(20, 50)


@pytest.mark.parametrize(
    ("call", "inputs", "work"),
    [
        pytest.param(lambda x: torch.relu(x * 2 + 1), [X], floats(N, 0, N), id="elementwise"),
        pytest.param(lambda x, y: x + y, [X, Y], floats(2 * N, 0, N), id="two inputs"),
        pytest.param(lambda x: x.sum(), [X], floats(N, 0, 1), id="reduction"),
        pytest.param(lambda x: torch.softmax(x, -1), [M], floats(N, 0, N), id="softmax"),
        pytest.param(lambda x: x.t(), [M], floats(0, 0, 0), id="a view is no work"),
        pytest.param(lambda x: x.t().contiguous(), [M], floats(N, 0, N), id="transposition"),
        pytest.param(lambda x: x[:, :10] * 2, [M], floats(200, 0, 200), id="a part of an input"),
        pytest.param(lambda x: x[:, :10] * x[:, 5:15], [M], floats(300, 0, 200), id="parts that overlap"),
        pytest.param(lambda x: x[:, ::2].sum() + x[:, 1::2].prod(), [M], floats(N, 0, 1), id="parts of all"),
        pytest.param(lambda x: x.unfold(0, 3, 1).sum(-1), [X], floats(N, 0, N - 2), id="windows overlap"),
        pytest.param(lambda x: x.expand(50, 1000) * 2, [X], floats(N, 0, 50 * N), id="expanded inside"),
        pytest.param(lambda x: x * 2, [torch.randn(1, 20).expand(50, 20)], floats(20, 0, N), id="an expanded input"),
        pytest.param(lambda x, y: x * 2, [X, Y], floats(N, 0, N), id="an unused input"),
        pytest.param(lambda x: (x + 1, x.sum()), [X], floats(N, 0, N + 1), id="two outputs"),
        pytest.param(lambda x: (x * 2).chunk(2), [X], floats(N, 0, N), id="outputs that share memory"),
        pytest.param(lambda x: (y := x * 2, y), [X], floats(N, 0, N), id="an output twice"),
        pytest.param(lambda x: x.add_(1), [X.clone()], floats(N, 0, N), id="in place"),
        pytest.param(lambda x: x[:100].mul_(2), [X.clone()], floats(100, 0, 100), id="a part in place"),
        pytest.param(lambda x: torch.empty_like(x).copy_(x), [X], floats(N, 0, N), id="a copy into new memory"),
        pytest.param(lambda x: (x * 2, torch.ones(N)), [X], floats(N, 0, N), id="a constant output"),
        pytest.param(lambda x: x.to(torch.float16), [X], Work(4 * N, 0, 2 * N, {}), id="another type"),
        pytest.param(lambda x: x + 1, [torch.arange(N)], Work(8 * N, 0, 8 * N, {}), id="integers"),
        pytest.param(lambda x: x > 0, [X], Work(4 * N, 0, N, {}), id="booleans"),
        pytest.param(lambda x: x * 2, [torch.empty(0, 3)], Work(0, 0, 0, {}), id="nothing"),
        pytest.param(lambda x: x @ x.t(), [M], floats(N, 0, 400, fp32=2 * 20 * 20 * 50), id="a product with itself"),
        pytest.param(lambda x, y: (x @ y, x)[1] * 2, [M, M.t()], floats(N, 0, N), id="a product for nothing"),
        pytest.param(
            lambda x, y: torch.bmm(x, y), [M.view(2, 10, 50), M.view(2, 50, 10)],
            floats(N, 0, 200, fp32=2 * 2 * 10 * 10 * 50), id="a batched product of shared memory",
        ),
        pytest.param(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v), [torch.randn(1, 2, 8, 16)] * 3,
            floats(256, 0, 256, fp32=2 * 2 * 2 * 8 * 8 * 16), id="attention",
        ),
        pytest.param(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [torch.randn(1, 2, 8, 16)] * 3,
            floats(256, 0, 256, fp32=2 * 2 * 2 * 36 * 16), id="causal attention",
        ),
    ],
)  # fmt: skip
def test_the_work_of_a_call_on_inputs(call, inputs, work):
    found, reasons = count(call, *inputs)
    assert (found, reasons) == (work, set())


@pytest.mark.parametrize(
    ("model", "given", "work"),
    [
        (nn.Linear(50, 30), (20, 50), floats(N, 1530, 600, fp32=2 * 20 * 50 * 30)),
        (nn.LayerNorm(50), (20, 50), floats(N, 100, N)),
        (nn.Sequential(nn.Linear(50, 30), nn.GELU(), nn.Linear(30, 50)), (20, 50),
         floats(N, 3080, N, fp32=2 * 2 * 20 * 50 * 30)),
        (nn.Conv2d(3, 4, 3, bias=False), (2, 3, 8, 8), floats(384, 108, 288, fp32=2 * 2 * 108 * 36)),
        (nn.Conv2d(3, 4, 1, stride=2), (2, 3, 8, 8), floats(96, 16, 128, fp32=2 * 2 * 12 * 16)),
        (nn.Conv1d(4, 4, 3, padding=1, groups=4, bias=False), (1, 4, 10), floats(40, 12, 40, fp32=2 * 4 * 28)),
        (nn.ConvTranspose2d(3, 4, 2, stride=2, bias=False), (1, 3, 5, 5), floats(75, 48, 400, fp32=2 * 48 * 25)),
        (nn.MaxPool2d(2), (1, 4, 10, 10), floats(400, 0, 100)),
    ],
)  # fmt: skip
def test_the_work_of_a_layer(model, given, work):
    found, reasons = count(model, torch.randn(given))
    if isinstance(model, nn.Conv2d) and model.stride == (2, 2):
        found = Work(FLOAT * 96, found.weight_bytes, found.output_bytes, found.operations)  # a library reads it whole
    assert found == work
    assert reasons <= {Reason.CONVOLUTION}


def test_a_weight_that_is_not_used_does_not_move():
    layer = nn.Linear(50, 30)
    found, _ = count(lambda x: x * layer.bias[0], M, weights=layer)
    assert found.weight_bytes == FLOAT


def test_tied_weights_move_once():
    layer = nn.Linear(50, 50, bias=False)
    found, _ = count(lambda x: torch.relu(layer(torch.relu(layer(x)))), M, weights=layer)
    assert found == floats(N, 2500, N, fp32=2 * 2 * 20 * 50 * 50)


def test_products_of_weights_alone_can_be_prepared():
    one, other = torch.randn(50, 40), torch.randn(40, 30)
    found, _ = count(lambda x: x @ (one @ other), M, weights=[one, other])
    assert found == floats(N, 50 * 40 + 40 * 30, 600, fp32=2 * 20 * 50 * 30)


def test_a_recurrent_layer_multiplies_at_every_step():
    layer = nn.LSTM(8, 16)
    found, reasons = count(lambda x: layer(x)[0], torch.randn(5, 3, 8), weights=layer)
    assert found.operations == {"fp32": 2 * 5 * 3 * 4 * 16 * (8 + 16)}
    assert Reason.UNCOUNTED not in reasons


def test_products_count_in_the_precision_of_their_operands():
    half = torch.ones(10, 10, dtype=torch.bfloat16)
    assert count(lambda x: x @ x, half)[0].operations == {"bf16": 2000}
    assert count(lambda x: x @ x, half.float(), tf32=True)[0].operations == {"tf32": 2000}
    assert count(lambda x: x.double() @ x.double(), half)[0].operations == {"fp64": 2000}


W = torch.randn(50, 50)


@pytest.mark.parametrize(
    ("call", "inputs", "reason"),
    [
        (lambda x, i: x[i], [M, torch.tensor([1, 2])], Reason.GATHER),
        (lambda x, i: F.embedding(i, x), [M, torch.tensor([1, 2])], Reason.GATHER),
        (lambda x: x * 2 if x.sum() > 0 else x * 3, [M], Reason.CONTROL),
        (lambda x: x[x > 0], [M], Reason.GATHER),
        (lambda x, y: (x @ y).tril(), [W, W + 1], Reason.MASK),
        (lambda x, y: x.tril() @ y, [W, W + 1], Reason.MASK),
        (lambda x, y: x @ y, [W.tril(), W + 1], Reason.MASK),
        (lambda x, y: torch.softmax((x @ y).masked_fill(x > 0, -1e9), -1) @ x, [W, W + 1], Reason.MASK),
        (lambda x, y: (x @ y).sum(1), [W, W + 1], Reason.ALGEBRA),
        (lambda x, y: ((x @ y + 1) / 2).mean(), [W, W + 1], Reason.ALGEBRA),
        (lambda x: torch.fft.fft(x).real, [M], Reason.UNCOUNTED),
        (lambda x: torch.linalg.inv(x), [W], Reason.UNCOUNTED),
        (lambda x: torch.sparse.mm(x.to_sparse(), x), [W], Reason.SPARSE),
    ],
)
def test_what_cannot_be_counted_is_a_doubt(call, inputs, reason):
    assert reason in count(call, *inputs)[1]


def test_a_chain_of_layers_without_anything_between_is_a_doubt():
    chain = nn.Sequential(nn.Linear(50, 50), nn.Linear(50, 50))
    assert count(chain, M)[1] == {Reason.ALGEBRA}
    assert count(nn.MultiheadAttention(50, 5), *[M.view(20, 1, 50)] * 3)[1] == set()


def test_a_convolution_with_neighbouring_taps_has_fast_algorithms():
    assert count(nn.Conv2d(3, 3, 3), torch.randn(1, 3, 8, 8))[1] == {Reason.CONVOLUTION}
    assert count(nn.Conv2d(3, 3, 1), torch.randn(1, 3, 8, 8))[1] == set()
