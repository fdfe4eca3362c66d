"""The memory pool of a candidate on the GPU: its allocations in ``forward()`` lie in the arena.

So the referee can poison and read results where they lie, and no copy is part of a call. Torch's caching allocator
stays in charge; only its segments come from here. Graph captures have pools of their own, which lie in the arena too.
If the arena is full, memory comes from the driver, and such results are copied.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import torch

from stark_worker.device.arena import Arena, nbytes
from stark_worker.protocol.errors import MachineryFault

LIBRARY = "pool.so"
_SOURCE = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/types.h>
#define PAGE (2ul << 20)
#define MAX_PAGES 65536ul
static char *begin;
static size_t pages;
static unsigned taken[MAX_PAGES];  /* the pages from here to the end of a segment, 0 if free */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
typedef int (*function)();

void pool_open(char *address, size_t size) {
  begin = (char *)(((size_t)address + PAGE - 1) / PAGE * PAGE);
  pages = begin < address + size ? (address + size - begin) / PAGE : 0;
  if (pages > MAX_PAGES) pages = MAX_PAGES;
}

static void *find(size_t need) {
  for (size_t at = 0, run = 0; at < pages; at++) {
    run = taken[at] ? 0 : run + 1;
    if (taken[at]) { at += taken[at] - 1; continue; }
    if (run < need) continue;
    for (size_t left = 1; left <= need; left++) taken[at + 1 - left] = left;
    return begin + (at + 1 - need) * PAGE;
  }
  return 0;
}

static int outside(function call, void *argument, size_t size) {
  function exchange = (function)dlsym(RTLD_DEFAULT, "cudaThreadExchangeStreamCaptureMode");
  int mode = 2, code;  /* relaxed: a capture may be under way */
  if (exchange) exchange(&mode);
  code = call ? call(argument, size) : -1;
  if (exchange) exchange(&mode);
  return code;
}

void *pool_alloc(ssize_t size, int device, void *stream) {
  void *found;
  pthread_mutex_lock(&lock);
  found = find((size + PAGE - 1) / PAGE);
  pthread_mutex_unlock(&lock);
  if (!found && outside((function)dlsym(RTLD_DEFAULT, "cudaMalloc"), &found, size)) found = 0;
  return found;
}

void pool_free(char *address, ssize_t size, int device, void *stream) {
  size_t first = (address - begin) / PAGE;
  if (address < begin || first >= pages) {
    outside((function)dlsym(RTLD_DEFAULT, "cudaFree"), address, 0);
    return;
  }
  pthread_mutex_lock(&lock);
  memset(taken + first, 0, taken[first] * sizeof *taken);
  pthread_mutex_unlock(&lock);
}
"""


def start_compiler(folder: Path) -> subprocess.Popen[bytes]:
    """Start to compile the library in C: Python code inside torch's allocator could deadlock."""
    compiler = os.environ.get("CC", "cc")
    command = [compiler, "-O1", "-w", "-shared", "-fPIC", "-o", str(folder / LIBRARY), "-xc", "-", "-ldl"]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
    except OSError as error:
        raise MachineryFault(f"The C compiler {compiler} cannot be run; install one or name it in CC.") from error
    assert process.stdin is not None
    with process.stdin as source:
        source.write(_SOURCE.encode())
    return process


class ResultPool:
    """Gives the memory of calls, and finds results in it. The arena's rest from ``offset`` on belongs to it."""

    def __init__(self, compiler: subprocess.Popen[bytes], folder: Path, arena: Arena, offset: int, size: int) -> None:
        if compiler.wait():
            raise MachineryFault("The C compiler failed to build the memory pool. Try: stark doctor")
        path = str(folder / LIBRARY)
        self._arena, self._begin, self._end = arena.address, arena.address + offset, arena.address + size
        ctypes.CDLL(path).pool_open(ctypes.c_void_p(self._begin), ctypes.c_size_t(size - offset))
        allocator: Any = torch.cuda.memory.CUDAPluggableAllocator(path, "pool_alloc", "pool_free")
        self._allocator, self._kept = allocator.allocator(), []  # type: ignore[var-annotated]
        self._pool = self._new_pool()
        self._route_captures()

    def _new_pool(self) -> Any:
        self._kept.append(torch.cuda.MemPool(self._allocator))
        return self._kept[-1]

    def _route_captures(self) -> None:
        """Give every graph capture a new pool over the arena, unless it names one."""
        begin: Any = torch.cuda.CUDAGraph.capture_begin

        def capture_begin(graph: Any, pool: Any = None, **more: Any) -> None:
            begin(graph, pool=self._new_pool().id if pool is None else pool, **more)

        graphs: Any = torch.cuda.graphs
        graphs.CUDAGraph.capture_begin = capture_begin
        torch.cuda.graph_pool_handle = graphs.graph_pool_handle = lambda: self._new_pool().id

    def use(self) -> contextlib.AbstractContextManager[None]:
        """Take the memory of this thread's allocations from the pool."""
        return torch.cuda.use_mem_pool(self._pool)

    def offset(self, tensor: torch.Tensor) -> int | None:
        """Return the offset of a dense tensor in the arena; None if it lies outside the pool."""
        first = tensor.data_ptr()
        return first - self._arena if self._begin <= first and first + nbytes(tensor) <= self._end else None
