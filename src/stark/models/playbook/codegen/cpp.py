"""Generates C++ with OpenMP: one function per kernel. Without torch headers, so that it compiles in a second."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from stark.models.playbook.codegen.candidate import Language
from stark.models.playbook.codegen.cpp_function import Function
from stark.models.playbook.codegen.cpp_math import inline_functions
from stark.models.playbook.fusion.kernel import Kernel
from stark.models.playbook.moves import Moves
from stark.models.playbook.trace.values import Value

# Flags as Python expressions. The worker decides about "wide", because the host may have another processor.
FLAGS = {
    "relax": ['"-fno-math-errno"', '"-fno-trapping-math"', '"-fno-signed-zeros"'],
    "wide": ['*(["-mprefer-vector-width=512"] if "AVX512" in torch.backends.cpu.get_cpu_capability() else [])'],
    "unroll": ['"-funroll-loops"', '"-fassociative-math"', '"-fvariable-expansion-in-unroller"'],
}

_MODULE = '''
import ctypes

import torch
from torch.utils.cpp_extension import load_inline

%s

CPP = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
%s"""

library = ctypes.CDLL(
    load_inline(
        name="playbook",
        cpp_sources=[CPP],
        extra_cflags=%s,
        extra_ldflags=["-fopenmp"],
        no_implicit_headers=True,
        is_python_module=False,
    )
)
%s
'''


_BF16 = """
struct number {  // bfloat16: the upper half of a float, rounded to the nearest even one
    uint16_t bits;
    operator float() const { uint32_t all = uint32_t(bits) << 16; float x; std::memcpy(&x, &all, 4); return x; }
    number& operator=(float x) {
        uint32_t all;
        std::memcpy(&all, &x, 4);
        bits = x != x ? 0x7fc0 : uint16_t((all + 0x7fff + ((all >> 16) & 1)) >> 16);
        return *this;
    }
};
"""


def definitions(
    kernels: list[Kernel], moves: Moves, reused: Mapping[Value, Value], preamble: str, number: str = "float"
) -> str:
    """Everything before the class: the C++ and its loader. ``number`` is the type in memory."""
    flags = [
        '"-O3"',
        '"-march=native"',
        '"-fopenmp"',
        *(flag for name, flags in FLAGS.items() if name in moves for flag in flags),
    ]
    if any(kernel.has("argmax") for kernel in kernels):
        flags.append('"-ffp-contract=off"')  # an index is exact only if every value is rounded as in PyTorch
    functions = "\n".join(Function(kernel, moves, reused.get(kernel.sink), number).text() for kernel in kernels)
    code = (_BF16 if number == "number" else "") + inline_functions(kernels, moves) + functions
    types = "\n".join(
        f"library.{kernel.name}.argtypes = [ctypes.c_void_p] * {len(kernel.leaves) + 1} + [ctypes.c_int64] * 2"
        for kernel in kernels
    )
    shown = "[\n            " + "\n            ".join(f"{flag}," for flag in flags) + "\n        ]"
    return _MODULE % (preamble, code, shown, types)


def launch(kernel: Kernel, moves: Moves, leaves: list[str], result: str) -> list[str]:
    """The call of a kernel in forward()."""
    pointers = [f"    {name}.data_ptr()," for name in (*leaves, result)]
    return [f"library.{kernel.name}(", *pointers, f"    {kernel.rows},", f"    {kernel.columns},", ")"]


CPP = Language(definitions, launch)
CPP_BF16 = Language(functools.partial(definitions, number="number"), launch)
