"""The facts in the assembler's output."""

from __future__ import annotations

from stark_worker.compiler.ptxas import Assembly, Resources, parse_assembly, read_assembly, write_assembly

OUTPUT = """
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient \
register resources for the wgmma pipeline in the function '_Z1gv'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient \
register resources for the wgmma pipeline in the function '_Z1gv'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z1fv' for 'sm_90a'
ptxas info    : Function properties for _Z1fv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 4096 bytes smem
ptxas info    : Compiling entry function '_Z1gv' for 'sm_90a'
ptxas info    : Function properties for _Z1gv
    128 bytes stack frame, 120 bytes spill stores, 80 bytes spill loads
ptxas info    : Used 255 registers
"""
NAMES = {"_Z1fv": "f()", "_Z1gv": "g()"}


def test_kernels_and_warnings_are_found_and_survive_their_file():
    found = parse_assembly(OUTPUT, NAMES.__getitem__)
    assert found.kernels == (Resources("f()", 32, 4096, 0), Resources("g()", 255, 0, 200))
    (warning,) = found.warnings
    assert warning.startswith("g(): wgmma.mma_async instructions are serialized")
    assert warning.endswith("wgmma pipeline")
    assert read_assembly(write_assembly(found)) == found


def test_a_build_without_kernels_has_no_facts():
    assert parse_assembly("", NAMES.__getitem__) == Assembly()
