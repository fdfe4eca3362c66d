"""A confined process, attacked: every control is tried by doing what it has to stop, in processes that are real."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from adversarial.processes import LANDLOCK, NAMESPACES, ROOT, as_ordinary_user, in_child
from stark_worker.doctor.escapes import ATTEMPTS, probe_confinement
from stark_worker.protocol.isolation import Level
from stark_worker.sandbox import seccomp, syscalls
from stark_worker.sandbox.confine import MEMORY_BYTES, confine, enter_sandbox
from stark_worker.sandbox.levels import ALLOW_WEAK, STANDARD, STRONG, Confinement, Control

MEMORY, PROCESSES = 2**30, 64
NO_RESERVE = 0x4000  # has a name in Python 3.13 and later
as_root = pytest.mark.skipif(not ROOT, reason="only root can become another user")
by_landlock = pytest.mark.skipif(not LANDLOCK, reason="this kernel has no Landlock")
strongly = pytest.mark.skipif(not (ROOT and NAMESPACES and LANDLOCK), reason="only for root with all its means")
ordinarily = pytest.mark.skipif(
    not LANDLOCK or (ROOT and not NAMESPACES), reason="no Landlock, or a root that cannot stand in for another user"
)

# What any user can do to its own files and processes, and to the network, when nothing confines it.
OPEN_TO_ALL = {
    "write a file outside",
    "read a dot-file in a home",
    "connect by TCP",
    "send by UDP",
    "connect to a local service",
    "read another process's environment",
    "read another process's arguments",
    "signal another process",
    "change another process's limits",
    "start more processes than allowed",
    "take more memory than allowed",
    "take more shared memory than allowed",
}


def confined(folder: Path, memory_bytes: int = MEMORY, processes: int = PROCESSES) -> Confinement:
    return confine(folder, memory_bytes=memory_bytes, processes=processes, gpu=False)


def still_open(probes):
    return [f"{probe.name}: {probe.detail}" for probe in probes if not probe.blocked]


@strongly
def test_root_reaches_the_strong_level_and_every_attempt_is_stopped():
    achieved, probes = probe_confinement(confined)
    assert len(probes) == len(ATTEMPTS)
    assert still_open(probes) == []
    assert achieved.level is Level.STRONG, achieved.gaps
    assert set(achieved.controls) >= STRONG


@ordinarily
def test_an_ordinary_user_reaches_the_standard_level_and_every_attempt_is_stopped():
    achieved, probes = as_ordinary_user(lambda: probe_confinement(confined))
    assert still_open(probes) == []
    assert achieved.level is Level.STANDARD, achieved.gaps
    assert set(achieved.controls) >= STANDARD
    assert Control.USER in {gap.control for gap in achieved.gaps}


@ordinarily
def test_the_attempts_succeed_where_nothing_is_confined():
    _, probes = as_ordinary_user(lambda: probe_confinement(lambda *_: Confinement(Level.WEAK, (), ())))
    assert {probe.name for probe in probes if not probe.blocked} >= OPEN_TO_ALL


@as_root
def test_a_root_that_cannot_change_user_is_said_to_be_weak(tmp_path):
    def without_the_means():
        closed = tmp_path / "closed"
        closed.mkdir()
        closed.chmod(0o700)
        return confine(tmp_path, readable=[closed], memory_bytes=MEMORY, processes=PROCESSES, gpu=False)

    achieved = in_child(without_the_means)
    assert achieved.level is Level.WEAK
    assert any("closed" in gap.reason for gap in achieved.gaps)


@as_root
def test_a_root_that_may_not_make_namespaces_is_not_strong_and_can_still_work(tmp_path):
    """As in most containers. Whether it can change user depends on where its Python lies."""

    def in_a_container():
        header, usual = struct.pack("Ii", 0x20080522, 0), 0x1FB  # to change owners, users and groups, and the like
        held = struct.pack("6I", usual, usual, 0, 0, 0, 0)
        syscalls.call("capset", ctypes.c_char_p(header), ctypes.c_char_p(held))
        achieved = confined(tmp_path)
        (tmp_path / "own").write_text("x")
        return achieved, os.geteuid()

    achieved, user = in_child(in_a_container)
    assert achieved.level is (Level.STANDARD if user else Level.WEAK)
    assert Control.MOUNTS in {gap.control for gap in achieved.gaps}


@by_landlock
def test_threads_from_before_are_outside_landlock_and_said_so(tmp_path):
    program = (
        "import sys, threading, time; from pathlib import Path; from stark_worker.sandbox.confine import confine\n"
        "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "found = confine(Path(sys.argv[1]), memory_bytes=None, processes=64, gpu=False)\n"
        "print(found)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout.startswith("weak"), done.stderr
    assert "threads were there before" in done.stdout


def test_what_a_candidate_needs_still_works(tmp_path):
    assert honest_work_fails_at(tmp_path) == "[]"


@ordinarily
def test_an_ordinary_user_can_do_what_a_candidate_needs():
    def work():
        with tempfile.TemporaryDirectory() as folder:
            return honest_work_fails_at(Path(folder))

    assert as_ordinary_user(work) == "[]"


def honest_work_fails_at(folder: Path) -> str:
    """In a process that was not forked from one whose threads have computed before."""
    program = "import sys; from integration.sandbox import test_confine as t; print(t.honest_work(t.Path(sys.argv[1])))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", program, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return done.stdout.strip() or done.stderr


def honest_work(folder: Path) -> list[str]:
    """What of an honest candidate's work fails in a confined process."""
    import torch
    from torch.utils import cpp_extension

    from stark_worker.compiler import extension

    os.environ |= {name: str(folder) for name in ("HOME", "TMPDIR", "TORCH_EXTENSIONS_DIR")}
    tempfile.tempdir = None
    extension.install(extension.cached_builder(folder / "build", folder / "build"))
    confined(folder, 8 * 2**30, 256)
    source = """
    #include <torch/extension.h>
    #include <omp.h>
    torch::Tensor twice(torch::Tensor x) {
      auto y = torch::empty_like(x);
      const float* from = x.data_ptr<float>();
      float* to = y.data_ptr<float>();
      #pragma omp parallel for num_threads(4)
      for (int64_t i = 0; i < x.numel(); ++i) to[i] = 2 * from[i];
      return y;
    }
    """
    module = cpp_extension.load_inline("confined_twice", source, functions=["twice"], extra_cflags=["-fopenmp"])
    x = torch.randn(1000)
    end, other = __import__("socket").socketpair()
    end.send(b"x")
    checks = {
        "extension": torch.equal(module.twice(x), 2 * x),
        "matrices": bool(torch.randn(300, 300).mm(torch.randn(300, 300)).isfinite().all()),
        "files": (folder / "own").write_text("x") == 1,
        "children": subprocess.run(["g++", "--version"], capture_output=True).returncode == 0,
        "socket pair": other.recv(1) == b"x",
        "memory file": os.memfd_create("own") > 0,
        "late imports": __import__("xml.dom.minidom") is not None,
        "processor": Path("/proc/cpuinfo").read_text() != "",
        "a name": __import__("getpass").getuser() != "",
        "own facts": Path("/proc/self/maps").read_text() != "",
    }
    return [name for name, works in checks.items() if not works]


@strongly
def test_what_is_reached_through_links_stays_reachable_for_a_new_user(tmp_path):
    closed = tmp_path / "closed"
    (closed / "real").mkdir(parents=True)
    (closed / "real" / "file").write_text("there")
    (closed / "hidden").write_text("not")
    (closed / "link").symlink_to("real")
    (tmp_path / "outer").symlink_to(closed / "link")
    closed.chmod(0o700)
    folder = tmp_path / "own"
    folder.mkdir()

    def reading():
        way = tmp_path / "outer"
        found = confine(folder, readable=[way], memory_bytes=MEMORY, processes=PROCESSES, gpu=False)
        return found.level, (way / "file").read_text(), (closed / "hidden").exists()

    assert in_child(reading) == (Level.STRONG, "there", False)


@by_landlock
def test_preparations_run_before_the_user_changes_and_after_files_are_out_of_reach(tmp_path):
    def prepared():
        seen = []
        (tmp_path / "secret").write_text("x")
        folder = tmp_path / "own"
        folder.mkdir()

        def prepare():
            seen.append(os.geteuid())
            with pytest.raises(OSError, match="secret"):  # hidden or refused
                (tmp_path / "secret").read_text()

        confine(folder, memory_bytes=None, processes=64, gpu=False, prepare=prepare)
        return seen

    assert in_child(prepared) == [os.geteuid()]


def mapped(size: int, prot: int = mmap.PROT_READ | mmap.PROT_WRITE, flags: int = mmap.MAP_PRIVATE) -> mmap.mmap:
    """Addresses that are never touched; how much memory the machine has does not matter."""
    return mmap.mmap(-1, size, flags=flags | mmap.MAP_ANONYMOUS | NO_RESERVE, prot=prot)


def refused(size: int) -> bool:
    try:
        mapped(size)
    except OSError:
        return True
    return False


def test_on_a_gpu_private_memory_is_limited_and_what_cuda_does_with_addresses_is_not(tmp_path):
    """CUDA reserves addresses it cannot write to and maps memory that is shared, at its start and later."""
    far_more = 64 * MEMORY

    def as_cuda_does() -> list[mmap.mmap]:
        return [mapped(far_more, prot=0), mapped(4 * MEMORY, flags=mmap.MAP_SHARED)]

    def started():
        kept = [mapped(2 * MEMORY)]  # private, but from before
        confine(
            tmp_path,
            memory_bytes=MEMORY,
            processes=PROCESSES,
            gpu=True,
            prepare=lambda: kept.extend(as_cuda_does()),
        )
        kept += [*as_cuda_does(), mapped(MEMORY // 2)]
        return refused(MEMORY), sum(map(len, kept))

    limited, addresses = in_child(started)
    assert limited
    assert addresses > 2 * far_more


def test_candidates_have_a_limit_of_memory_on_a_gpu_too(tmp_path):
    def confined_as_a_candidate():
        os.chdir(tmp_path)
        os.environ[ALLOW_WEAK] = "yes"
        enter_sandbox([], gpu=True)
        return refused(MEMORY_BYTES // 4), refused(2 * MEMORY_BYTES)

    assert in_child(confined_as_a_candidate) == (False, True)


def test_a_confined_process_still_dies_with_its_parent(tmp_path):
    """Changing user makes the kernel forget that wish."""
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        if os.fork() == 0:
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            confined(tmp_path)
            os.write(writing, b"confined")
            time.sleep(600)
        os.close(writing)
        time.sleep(600)
    os.close(writing)
    assert os.read(reading, 100) == b"confined"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert os.read(reading, 1) == b""  # the last one that held the other end is gone
    os.close(reading)


# Orders to the system to send a signal later, or to work for a process that is stopped. Each argument is a number.
WAKING_CALLS = {
    "a timer": ("timer_create", 1, 0, 0),
    "the owner of a file": ("fcntl", 0, fcntl.F_SETOWN, 1),
    "the owner of a file, by a structure": ("fcntl", 0, 15, 0),
    "the signal of a file": ("fcntl", 0, fcntl.F_SETSIG, signal.SIGCONT),
    "the signal of a file, in a wide number": ("fcntl", 0, 2**32 + fcntl.F_SETSIG, signal.SIGCONT),
    "changes of a folder": ("fcntl", 0, fcntl.F_NOTIFY, 1),
    "a lease": ("fcntl", 0, fcntl.F_SETLEASE, 0),
    "the owner of a device": ("ioctl", 0, 0x8901, 0),
    "the owner of a socket": ("ioctl", 0, 0x8902, 0),
    "the death of a parent": ("prctl", syscalls.PR_SET_PDEATHSIG, signal.SIGCONT),
    "the adoption of orphans": ("prctl", 36, 1),
    "a queue of messages": ("mq_notify", 0, 0),
    "asynchronous files": ("io_setup", 1, 0),
    "a sibling": ("clone", 0x8000 | signal.SIGCHLD, 0),
}


@pytest.mark.parametrize("call", WAKING_CALLS)
def test_what_could_wake_a_stopped_process_is_refused(tmp_path, call):
    def attempted():
        confined(tmp_path)
        with pytest.raises(PermissionError):
            syscalls.call(*WAKING_CALLS[call])
        os.set_inheritable(0, True)  # other commands of the same calls are allowed
        assert syscalls.prctl(syscalls.PR_GET_PDEATHSIG, ctypes.byref(ctypes.c_int())) == 0
        assert fcntl.fcntl(0, fcntl.F_GETFD) == 0

    in_child(attempted)


def test_the_filter_is_well_formed():
    program = seccomp.program()
    assert len(program) < 4096
    for number, (code, if_true, if_false, _) in enumerate(program):
        if code & 0x07 == 0x05:  # a jump
            assert number + 1 + max(if_true, if_false) < len(program)
    assert program[-1][0] == 0x06
