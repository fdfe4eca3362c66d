"""What a container leaves of a machine."""

from __future__ import annotations

import pytest

from stark_worker.processes import cgroups

GB = 2**30


@pytest.fixture
def machine(tmp_path):
    """Files of control groups, and where they lie."""

    def make(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            file = tmp_path / "mount" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        return tmp_path / "mount", tmp_path / "own"

    return make


@pytest.mark.parametrize(
    ("own", "files"),
    [
        (
            "0::/\n",
            {
                "cpu.max": "350000 100000\n",
                "memory.max": f"{4 * GB}\n",
                "memory.current": f"{3 * GB}\n",
                "memory.stat": f"anon {GB}\ninactive_file {GB}\nactive_file {GB}\n",
            },
        ),
        (
            "0::/pod/box\n",
            {
                "pod/cpu.max": "350000 100000\n",
                "pod/box/cpu.max": "max 100000\n",
                "pod/memory.max": f"{4 * GB}\n",
                "pod/memory.current": f"{GB}\n",
                "pod/box/memory.max": "max\n",
            },
        ),
        (
            "7:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "350000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": f"{4 * GB}\n",
                "memory/memory.usage_in_bytes": f"{2 * GB}\n",
                "memory/memory.stat": f"active_file 0\ntotal_active_file {GB}\ntotal_inactive_file 0\n",
            },
        ),
    ],
    ids=["a container", "a group above", "the first version"],
)
def test_the_tightest_limit_counts(machine, own, files):
    place = machine(own, files)
    assert (cgroups.cores(*place), cgroups.memory_bytes(*place), cgroups.memory_left_bytes(*place)) == (
        4,
        4 * GB,
        3 * GB,
    )


@pytest.mark.parametrize(
    ("own", "files"),
    [
        ("", {}),
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.current": "5\n"}),
        (
            "3:cpu:/\n7:memory:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n"},
        ),
        ("nonsense\n", {"cpu.max": "much\n", "memory.max": "a lot\n"}),
    ],
    ids=["none", "the second version", "the first version", "nonsense"],
)
def test_no_limit_is_none(machine, own, files):
    place = machine(own, files)
    assert cgroups.cores(*place) is cgroups.memory_bytes(*place) is cgroups.memory_left_bytes(*place) is None
