"""Profiles as text: names by meaning, launches, occupancy, warnings, and never more than 25 lines."""

from __future__ import annotations

import pytest

from stark_worker.candidate.kernel_names import MAX_CHARACTERS, short_name
from stark_worker.candidate.profile_table import Gpu, format_profile
from stark_worker.candidate.profiler import Launch, Row, kernel_rows
from stark_worker.compiler.ptxas import Assembly, Resources

H200 = Gpu((9, 0), 132)
LAUNCH = Launch((132, 1, 1), (256, 1, 1), 95, 196_736)
STREAM = "rms_stream_kernel(float const*, float*, int, int, long, float)"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void (anonymous namespace)::split_kernel<true>(float4 const*, float*, float const*)", "split_kernel<true>"),
        (STREAM, "rms_stream_kernel"),
        ("(anonymous namespace)::amax_kernel(float4 const*, long, unsi", "amax_kernel"),
        ("void rms_kernel<65536>(float4 const*, float4*, int, float)", "rms_kernel<65536>"),
        ("void ns::fused<ns::Tile<int, 4>, (Mode)1>(ns::Params)", "ns::fused<Tile<int, 4>, (Mode)1>"),
        ("nvjet_sm90_hss_256x128_64x4_1x2_h_bx_coopA_TNT", "nvjet_sm90_hss_256x128_64x4_1x2_h_bx_coopA_TNT"),
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4"
            "_execute_kernel__5x_cublas",
            "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ff…",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, "
            "3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
            "at::vectorized_elementwise_kernel[add]",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::pow_tensor_scalar_"
            "kernel_impl<float, float>(at::TensorIteratorBase&, float)::{lambda(float)#1}, std::array<char*, 2ul> >"
            "(int, float)",
            "at::vectorized_elementwise_kernel[pow_tensor_scalar]",
        ),
        (
            "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<"
            "float, float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::"
            "{lambda(int)#1}>(int, at::native::gpu_kernel_impl_nocast)",
            "at::elementwise_kernel[Mul]",
        ),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, "
            "float, float>, unsigned int, float, 4, 4> >(at::native::ReduceOp)",
            "at::reduce_kernel[Mean]",
        ),
        ("triton_poi_fused_add_relu_0", "triton_poi_fused_add_relu_0"),
        ("", ""),
    ],
)
def test_names_are_shortened_by_their_meaning(name, short):
    assert short_name(name) == short
    assert len(short_name(name * 5)) <= MAX_CHARACTERS


def event(name: str, us: float, **facts: object) -> dict[str, object]:
    launch = {"grid": [132, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": 0}
    return {"cat": "kernel", "name": name, "dur": us, "args": launch | facts}


def test_each_way_to_launch_a_kernel_has_a_row_with_its_calls():
    events = [event("f()", 30.0), event("f()", 30.0), event("f()", 6.0, grid=[8, 1, 1]), {"cat": "cpu_op"}]
    rows = kernel_rows(events * 3, 3, "__global__ void f() {}")
    assert [(row.name, row.calls, row.ms, row.launch.grid, row.own) for row in rows] == [
        ("f()", 2, pytest.approx(0.06), (132, 1, 1), True),
        ("f()", 1, pytest.approx(0.006), (8, 1, 1), True),
    ]


def test_a_row_shows_all_that_is_known_of_a_kernel():
    built = Assembly((Resources(STREAM, 95, 128, 24), Resources("other(int)", 32, 0, 0)), ("g(): wgmma is serialized",))
    text = format_profile([Row(STREAM, 3.8467, True, 1, LAUNCH)], [built], H200)
    _, row, warning, unused = text.splitlines()
    assert row == (
        "   3.8467 ms 100%  1x rms_stream_kernel: grid 132, block 256, 95 registers, 196736 bytes of shared memory "
        "(128 static + 196608 dynamic), occupancy 12% (shared memory), 24 bytes SPILLED"
    )
    assert warning == "compiler warning: g: wgmma is serialized"
    assert unused == "built, and not called on these inputs: other"


def test_a_profile_has_at_most_25_lines_and_counts_the_rest():
    rows = [Row(f"kernel_{number}()", 100.0 - number, True, 2, LAUNCH) for number in range(50)]
    built = Assembly(tuple(Resources(f"unused_{n}()", 1, 0, 0) for n in range(9)), tuple(f"w{n}" for n in range(9)))
    lines = format_profile(rows, [built], H200).splitlines()
    assert len(lines) <= 25
    assert any("32 more, with 64 calls" in line for line in lines)
    assert lines[-1].endswith("and 6 more")


def test_a_profile_of_the_host_has_operators_alone():
    text = format_profile([Row("outside torch's operators", 1.0, True), Row("aten::add", 1.0, False, 3)], [], None)
    assert text.splitlines()[1:] == [
        "   1.0000 ms  50%  1x outside torch's operators",
        "   1.0000 ms  50%  3x aten::add",
    ]


def test_a_kernel_without_launch_facts_is_shown_as_far_as_it_is_known():
    (row,) = kernel_rows([{"cat": "kernel", "name": "k()", "dur": 1000.0}], 1, "")
    assert "1.0000 ms 100%  1x k: grid 0x0x0" in format_profile([row], [], H200)
    assert format_profile([], [], H200).count("\n") == 0
