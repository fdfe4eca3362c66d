"""What a container leaves of a machine: its limits on cores and memory, by either version of control groups. No torch.

A limit holds for a group and all below it, so the tightest of a process's own group and those above it counts. Inside
a container the groups above its own are not visible, and its own is at the root.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def cores(mount: Path = MOUNT, own: Path = OWN) -> int | None:
    """How many cores may be busy at once; None where there is no limit."""
    found = [_quota(folder) for folder in _groups("cpu", mount, own)]
    return min((max(1, math.ceil(quota)) for quota in found if quota), default=None)


def memory_bytes(mount: Path = MOUNT, own: Path = OWN) -> int | None:
    """How much memory there may be in all; None where there is no limit."""
    found = [_limit(folder) for folder in _groups("memory", mount, own)]
    return min((limit for limit in found if limit is not None), default=None)


def memory_left_bytes(mount: Path = MOUNT, own: Path = OWN) -> int | None:
    """How much of it is left, or would be given back if it were needed: copies of files."""
    groups = ((folder, _limit(folder)) for folder in _groups("memory", mount, own))
    return min((max(0, limit - _used(folder)) for folder, limit in groups if limit is not None), default=None)


def _groups(controller: str, mount: Path, own: Path) -> Iterator[Path]:
    """The folders of a process's group and of those above it, as far as they are visible."""
    for line in _text(own).splitlines():
        _, names, path = (*line.split(":", 2), "", "")[:3]
        if names == "":
            root = mount
        elif controller in names.split(","):
            root = next((mount / name for name in (names, controller) if (mount / name).is_dir()), mount / controller)
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        yield from (root / each for each in (inner, *inner.parents))


def _quota(folder: Path) -> float | None:
    quota, period = (*_text(folder / "cpu.max").split(), "", "")[:2]
    if not quota:
        quota, period = _text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _limit(folder: Path) -> int | None:
    limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
    return None if limit is None or limit >= 2**60 else limit  # how the first version says that there is none


def _used(folder: Path) -> int:
    used = _number(folder / "memory.current", folder / "memory.usage_in_bytes") or 0
    words = (line.split() for line in _text(folder / "memory.stat").splitlines())
    facts = {name: int(value) for name, value in words if value.isdigit()}
    below = "total_" if "total_active_file" in facts else ""  # in the first version the others leave groups below out
    return used - sum(facts.get(f"{below}{kind}_file", 0) for kind in ("active", "inactive"))


def _number(*files: Path) -> int | None:
    """That of the first file that has one."""
    return next((int(text) for text in map(_text, files) if text.strip().isdigit()), None)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
