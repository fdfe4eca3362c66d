"""How labels are inferred: precision from real rounding, kernels by name, other shapes from the inputs there are."""

from __future__ import annotations

import pytest
import torch

from stark_worker.candidate.profiler import Row, is_defined_in, own_share
from stark_worker.correctness.compare import error_share
from stark_worker.correctness.reference import Reference
from stark_worker.protocol.report import Kernels
from stark_worker.protocol.request import Precision
from stark_worker.referee.labels import kernels_of, precision_of, read_number
from stark_worker.referee.shapes import Resize, accepted_sizes

A, B = (torch.randn(96, 512, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


def eleven_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Rounded as TF32 does."""
    return (tensor.view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32)


ROUNDED = {
    "fp32": lambda x: x,
    "tf32 or fp16": eleven_bits,
    "bf16": lambda x: x.bfloat16().float(),
    "coarser than bf16": lambda x: (x * 8).round() / 8,
}


@pytest.mark.parametrize("name", ROUNDED)
def test_the_precision_of_a_product_is_inferred_from_its_error(name):
    rounded = ROUNDED[name]
    exact = A.double() @ B.double().t()
    share = error_share(rounded(A) @ rounded(B).t(), exact)
    assert precision_of(share, lambda: error_share(A @ B.t(), exact), Precision.FP32) == name


def test_half_precision_as_tf32_cannot_be_told_apart_and_is_not():
    exact = A.double() @ B.double().t()
    share = error_share((A.half().float() @ B.half().float().t()), exact)
    assert precision_of(share, lambda: 0.0, Precision.FP32) == "tf32 or fp16"


def test_what_the_reference_itself_gets_wrong_is_the_tasks_precision():
    assert precision_of(2e-3, lambda: 2e-3, Precision.BF16) == "bf16"
    assert precision_of(2e-2, lambda: 2e-3, Precision.BF16) == "coarser than bf16"
    assert precision_of(2e-3, lambda: 1.5e-3, Precision.FP32) == "fp32"  # it cancels


def test_infinities_and_nothing_are_no_error():
    values = torch.tensor([1.0, float("inf"), float("nan")])
    assert error_share(values, values.double()) == 0.0
    assert error_share(torch.zeros(3), torch.zeros(3).double()) == 0.0


@pytest.mark.parametrize(
    ("profile", "source", "gpu", "label"),
    [
        ({"own_share": 0.8, "extension": True}, "", False, (Kernels.CUSTOM, 0.8)),
        ({"own_share": 0.3, "extension": True}, "", False, (Kernels.MIXED, 0.3)),
        ({"own_share": 0.4, "extension": False}, "", False, (Kernels.LIBRARY, 0.0)),
        ({"own_share": 0.4}, "import ctypes", False, (Kernels.UNKNOWN, None)),
        ({"own_share": 0.5}, "", True, (Kernels.CUSTOM, 0.5)),
        ({"own_share": 0.008, "extension": True}, "__global__ void decoy()", True, (Kernels.MIXED, 0.008)),
        ({"own_share": 0.0, "extension": True}, "__global__ void unseen()", True, (Kernels.UNKNOWN, 0.0)),
        ({"own_share": 0.0, "extension": True}, "at::addmm(a, b, c)", True, (Kernels.LIBRARY, 0.0)),
        ({"own_share": 0.0}, "import cupy", True, (Kernels.UNKNOWN, 0.0)),
        ({"own_share": 0.0}, "", True, (Kernels.LIBRARY, 0.0)),
        ({"own_share": 1e9, "extension": "yes"}, "", True, (Kernels.UNKNOWN, None)),
    ],
)
def test_whose_kernels_they_are(profile, source, gpu, label):
    assert kernels_of(profile, source, gpu) == label


@pytest.mark.parametrize("value", [True, -1, float("nan"), float("inf"), 10**400, "1", None, [1]])
def test_what_is_no_such_number_is_nothing(value):
    assert read_number(value, 1e18) is None


SOURCE = """
namespace { __global__ void attn_fwd(float const* x, float* y) {} }
namespace my::deep { template <bool first> __global__ void split_kernel(float4 const* x) {} }
__global__ void __launch_bounds__(256, 2)
fused(float* x) {}
extern "C" __global__ void plain(int n) {}
static void __global__ late(int n);
template <typename F> __global__ void apply(F f) { f(); }
template <> __global__ void special<float>(float* x) {}
#define KERNEL(name, kind) \\
    __global__ void name(kind* x) { *x = 0; }
KERNEL(by_macro, float)
void gemm(int);
__global__ void softmax(float* x) {}
@triton.jit
def add_kernel(x): at::native::elementwise
"""


@pytest.mark.parametrize(
    "kernel",
    [
        "(anonymous namespace)::attn_fwd(float const*, float*)",  # of four recorded winners that were "unknown"
        "<unnamed>::attn_fwd(float const*, float*)",
        "_GLOBAL__N__0a1b2c3d_7_cuda_cu::attn_fwd(float const*, float*)",
        "_ZN12_GLOBAL__N_18attn_fwdEPKfPf",
        "void my::deep::split_kernel<true>(float4 const*)",
        "void my::deep::(anonymous namespace)::split_kernel<(bool)1>(float4 const*)",
        "_ZN2my4deep12split_kernelILb1EEEvPK6float4",
        "fused(float*)",
        "_Z5fusedPf",
        "plain",
        "late(int)",
        "void apply<main(int)::{lambda(int)#1}>(main(int)::{lambda(int)#1})",
        "void special<float>(float*)",
        "by_macro(float*)",
        "add_kernel",
        "add_kernel_0d1d2de",
    ],
)
def test_a_kernel_is_the_candidates_if_its_source_defines_it(kernel):
    assert is_defined_in(SOURCE, kernel)


@pytest.mark.parametrize(
    "kernel",
    [
        "",
        "gemm(int)",
        "void at::native::elementwise<4>(int)",
        "void at::native::(anonymous namespace)::fused<4>(int)",
        "void cudnn::engines_precompiled::softmax<float>(float*)",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*)",
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm>(Params)",
        "nvjet_sm90_hss_256x128_64x4_1x2_h_bz_coopA_TNT",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3",
        "_ZN2at6native5fusedEPf",
        "triton_poi_fused_add_0",
    ],
)
def test_a_kernel_of_a_library_is_not_the_candidates(kernel):
    assert not is_defined_in(SOURCE, kernel)


def test_the_export_of_the_profiler_changes_one_name():
    assert is_defined_in("def kernel(x):", "Kernel")
    assert not is_defined_in("def kernel(x):", "void cutlass::Kernel<cutlass_80_tensorop>(Params)")


def test_the_share_is_that_of_the_time():
    rows = [Row("fused", 3.0, True), Row("gemm", 1.0, False)]
    assert own_share(rows) == 0.75
    assert own_share([]) == 0.0


def test_a_dimension_is_resized_in_all_inputs_or_in_the_first_alone():
    inputs = [torch.tensor(2.0), torch.arange(12).view(4, 3), torch.zeros(4), torch.zeros(3, 4)]
    shapes = [tuple(tensor.shape) for tensor in Resize(0, 5, alone=False)(inputs)]
    assert shapes == [(), (5, 3), (5,), (3, 4)]
    alone = Resize(-1, 1, alone=True)(inputs)
    assert [tuple(tensor.shape) for tensor in alone] == [(), (4, 1), (4,), (3, 4)]
    assert alone[1].flatten().tolist() == [0, 3, 6, 9]


MODEL = """
import torch
class Model(torch.nn.Module):
    def forward(self, {names}):
        return {result}
def get_inputs():
    return [{inputs}]
def get_init_inputs():
    return []
"""


@pytest.mark.parametrize(
    ("names", "result", "inputs", "shapes"),
    [
        ("x", "x + 1", "torch.rand(8, 6)", [[[17, 6]], [[1, 6]], [[5, 6]]]),
        (
            "x, y",
            "x @ y",
            "torch.rand(8, 8), torch.rand(8, 8)",
            [[[17, 8], [8, 8]], [[1, 8], [8, 8]], [[5, 8], [8, 8]]],
        ),
        ("x", "x.view(8, 6) + 1", "torch.rand(8, 6)", []),
        ("x", "x + 1", "torch.tensor(1.0)", []),
        ("x", "x + 1", "torch.rand(1)", [[[3]], [[2]]]),
    ],
)
def test_shapes_are_those_the_reference_takes(tmp_path, names, result, inputs, shapes):
    source = MODEL.format(names=names, result=result, inputs=inputs)
    others = list(accepted_sizes(Reference(source, Precision.FP32, tmp_path)))
    found = [[list(tensor.shape) for tensor in other.first.inputs] for other in others]
    assert found[: len(shapes) or 1][:3] == shapes
    assert all(other.first.expected[0].isfinite().all() for other in others)
