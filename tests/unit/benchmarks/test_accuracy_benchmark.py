"""The arithmetic of the proofs about accuracy and noise. The measurements need a device."""

from __future__ import annotations

import importlib
import json

import pytest

from paths import ROOT
from stark_worker.protocol.report import Timing
from stark_worker.protocol.request import Target


@pytest.fixture
def noise(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "perf")
    monkeypatch.setenv("STARK_RESULTS", str(tmp_path))
    return importlib.import_module("noise")


@pytest.mark.parametrize(
    ("set_us", "measured_us", "accurate"),
    [(5, 5.5, True), (5, 4.4, False), (10, 10.6, False), (20, 20.4, True), (20, 20.5, False), (2000, 1965.0, True)],
)
def test_a_time_is_accurate_within_half_a_microsecond_or_two_percent(monkeypatch, set_us, measured_us, accurate):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "proofs")
    accuracy = importlib.import_module("accuracy")
    assert accuracy.is_accurate(set_us, measured_us) is accurate


def test_all_spinning_kernels_share_one_extension(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "proofs")
    accuracy = importlib.import_module("accuracy")
    sources = {accuracy.spinning(microseconds).split("CUDA = ")[1] for microseconds in accuracy.SET_US}
    assert len(sources) == 1


def test_pairs_of_an_older_worker_leave_only_their_widths(noise, tmp_path):
    file = tmp_path / "noise.json"
    old = {"commit": "abc", "elements": 256, "median_ms": [0.01, 0.01], "low": 0.9, "high": 1.1}
    file.write_text(json.dumps({"pairs": {"cuda": [old, old]}}))
    found = noise.load(file)
    assert found == {"before": {"cuda": {"commit": "abc", "widths": {"10.0 us": 0.2}}}, "pairs": {}}
    new = noise.pair_of("5 us", Timing((0.005,) * 10), Timing((0.005,) * 10))
    file.write_text(json.dumps(found | {"pairs": {"cuda": [new]}}))
    again = noise.load(file)
    assert again["before"] == found["before"]
    assert len(again["pairs"]["cuda"]) == 1


def test_every_kernel_gets_as_many_pairs(noise):
    subjects, pairs = list(noise.kernels(Target.CUDA).items()), []
    for _ in range(40 * len(subjects)):
        pairs.append({"kernel": noise._next_kernel(subjects, pairs)[0]})
    names = [pair["kernel"] for pair in pairs]
    assert {names.count(name) for name, _ in subjects} == {40}
