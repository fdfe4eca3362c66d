"""The environment variables, the import root and the cores that child processes get. No torch."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from stark_worker.processes import cgroups

PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])  # a folder, or the file that `stark pack-worker` made
UNPACKED_DIR = "stark-unpacked"

NVCC_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")
INHERITED_VARIABLES = (
    *("PATH", "LANG", "LC_ALL", "TZ", "CC", "CXX", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH"),
    *("CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST"),
    *NVCC_VARIABLES,
    "CUDA_DEVICE_ORDER",  # it decides what the numbers in CUDA_VISIBLE_DEVICES mean
)
FOLDER_VARIABLES = ("HOME", "TMPDIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")

# Make glibc keep freed blocks up to 32 MB. By default it returns memory after some calls and not after others, which
# depends on the history of the process: the same operators then take three times as long in one process as in another.
MALLOC_SETTINGS = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**25)}


def usable_cores() -> int:
    """Return how many cores this process may use: the same number for the reference and every candidate."""
    return min(len(os.sched_getaffinity(0)), cgroups.cores() or sys.maxsize)


def requested_architectures() -> list[str]:
    """Return the GPU architectures that the user names in TORCH_CUDA_ARCH_LIST."""
    return os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()


def child_environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child process: tools, language and its own folder, but no API keys."""
    kept = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    own = {name: str(folder) for name in FOLDER_VARIABLES}
    return {**kept, **own, **MALLOC_SETTINGS, "PATH": path, "OMP_NUM_THREADS": str(usable_cores()), **more}


def import_root(folder: Path) -> str:
    """Return the path that child processes import ``stark_worker`` from.

    A packed worker is unpacked into ``folder``, because compilers read headers from folders only. Every user can read
    the unpacked files, because a candidate may run as any user.
    """
    if not zipfile.is_zipfile(PACKAGE_ROOT):
        return PACKAGE_ROOT
    unpacked = folder / UNPACKED_DIR
    if not unpacked.exists():
        with zipfile.ZipFile(PACKAGE_ROOT) as packed:
            packed.extractall(unpacked)
        for path in (unpacked, *unpacked.rglob("*")):
            path.chmod(0o755)
    return str(unpacked)
