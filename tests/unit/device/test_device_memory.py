"""The order of the referee's work for a call on a GPU, done on memory of the host: there it all happens when queued."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from stark_worker.correctness.compare import same_bits
from stark_worker.device import cuda_arena
from stark_worker.device.arena import Arena, ArenaAllocator
from stark_worker.device.cuda_arena import FLUSH, PROBE, READ, RETURN, DeviceMemory, copy_by_kernel

LAYOUT = ArenaAllocator()
X, WEIGHT, OUT = LAYOUT.place_all([torch.empty(16, 8), torch.empty(4, dtype=torch.int64), torch.empty(8, 3).t()])


class Recorded:
    """The steps of a device, with what lies in the arena when each of them is reached."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory, self.seen = memory, []

    @contextlib.contextmanager
    def queued(self, step: int, waits: bool = True) -> Iterator[None]:
        x, weight, out = (each.clone() for each in self._memory.arena.views((X, WEIGHT, OUT)))
        flushed = self._memory._flush is None or not self._memory._flush.any()
        self.seen.append((step if waits else -step, SimpleNamespace(x=x, weight=weight, out=out, flushed=flushed)))
        yield


@pytest.fixture(params=[True, False], ids=["flushed", "not flushed"])
def memory(request, monkeypatch):
    monkeypatch.setattr(cuda_arena, "driver", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: None)
    memory = object.__new__(DeviceMemory)  # the arena itself needs a GPU
    memory.arena = Arena(torch.zeros(LAYOUT.size, dtype=torch.uint8))
    memory._words, memory._own_word, memory._delay_ms = memory.arena.words(), torch.zeros(1), 0.0
    memory._flush = torch.ones(4) if request.param else None
    memory._begun = SimpleNamespace(record=lambda: None, elapsed_time=lambda _: 0.25)
    memory._written = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    memory._choose_decoys = lambda _: torch.tensor([0, X.offset // 4 + 5, WEIGHT.offset // 4 + 1])
    memory._steps = Recorded(memory)
    return memory


def test_inputs_are_right_only_after_the_probe_and_outputs_are_poisoned_before(memory):
    x, weight = torch.randn(16, 8), torch.arange(4)
    view_x, view_weight, view_out = memory.arena.views((X, WEIGHT, OUT))
    view_out.fill_(1.0)
    mine = torch.zeros(8, 3).t()
    memory.queue([(view_x, x), (view_weight, weight)], [view_out], [(mine, view_out)])
    (_, written), (_, before), (_, after), _ = memory._steps.seen
    assert [step for step, _ in memory._steps.seen] == [FLUSH, PROBE, RETURN, -READ], "the copy follows at once"
    assert (written.out != 1.0).all()
    assert written.flushed is (memory._flush is None), "the cache is flushed after all writes"
    assert (before.x != x).sum() == 1, "a word of each input stays wrong"
    assert (before.weight != weight).sum() == 1
    assert same_bits(before.out, written.out)
    assert before.flushed
    assert torch.equal(after.x, x)
    assert torch.equal(after.weight, weight)
    assert same_bits(after.out, written.out)
    assert same_bits(mine, after.out), "what the outputs hold then is copied"
    assert memory.await_written() == 0.25


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(5, 3).t(),
        torch.randn(4, dtype=torch.complex64),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.tensor([True, False]),
        torch.randn(3, dtype=torch.float64).to(torch.bfloat16),
        torch.tensor([float("nan"), -0.0, float("inf")]),
        torch.tensor(3, dtype=torch.int64),
        torch.empty(0, 4),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_a_copy_by_a_kernel_has_the_same_bits(tensor):
    copy = torch.empty_like(tensor.resolve_conj())
    copy_by_kernel(copy, tensor)
    assert [str(value) for value in copy.flatten().tolist()] == [str(value) for value in tensor.flatten().tolist()]
