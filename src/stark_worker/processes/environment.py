"""TODO."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

from stark_worker.processes import cgroups

PACKAGES = str(Path(__file__).resolve().parents[2])  # a folder, or the file that `stark pack-worker` made


NVCC = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN")


INHERITED = (
    *("PATH", "LANG", "LC_ALL", "TZ", "CC", "CXX", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH"),
    *("CPLUS_INCLUDE_PATH", "CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST"),
    *NVCC,
    "CUDA_DEVICE_ORDER",  # by which the numbers in CUDA_VISIBLE_DEVICES count
)


# glibc keeps what is freed, up to blocks of 32 MB, which it always returns. Left to itself it gives memory back after
# some calls and not after others, by the history of the process: the same operators then take three times as long in
# one process as in the next.
KEEPING_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**25)}


UNPACKED = "packages"


FOLDERS = ("HOME", "TMPDIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")


def threads() -> int:
    """How many cores this process may use; the same for the reference and every candidate."""
    return min(len(os.sched_getaffinity(0)), cgroups.cores() or sys.maxsize)


def environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    """What a process sees of the environment: tools and language, a folder of its own, never a key."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    own = {name: str(folder) for name in FOLDERS}
    return {**kept, **own, **KEEPING_MEMORY, "PATH": path, "OMP_NUM_THREADS": str(threads()), **more}


def packages(folder: Path) -> str:
    """Where processes import us from: unpacked if we are one file, because compilers read headers from a folder only.

    What is unpacked goes with the folder, and is for candidates to read, whoever they run as.
    """
    if not zipfile.is_zipfile(PACKAGES):
        return PACKAGES
    place = folder / UNPACKED
    if not place.exists():
        with zipfile.ZipFile(PACKAGES) as packed:
            packed.extractall(place)
        for path in (place, *place.rglob("*")):
            path.chmod(0o755)
    return str(place)
