"""What is shown of compilers' error_messages: the errors in the candidate's own lines, and nothing else."""

from __future__ import annotations

import pytest

from stark_worker.protocol.logs import (
    MAX_ERRORS,
    MAX_LOG_CHARACTERS,
    compiler_errors,
    describe_timeout,
    error_messages,
    map_to_candidate_lines,
)
from stark_worker.protocol.request import Limits

GCC = """\
In file included from /usr/include/c++/12/vector:64,
                 from main.cpp:1:
/build/main.cpp: In function 'at::Tensor scale(at::Tensor)':
/build/main.cpp:5:3: warning: unused variable 'n' [-Wunused-variable]
    5 |   int n = 3;
      |       ^
/build/main.cpp:7:9: error: 'flaot' was not declared in this scope; did you mean 'float'?
    7 |   const flaot* p = x.data_ptr<float>();
      |         ^~~~~
      |         float
/usr/include/c++/12/bits/stl_vector.h:423:11: note: template argument deduction/substitution failed:
  423 |     class vector : protected _Vector_base<_Tp, _Alloc>
      |           ^~~~~~
ninja: build stopped: subcommand failed.
"""
NVCC = """\
cuda.cu(23): error: identifier "itn" is undefined
      const itn threads = 256;
            ^

1 error detected in the compilation of "cuda.cu".
"""


def test_gcc_errors_keep_their_lines_and_lose_warnings_and_notes():
    shown = compiler_errors(map_to_candidate_lines(GCC, {"main.cpp": 1}))
    assert shown.splitlines() == [
        "main.cpp:6:9: error: 'flaot' was not declared in this scope; did you mean 'float'?",
        "    7 |   const flaot* p = x.data_ptr<float>();",
        "      |         ^~~~~",
        "      |         float",
    ]


def test_nvcc_errors_keep_their_lines():
    shown = compiler_errors(map_to_candidate_lines(NVCC, {"cuda.cu": 3}))
    assert shown.splitlines() == [
        'cuda.cu(20): error: identifier "itn" is undefined',
        "      const itn threads = 256;",
        "            ^",
    ]


def test_linker_and_assembler_errors_are_errors():
    assert "undefined reference to `missing'" in compiler_errors(
        "main.o: in function f: undefined reference to `missing'"
    )
    assert "cannot find -lnothere" in compiler_errors("/usr/bin/ld: cannot find -lnothere: No such file or directory")
    assert "ptxas error" in compiler_errors("ptxas error   : Entry function 'k' uses too much shared data")


def test_no_error_no_text():
    assert compiler_errors("all is well\nmain.cpp:3:4: warning: hm\n") == ""


def test_long_output_is_bounded():
    text = "\n".join(f"main.cpp:{n}:1: error: no {n}\n  {n} | {'x' * 900}" for n in range(1000))
    shown = compiler_errors(text)
    assert len(shown) <= MAX_LOG_CHARACTERS
    assert (
        len(error_messages(compiler_errors("\n".join(f"a.cpp:{n}:1: error: e" for n in range(99)))).splitlines())
        == MAX_ERRORS
    )


def test_messages_are_without_the_shown_source():
    assert error_messages(compiler_errors(NVCC)) == 'cuda.cu(23): error: identifier "itn" is undefined'


def test_names_of_the_light_headers_are_shown_as_torchs():
    assert map_to_candidate_lines("no matching function for 'stark_light::Tensor'", {}).endswith("'at::Tensor'")


@pytest.mark.parametrize("did", ["done", "launched", "waited"])
def test_a_call_that_never_ends_is_told_which_limit_it_exceeded(did):
    """Whichever of a call's messages does not come."""
    assert "1.5 s (evaluation.run_s)" in describe_timeout(did, Limits(build_s=90.0, run_s=1.5))


def test_one_that_never_loads_is_told_the_other_limit():
    assert "90 s to be compiled and loaded (evaluation.build_s)" in describe_timeout("loaded", Limits(90.0, 1.5))
