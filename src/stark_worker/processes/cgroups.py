"""A container's limits on cores and memory, by either version of control groups. No torch.

A limit holds for a group and all groups below it, so the tightest limit of a process's own group and its ancestors
counts. Inside a container the ancestors are not visible, and the own group is at the root.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cores(mount: Path = MOUNT, own: Path = OWN) -> int | None:
    """Return the number of cores that may be busy at once; None without a limit."""
    found = [_core_quota(folder) for folder in _groups("cpu", mount, own)]
    return min((max(1, math.ceil(quota)) for quota in found if quota), default=None)


def memory_bytes(mount: Path = MOUNT, own: Path = OWN) -> int | None:
    """Return the limit on memory; None without a limit."""
    found = [_memory_limit(folder) for folder in _groups("memory", mount, own)]
    return min((limit for limit in found if limit is not None), default=None)


def memory_left_bytes(mount: Path = MOUNT, own: Path = OWN) -> int | None:
    """Return the memory that is left under the limit. The page cache counts as free. None without a limit."""
    groups = ((folder, _memory_limit(folder)) for folder in _groups("memory", mount, own))
    return min((max(0, limit - _used_bytes(folder)) for folder, limit in groups if limit is not None), default=None)


def _groups(controller: str, mount: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of this process's group and of the visible groups above it."""
    for line in _read_text(own).splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if names == "":
            root = mount
        elif controller in names.split(","):
            root = next((mount / name for name in (names, controller) if (mount / name).is_dir()), mount / controller)
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        yield from (root / each for each in (inner, *inner.parents))


def _core_quota(folder: Path) -> float | None:
    quota, period = (*_read_text(folder / "cpu.max").split(), "", "")[:2]
    if not quota:
        quota, period = (
            _read_text(folder / "cpu.cfs_quota_us").strip(),
            _read_text(folder / "cpu.cfs_period_us").strip(),
        )
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _memory_limit(folder: Path) -> int | None:
    limit = _read_number(folder / "memory.max", folder / "memory.limit_in_bytes")
    return None if limit is None or limit >= 2**60 else limit  # version 1 writes a huge number if there is no limit


def _used_bytes(folder: Path) -> int:
    used = _read_number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
    words = (line.split() for line in _read_text(folder / "memory.stat").splitlines())
    facts = {name: int(value) for name, value in words if value.isdigit()}
    prefix = "total_" if "total_active_file" in facts else ""  # without it, version 1 leaves out the groups below
    return used - sum(facts.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))


def _read_number(*files: Path) -> int | None:
    """Return the number in the first file that holds one."""
    return next((int(text) for text in map(_read_text, files) if text.strip().isdigit()), None)


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
