"""Building candidates' extensions: real compilers, real processes, one build against torch's own headers."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from conformance.evaluator import TASK
from stark_worker.compiler import cache as build_cache
from stark_worker.compiler import extension, toolchain
from stark_worker.compiler.ptxas import read_assembly
from stark_worker.processes.environment import UNPACKED_DIR
from stark_worker.processes.workdir import PCH_FILE, PCH_HEADER, RESOURCES_FILE
from stark_worker.protocol.codec import to_json
from stark_worker.protocol.errors import MachineryFault, Outcome
from stark_worker.protocol.logs import compiler_errors
from stark_worker.protocol.request import EvalRequest, Target
from stark_worker.scheduler.worker import Worker
from worker_fixture import processes_below, running_worker

SOURCE = """
#include <torch/extension.h>

torch::Tensor scale(torch::Tensor x, double factor) {
  TORCH_CHECK(x.is_contiguous(), "a contiguous tensor is expected, not strides ", x.strides());
  auto out = torch::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "scale", [&] {
    const scalar_t* from = x.data_ptr<scalar_t>();
    scalar_t* to = out.data_ptr<scalar_t>();
    for (int64_t i = 0; i < x.numel(); ++i) to[i] = static_cast<scalar_t>(from[i] * factor);
  });
  return out;
}

std::vector<at::Tensor> made(const at::Tensor& x, int64_t n) {
  auto options = torch::TensorOptions().dtype(torch::kInt64).device(x.device()).requires_grad(false);
  return {torch::zeros({n, 2}, options), torch::ones_like(x), torch::full({n}, 1.5, x.options()), torch::full({2}, n),
          torch::empty_like(x.t()).fill_(3), torch::zeros({}), x.to(torch::kDouble), at::relu(x), torch::matmul(x, x)};
}

std::tuple<at::Tensor, at::Tensor, int64_t> views(at::Tensor x, std::vector<int64_t> shape, at::IntArrayRef other) {
  return {x.view(shape), x.transpose(0, 1).contiguous().reshape(other)[0], x.size(-1)};
}

double pick(at::Tensor x, std::optional<at::Tensor> bias, bool negate, const std::string& name) {
  auto values = x.accessor<float, 2>();
  #pragma omp parallel for
  for (int64_t i = 0; i < x.size(1); ++i) values[2][i] = values[1][i] + static_cast<float>(x.dim());
  double sum = values[2][0] + (bias.has_value() ? bias->item<double>() : 0.0) + static_cast<double>(name.size());
  return negate ? -sum : sum;
}

void fill(at::Tensor x, int value) {
  float* data = x.data_ptr<float>();
  at::parallel_for(0, x.numel(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) data[i] = static_cast<float>(value);
  });
}

at::Tensor itself(at::Tensor x) { return x; }
int64_t size(at::Tensor x, int64_t dim) { return x.size(dim); }
"""
FUNCTIONS = ["scale", "made", "views", "pick", "fill", "itself", "size"]
NAMED_ARGUMENTS = """
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("scale", &scale, py::arg("x"), py::arg("factor") = 2.0);
  m.def("made", &made); m.def("views", &views); m.def("pick", &pick); m.def("fill", &fill); m.def("itself", &itself);
  m.def("size", &size);
}
"""
FLAGS = {"extra_cflags": ["-O0", "-fopenmp"], "extra_ldflags": ["-fopenmp"]}
SMALL = "at::Tensor twice(at::Tensor x) { auto y = at::empty_like(x); y.copy_(x); return y; }"
LIGHT = 'extern "C" int next(int x) { return x + 1; }'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    for name in ("load_inline", "load"):
        monkeypatch.setattr(cpp_extension, name, getattr(cpp_extension, name))
    extension.install(extension.cached_builder(tmp_path / "shared", tmp_path / "cache"))
    return tmp_path / "cache"


def entries(cache: Path) -> list[Path]:
    return [entry for entry in cache.iterdir() if not entry.name.startswith(".")] if cache.is_dir() else []


def with_full_headers(entry: Path) -> bool:
    return (entry / "build.ninja").exists()


def light(**more):
    return cpp_extension.load_inline("light", LIGHT, no_implicit_headers=True, is_python_module=False, **more)


def outcomes(module) -> list[object]:
    """What the functions return or raise, on ordinary and on wrong arguments."""
    x = torch.arange(16, dtype=torch.float32).reshape(4, 4)
    calls = [
        lambda: [module.scale(x.to(kind), 3) for kind in (torch.float32, torch.float64, torch.float16)],
        lambda: module.scale(x.t(), 2.0),
        lambda: module.scale(x.int(), 2.0),
        lambda: module.made(x, 3),
        lambda: module.views(x, [2, 8], (8, 2)),
        lambda: module.views(x, [3, 3], [16]),
        lambda: module.pick(x, None, True, "abc"),
        lambda: module.pick(x, torch.tensor(2.5), False, ""),
        lambda: module.pick(x.double(), None, False, ""),
        lambda: module.pick(x, 3, False, ""),
        lambda: module.pick(x[0], None, False, ""),
        lambda: module.size(x, -2),
        lambda: module.size(x, 2),
        lambda: module.made(x, 2.5),
        lambda: module.made(x),
        lambda: (module.fill(x, 7), x.clone()),
        lambda: module.itself(x) is x,
        lambda: module.itself(None),
    ]
    return [outcome(call) for call in calls]


def outcome(call) -> object:
    try:
        return call()
    except (RuntimeError, TypeError, IndexError) as error:  # wording of a TypeError is the binding's own
        return type(error), "" if isinstance(error, TypeError) else str(error).split("\n")[0]


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.slow
def test_light_and_full_headers_give_the_same_module(cache):
    fast = cpp_extension.load_inline("styles", [SOURCE], functions=FUNCTIONS, **FLAGS)
    assert not with_full_headers(entries(cache)[0])
    full = cpp_extension.load_inline("styles", [SOURCE, NAMED_ARGUMENTS], **FLAGS)
    assert sorted(map(with_full_headers, entries(cache))) == [False, True]
    assert torch.equal(full.scale(x=torch.ones(2)), torch.full((2,), 2.0))
    for got, expected in zip(outcomes(fast), outcomes(full), strict=True):
        assert same(got, expected), (got, expected)


def test_memory_is_given_back(cache):
    module = cpp_extension.load_inline("twice", SMALL, functions=["twice"])
    page = os.sysconf("SC_PAGE_SIZE")
    for _ in range(3):
        module.twice(torch.zeros(1_000_000))
    before = int(Path("/proc/self/statm").read_text().split()[1]) * page
    for _ in range(200):
        module.twice(torch.zeros(1_000_000))
    assert int(Path("/proc/self/statm").read_text().split()[1]) * page - before < 100e6


def test_exceptions_are_pythons(cache):
    source = """
    void check(int64_t n) { TORCH_CHECK(n > 0, "n is ", n); }
    void no_device_memory() { AT_ERROR("CUDA out of memory. Tried to allocate 3 GiB"); }
    at::Tensor no_memory() { return torch::empty({int64_t{1} << 52}); }
    """
    module = cpp_extension.load_inline("raises", source, functions=["check", "no_device_memory", "no_memory"])
    assert module.check(1) is None
    with pytest.raises(RuntimeError, match=r"^n is -1$"):
        module.check(-1)
    with pytest.raises(torch.OutOfMemoryError, match="3 GiB"):
        module.no_device_memory()
    with pytest.raises(RuntimeError, match=r"can't allocate memory|not enough memory"):
        module.no_memory()
    assert not with_full_headers(entries(cache)[0])


def test_a_module_of_its_own_binding_with_files(cache, tmp_path):
    (tmp_path / "factor.h").write_text("constexpr int factor = 3;")
    source = tmp_path / "own.cpp"
    source.write_text(
        '#include <torch/extension.h>\n#include "factor.h"\nint64_t times(int64_t x) { return factor * x; }\n'
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("times", &times, "doc"); }\n'
    )
    module = cpp_extension.load("own", [str(source)])
    assert (module.times(5), module.__name__, module.times.__doc__) == (15, "own", "doc")
    (tmp_path / "factor.h").write_text("constexpr int factor = 4;")
    assert cpp_extension.load("own", [str(source)]).times(5) == 20
    assert not any(map(with_full_headers, entries(cache)))


def test_light_form_returns_the_path_and_is_found_again(cache):
    path = light()
    assert Path(path).parent in entries(cache)
    assert ctypes.CDLL(path).next(41) == 42
    assert light() == path
    assert light(extra_cflags=["-O3"]) != path


def test_found_again_without_a_compiler(cache, monkeypatch, tmp_path):
    first = cpp_extension.load_inline("twice", SMALL, functions=["twice"])
    changed = entries(cache)[0].stat().st_mtime
    os.utime(entries(cache)[0], (changed - 900, changed - 900))
    monkeypatch.setattr(subprocess, "Popen", None)
    again = cpp_extension.load_inline("twice", SMALL, functions=["twice"])
    assert again.__file__ == first.__file__
    assert entries(cache)[0].stat().st_mtime > changed - 900  # used now, so not the first to be pruned


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (("auto y", "atuo y"), "main.cpp:1:34: error: 'atuo'"),
        (("(x);", "(x)"), "main.cpp:1"),
        (("return y", "return z"), "'z' was not declared"),
    ],
)
def test_a_plain_mistake_is_answered_without_the_full_headers(change, shown, cache):
    with pytest.raises(RuntimeError, match="Error building extension 'twice'") as caught:
        cpp_extension.load_inline("twice", SMALL.replace(*change), functions=["twice"])
    assert shown in str(caught.value)
    assert not list(cache.iterdir())


def test_a_function_that_is_nowhere_defined_is_named(cache):
    with pytest.raises(ImportError, match=r"undefined symbol: other\(at::Tensor\)"):
        cpp_extension.load_inline("other", "at::Tensor other(at::Tensor x);", functions=["other"])
    assert not list(cache.iterdir())


@pytest.mark.parametrize(
    ("body", "blame"),
    [
        ("return torch::softmax(x, 0);", True),
        ("return x.cumsum(0);", True),
        ("return std::any_of_them(x);", True),
        ('TORCH_WARN("careful"); return x;', True),
        ("int n = 3 return x;", False),
        ("return undeclared;", False),
        ("float a[3] = 5; return x;", False),
    ],
)
def test_which_mistakes_the_full_headers_could_cure(body, blame, tmp_path):
    text = f"at::Tensor f(at::Tensor x) {{ {body} }}"
    request = toolchain.BuildRequest("f", {"main.cpp": text}, (), (), (), (), True, False, True)
    (tmp_path / "main.cpp").write_text(text)
    with pytest.raises(toolchain.CompileFailed) as caught:
        toolchain.build(request, tmp_path)
    assert toolchain.may_need_full_headers(compiler_errors(str(caught.value)), request) is blame


CANDIDATE = """
from torch import nn
from torch.utils.cpp_extension import load_inline

module = load_inline("f", "at::Tensor f(at::Tensor x) {{ return x; }} // {number}", functions=["f"])


class ModelNew(nn.Module):
    def __init__(self, *_):
        super().__init__()

    def forward(self, x):
        return module.f(x)
"""
TEXT = "at::Tensor f(at::Tensor x) { return x; }"
PLAIN = toolchain.BuildRequest("f", {"main.cpp": TEXT}, (), (), (), (), True, False, True)


def test_headers_that_were_made_ready_are_not_read_again(tmp_path):
    (tmp_path / "main.cpp").write_text(TEXT)
    toolchain.precompile_headers(PLAIN, tmp_path)
    ready = tmp_path / PCH_HEADER
    ready.write_text("#error this is read")
    assert toolchain.build(PLAIN, tmp_path, ready).exists()
    (tmp_path / PCH_FILE).unlink()
    with pytest.raises(toolchain.CompileFailed, match="this is read"):
        toolchain.build(PLAIN, tmp_path, ready)


def test_headers_that_were_made_ready_and_are_broken_are_done_without(tmp_path, cache):
    made: list[extension.Extension] = []
    extension.install(made.append)
    cpp_extension.load_inline("f", TEXT, functions=["f"])
    (folder := tmp_path / "shared" / made[0].headers_key).mkdir(parents=True)
    made[0].precompile_headers(folder)
    ready = folder / PCH_FILE
    half = ready.stat().st_size // 2
    ready.write_bytes(ready.read_bytes()[:half] + bytes(half))
    extension.install(extension.cached_builder(tmp_path / "shared", tmp_path / "cache"))
    module = cpp_extension.load_inline("f", TEXT, functions=["f"])
    assert torch.equal(module.f(torch.ones(2)), torch.ones(2))
    assert not with_full_headers(next((tmp_path / "cache").iterdir()))


@pytest.mark.parametrize("flag", ["-DX='a", 3])
def test_a_malformed_flag_is_left_to_the_compiler(flag):
    assert toolchain.pch_options(replace(PLAIN, cflags=(flag,))) is None


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({}, True),
        ({"cflags": ("-O3 -march=native", "-ffast-math", "-fopenmp", "-fno-exceptions", "-std=c++20", "-Wall")}, True),
        ({"cflags": ("-include", "mine.h")}, False),
        ({"cflags": ("-fplugin=mine.so",)}, False),
        ({"cflags": ("-Wp,-include,mine.h",)}, False),
        ({"cflags": ("-I.",)}, False),
        ({"cflags": ("-wrapper", "mine")}, False),
        ({"cflags": ("@mine",)}, False),
        ({"include_paths": ("mine",)}, False),
        ({"implicit_headers": False}, False),
    ],
)
def test_only_headers_that_are_the_same_for_all_are_made_ready(change, shared):
    assert (toolchain.pch_options(replace(PLAIN, **change)) is not None) is shared


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        ({}, True),
        ({"cuda_cflags": ("-O3", "--use_fast_math", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v")}, True),
        ({"ldflags": ("-lgomp", "-L/usr/local/lib", "-Wl,-rpath,/usr/local/lib")}, True),
        ({"include_paths": ("/usr/include",)}, True),
        ({"include_paths": ("mine",)}, False),
        ({"include_paths": ("/usr/../home/mine",)}, False),
        ({"cflags": ("-I/home/mine",)}, False),
        ({"cflags": ("-I../mine",)}, False),
        ({"cflags": ("-include /home/mine.h",)}, False),
        ({"cflags": ("@/home/mine",)}, False),
        ({"cuda_cflags": ("-Xcompiler=-fplugin=/home/mine.so",)}, False),
        ({"ldflags": ("-Wl,-rpath,/usr/lib:/home/mine",)}, False),
        ({"cflags": ("-DX='a",)}, False),
    ],
)
def test_a_build_is_shared_only_if_it_names_no_file_of_the_candidate(change, shared):
    assert toolchain.reads_only_system_files(replace(PLAIN, **change)) is shared


BY_HEADER = '''
import torch
from pathlib import Path
from torch.utils.cpp_extension import load_inline

Path("mine.h").write_text("constexpr float factor = FACTOR;")
text = """#include <mine.h>
torch::Tensor scaled(torch::Tensor x) {
    auto y = torch::empty_like(x);
    for (int64_t i = 0; i < x.numel(); ++i) y.data_ptr<float>()[i] = x.data_ptr<float>()[i] * factor;
    return y;
}"""
module = load_inline("by_header", text, functions=["scaled"], extra_include_paths=[str(Path.cwd())])

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.scaled(x)
'''

SCALING = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2.0

def get_inputs():
    return [torch.rand(64, 64)]

def get_init_inputs():
    return []
"""


def test_a_header_next_to_a_candidate_decides_no_other_candidates_build(tmp_path):
    """Both have the same text for the compiler and different headers: the second must not get the first's library."""
    with running_worker(tmp_path / "cache") as worker:
        outcomes = [
            worker.judge(EvalRequest(SCALING, BY_HEADER.replace("FACTOR", factor), target=Target.CPU)).outcome
            for factor in ("3.0f", "2.0f", "3.0f")
        ]
    assert outcomes == [Outcome.WRONG_RESULT, Outcome.OK, Outcome.WRONG_RESULT]


def test_headers_that_a_packed_worker_unpacked_for_one_run_are_not_made_ready(monkeypatch, tmp_path):
    unpacked = tmp_path / UNPACKED_DIR / "headers"
    shutil.copytree(toolchain.HEADERS, unpacked)
    monkeypatch.setattr(toolchain, "HEADERS", unpacked)
    assert toolchain.pch_options(PLAIN) is None


def test_the_second_candidate_with_the_same_flags_has_its_headers_made_ready(tmp_path):
    def ready() -> list[Path]:
        return list((tmp_path / "cache").glob(f"*/{PCH_FILE}"))

    found = []
    with running_worker(tmp_path / "cache") as worker:
        for number in range(3):
            source = CANDIDATE.format(number=number)
            report = worker.judge(EvalRequest(TASK, source, target=Target.CPU))
            assert report.outcome is Outcome.WRONG_RESULT, report.log  # built, loaded and called
            found.append(len(ready()))
    assert found == [0, 1, 1]


def test_headers_without_a_light_version_are_not_tried():
    text = "#include <torch/extension.h>\n#include <ATen/native/ReduceOps.h>\n"
    request = toolchain.BuildRequest("f", {"main.cpp": text}, (), (), (), (), True, False, True)
    assert not toolchain.can_use_light_headers(request)


def test_the_longest_unused_go_first(tmp_path, monkeypatch):
    def entry(name: str) -> Path:
        place = build_cache.new_build_dir(tmp_path)
        (place / "library.so").write_bytes(b"1234")
        library = build_cache.publish(place, tmp_path, name)
        shutil.rmtree(place)
        return library.parent

    kept, old = entry("kept"), entry("old")
    abandoned = build_cache.new_build_dir(tmp_path)
    hours_ago = time.time() - 3 * build_cache.MIN_AGE_S
    for path in (old, abandoned):
        os.utime(path, (hours_ago, hours_ago))
    monkeypatch.setattr(build_cache, "CACHE_BYTES", 0)
    new = entry("new")
    assert sorted(tmp_path.iterdir()) == sorted([kept, new])


ASKING = """
from torch import nn
from torch.utils.cpp_extension import load_inline
answer = load_inline("both", "int64_t answer() { return 42; }", functions=["answer"]).answer()
raise ValueError(f"the answer is {answer}")
"""


def test_two_workers_build_the_same_at_the_same_time(tmp_path):
    async def at_once():
        async with Worker(Target.CPU, tmp_path, True) as one, Worker(Target.CPU, tmp_path, True) as other:
            request = EvalRequest(TASK, ASKING)
            return await asyncio.gather(one.judge(request), other.judge(request))

    assert all("the answer is 42" in report.log for report in asyncio.run(at_once()))
    assert len(list(tmp_path.iterdir())) == 1


ENDLESS = """
from torch.utils.cpp_extension import load_inline
SOURCE = "constexpr long f() { long s = 0; for (long i = 0; i < 2000000000; ++i) s += i; return s; }"
SOURCE += "static_assert(f());"
FLAGS = ["-fconstexpr-ops-limit=90000000000", "-fconstexpr-loop-limit=2000000000"]
load_inline("endless", SOURCE, functions=[], extra_cflags=FLAGS)
"""


def test_killed_in_the_middle_leaves_nothing_to_be_found(tmp_path):
    shared = tmp_path / "stark" / "extensions"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "stark_worker", "judge", "--allow-weak-sandbox"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        process.stdin.write(to_json(EvalRequest(TASK, ENDLESS)))
        process.stdin.close()
        while "cc1plus" not in processes_below(process.pid):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    assert entries(shared) == []
    with running_worker(shared) as worker:
        assert "the answer is 42" in worker.judge(EvalRequest(TASK, ASKING)).log
    assert len(entries(shared)) == 1


CUDA = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

template <typename scalar_t>
__global__ void kernel(const scalar_t* in, scalar_t* out, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * static_cast<scalar_t>(2.0f);
}

torch::Tensor twice(torch::Tensor x) {
  const at::cuda::OptionalCUDAGuard guard(device_of(x));
  auto out = torch::empty_like(x);
  const int blocks = (x.numel() + 255) / 256;
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "twice", ([&] {
    kernel<scalar_t><<<blocks, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.numel());
  }));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return out;
}
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_cuda_sources_compile_against_the_light_headers(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    files = {"main.cpp": "torch::Tensor twice(torch::Tensor x);", "cuda.cu": CUDA}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    request = toolchain.BuildRequest("twice", files, (), ("-O3",), (), (), True, True, True)
    assert toolchain.build(request, tmp_path).stat().st_size > 0
    kernels = read_assembly((tmp_path / RESOURCES_FILE).read_text()).kernels
    (kernel,) = [each for each in kernels if "kernel<float>" in each.name]
    assert (kernel.registers > 0, kernel.spilled_bytes) == (True, 0)


@pytest.mark.parametrize(
    ("wish", "flags"),
    [
        ("9.0", ["compute_90,code=sm_90"]),
        ("8.0;9.0a", ["compute_80,code=sm_80", "compute_90a,code=sm_90a"]),
        ("7.5 12.0+PTX", ["compute_75,code=sm_75", "compute_120,code=sm_120", "compute_120,code=compute_120"]),
        ("Hopper", []),
        ("", []),
    ],
)
def test_a_kernel_is_built_for_all_that_was_wished_for(monkeypatch, wish, flags):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", wish)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert toolchain._architecture() == [f"-gencode=arch={flag}" for flag in flags]


def test_a_disk_that_is_full_is_no_fault_of_a_candidate(tmp_path):
    build_cache.check_disk_space(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(MachineryFault, match=r"no_such.*No such file"):
        build_cache.check_disk_space(tmp_path / "no_such")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    try:
        with pytest.raises(MachineryFault, match="File too large"):
            build_cache.check_disk_space(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_slip_is_reported_while_other_files_still_compile():
    slow = subprocess.Popen(["sleep", "600"], process_group=0)
    refused = subprocess.Popen(["false"], process_group=0)
    assert toolchain._first_to_fail({"slow.cpp": slow, "slip.cu": refused}) == "slip.cu"
    assert slow.poll() == -signal.SIGKILL


def test_files_that_compile_are_all_waited_for():
    assert toolchain._first_to_fail({name: subprocess.Popen(["sleep", "0.1"]) for name in "ab"}) is None
