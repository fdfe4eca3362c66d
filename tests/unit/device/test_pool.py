"""The memory pool's library: it only computes addresses, so it is tested without a device."""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.device.arena import Arena
from stark_worker.device.pool import LIBRARY, ResultPool, start_compiler
from stark_worker.protocol.errors import MachineryFault

SEGMENT = 2 << 20
BASE = 0x7F00_0000_0000

pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler"),
    pytest.mark.skipif(hasattr(ctypes.CDLL(None), "cudaMalloc"), reason="memory would come from the driver instead"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("pool")
    assert start_compiler(folder).wait() == 0
    library = ctypes.CDLL(str(folder / LIBRARY))
    library.pool_alloc.restype = ctypes.c_void_p
    library.pool_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.pool_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.pool_open.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return library


@dataclass
class Pool:
    """The library over a range of addresses. It keeps its state, so whatever is taken is given back at the end."""

    library: ctypes.CDLL
    first: int
    size: int

    def __enter__(self) -> Pool:
        self.library.pool_open(self.first, self.size)
        self.taken: dict[int, int] = {}
        return self

    def __exit__(self, *_: object) -> None:
        for address in list(self.taken):
            self.free(address)

    def alloc(self, size: int) -> int | None:
        address = self.library.pool_alloc(size, 0, None)
        if address is not None:
            assert address not in self.taken
            self.taken[address] = size
        return address

    def free(self, address: int) -> None:
        self.library.pool_free(address, self.taken.pop(address), 0, None)

    def first_fit(self, size: int) -> int | None:
        """The lowest address of enough free segments; None if there is none."""
        begin = -(-self.first // SEGMENT) * SEGMENT
        count = max(self.first + self.size - begin, 0) // SEGMENT
        used = {at for address, taken in self.taken.items() for at in range(address, address + taken, SEGMENT)}
        free = [begin + number * SEGMENT not in used for number in range(count)]
        need = -(-size // SEGMENT)
        fits = (number for number in range(count - need + 1) if all(free[number : number + need]))
        return next((begin + number * SEGMENT for number in fits), None)


sizes = st.integers(1, 5 * SEGMENT) | st.integers(1, 5).map(lambda count: count * SEGMENT)
steps = st.lists(st.tuples(st.booleans(), sizes, st.integers(0, 9)), max_size=40)
ranges = st.tuples(st.integers(0, 3 * SEGMENT), st.integers(0, 12 * SEGMENT))


@given(ranges, steps)
def test_segments_lie_in_the_range_never_overlap_and_are_used_again(library, place, steps):
    shift, size = place
    with Pool(library, BASE + shift, size) as pool:
        for is_freed, wanted, number in steps:
            if is_freed and pool.taken:
                pool.free(list(pool.taken)[number % len(pool.taken)])
                continue
            expected = pool.first_fit(wanted)
            address = pool.alloc(wanted)
            assert address == expected
            if address is not None:
                assert address % SEGMENT == 0
                assert pool.first <= address
                assert address + wanted <= pool.first + pool.size


def test_without_room_and_without_a_device_there_is_no_memory(library):
    with Pool(library, BASE, 4 * SEGMENT) as pool:
        assert pool.alloc(5 * SEGMENT) is None
        assert pool.alloc(4 * SEGMENT) == BASE
        assert pool.alloc(1) is None
        pool.free(BASE)
        assert pool.alloc(1) == BASE


def test_a_range_that_is_too_small_or_too_large_is_bounded(library):
    with Pool(library, BASE + 1, SEGMENT) as pool:
        assert pool.alloc(1) is None
    with Pool(library, BASE, 2**60) as pool:
        assert pool.alloc(2**38) is None, "more segments than it keeps books about"
        assert pool.alloc(2**36) == BASE


def test_foreign_memory_is_not_taken_for_a_segment(library):
    with Pool(library, BASE, 4 * SEGMENT) as pool:
        pool.alloc(4 * SEGMENT)
        for address in (BASE - SEGMENT, BASE + 4 * SEGMENT, 4096):
            library.pool_free(address, SEGMENT, 0, None)
        assert pool.alloc(1) is None


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(MachineryFault, match="no-such-compiler cannot be run"):
        start_compiler(tmp_path)


@pytest.mark.parametrize("first", [-4, 0, 60, 64])
def test_a_result_has_an_offset_only_if_all_of_it_lies_in_the_pool(first):
    memory = torch.zeros(4096 + 64 + 64, dtype=torch.uint8)
    pool = object.__new__(ResultPool)  # the allocator itself needs a GPU
    pool._arena = Arena(memory).address
    pool._begin, pool._end = pool._arena + 4096, pool._arena + 4096 + 64
    tensor = memory[4096 + first : 4096 + first + 8].view(torch.float32)
    assert pool.offset(tensor) == (4096 + first if 0 <= first <= 56 else None)
