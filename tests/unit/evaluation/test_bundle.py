"""A bundle is exactly what was packed, or it is refused; its claim is compared with a measurement."""

from __future__ import annotations

import hashlib
import io
import json
import stat
import zipfile
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stark.core.errors import BundleError
from stark.core.records import Final
from stark.core.settings import EvaluationSettings
from stark.evaluation.bundle import (
    MANIFEST,
    MAX_BYTES,
    MEMBERS,
    Bundle,
    Claim,
    manifest_digest,
    pack,
    read_bundle,
    unpack,
)
from stark.evaluation.verification import Verdict, Verification
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.isolation import Isolation, Level
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import Score

HERE = DeviceFacts("this machine", "cpu", cores=2)


def report(mine_ms: float = 1.0, opponent_ms: float = 2.0, jitter: float = 0.01) -> EvalReport:
    wobble = [1.0 + jitter * (number % 7 - 3) for number in range(30)]
    timing, opponent = Timing(tuple(mine_ms * by for by in wobble)), Timing((opponent_ms,) * 30)
    return EvalReport(
        Outcome.OK, timing, opponent=opponent, isolation=Isolation(Level.STRONG, "all"), device=HERE, seeds={"w": 7}
    )


def final(verified: EvalReport, kernelbench: EvalReport | None = None) -> Final:
    return Final(0, Score.VERIFIED, verified, kernelbench or verified)


def bundle(verified: EvalReport | None = None, **rules) -> Bundle:
    last = final(verified or report())
    claim = Claim.of("task", "2026-01-01", (HERE, {"python": "3.11"}), last, EvaluationSettings(**rules))
    return Bundle(claim, "class Model: ...\n", "class ModelNew: ...  # ü\n", last)


WHOLE = pack(bundle())


def rewritten(change) -> bytes:
    """The archive with its list of (entry, content) changed."""
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for info, content in change(members):
            archive.writestr(info, content)
    return written.getvalue()


def with_content(name: str, content: bytes, honest: bool = True) -> bytes:
    """One member replaced; ``honest``: with the manifest to match."""

    def change(members):
        changed = {info.filename: content if info.filename == name else old for info, old in members}
        if honest and name != MANIFEST:
            manifest = json.loads(changed[MANIFEST])
            manifest["members"][name] = hashlib.sha256(content).hexdigest()
            changed[MANIFEST] = json.dumps(manifest, ensure_ascii=False).encode()
        return [(info, changed[info.filename]) for info, _ in members]

    return rewritten(change)


def claiming(**changes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as archive:
        claim = json.loads(archive.read("claim.json"))
    return with_content("claim.json", json.dumps(claim | changes).encode())


def reporting(**changes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as archive:
        verified = json.loads(archive.read("verified.json"))
    return with_content("verified.json", json.dumps(verified | changes).encode())


def named(members, number: int, name: str):
    info = zipfile.ZipInfo(name, members[number][0].date_time)
    return [*members[:number], (info, members[number][1]), *members[number + 1 :]]


def compressed(members):
    for info, _ in members:
        info.compress_type = zipfile.ZIP_DEFLATED
    return members


def bomb(members):
    return compressed([(info, bytes(2**24) if info.filename == "task.py" else old) for info, old in members])


def linked(members):
    members[0][0].external_attr = (stat.S_IFLNK | 0o777) << 16
    return members


HOSTILE = {
    "another kernel": (with_content("kernel.py", b"class ModelNew: pass", honest=False), "kernel.py does not match"),
    "another time": (with_content("verified.json", b"{}", honest=False), "verified.json does not match"),
    "a path upward": (rewritten(lambda members: named(members, 0, "../../kernel.py")), "members are not"),
    "an absolute path": (rewritten(lambda members: named(members, 1, "/etc/passwd")), "members are not"),
    "a member too few": (rewritten(lambda members: members[1:]), "members are not"),
    "a member too many": (
        rewritten(lambda members: [*members, (zipfile.ZipInfo("more.py"), b"")]),
        "members are not",
    ),
    "another order": (rewritten(lambda members: members[::-1]), "members are not"),
    "compressed": (rewritten(compressed), "are compressed"),
    "a bomb": (rewritten(bomb), "are compressed"),
    "a link": (rewritten(linked), "more than its members"),
    "bytes before": (b"#!/bin/sh\n" + WHOLE, "more than its members"),
    "bytes behind": (WHOLE + b"more", "damaged|more than its members"),
    "half of it": (WHOLE[: len(WHOLE) // 2], "damaged"),
    "nothing": (b"", "damaged"),
    "something else": (b"PK" + bytes(500), "damaged"),
    "no manifest": (with_content(MANIFEST, b"[]"), "manifest cannot be read"),
    "a newer form": (
        with_content(MANIFEST, json.dumps({"members": {}, "format": "stark-bundle", "version": 3}).encode()),
        "version 2 or older",
    ),
    "nested without end": (with_content("claim.json", b"[" * 100_000), "cannot be read"),
    "a tolerance below zero": (claiming(atol=-1.0), "cannot be read"),
    "a tolerance without end": (claiming(rtol=float("inf")), "cannot be read"),
    "an unknown score": (claiming(score="mine"), "cannot be read"),
    "a number out of bounds": (claiming(atol=10**400), "cannot be read"),
    "samples without a partner": (reporting(opponent={"samples_ms": [1.0]}), "in pairs"),
    "a million samples": (reporting(timing={"samples_ms": [1.0] * 10**6}), "at most"),
    "a source that is no text": (with_content("kernel.py", b"\xff\xfe"), "cannot be read"),
}


def test_it_comes_back_as_it_was_and_the_same_claim_makes_the_same_bytes():
    assert unpack(WHOLE) == bundle()
    assert pack(unpack(WHOLE)) == WHOLE == pack(bundle())
    assert len(manifest_digest(WHOLE)) == 64
    assert manifest_digest(WHOLE) != manifest_digest(pack(bundle(report(1.1))))
    assert tuple(zipfile.ZipFile(io.BytesIO(WHOLE)).namelist()) == MEMBERS


def test_a_bundle_of_the_first_version_is_read():
    """Only the number differs from a bundle of today; older names in reports are tested with the protocol."""
    manifest = json.loads(zipfile.ZipFile(io.BytesIO(WHOLE)).read(MANIFEST)) | {"version": 1}
    assert unpack(with_content(MANIFEST, json.dumps(manifest).encode())) == bundle()


@pytest.mark.parametrize("name", HOSTILE)
def test_anything_else_is_refused_in_a_sentence(name):
    data, said = HOSTILE[name]
    with pytest.raises(BundleError, match=said):
        unpack(data)


@settings(max_examples=300)
@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_no_byte_can_change(place, by):
    changed = bytearray(WHOLE)
    changed[place] ^= by
    with pytest.raises(BundleError):
        unpack(bytes(changed))


@given(st.binary(max_size=300))
def test_noise_is_refused(noise):
    for data in (noise, WHOLE[:200] + noise, WHOLE + noise + b"!"):
        with pytest.raises(BundleError):
            unpack(data)


def test_a_file_that_is_missing_or_too_large_is_refused(tmp_path):
    with pytest.raises(BundleError, match="cannot be read"):
        read_bundle(tmp_path / "missing")
    with pytest.raises(BundleError, match="cannot be read"):
        read_bundle(tmp_path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(BundleError, match="larger"):
        read_bundle(tmp_path / "large")


FASTER, DOUBTFUL, SLOWER = report(), report(2.0, 2.0, 0.1), report(3.0, 2.0)
WRONG = EvalReport(Outcome.WRONG_RESULT, log="differs")
OTHER = DeviceFacts("another machine", "cpu", cores=64)


@pytest.mark.parametrize(
    ("claimed", "found", "device", "verdict", "said"),
    [
        (FASTER, FASTER, HERE, Verdict.HOLDS, "faster than the reference"),
        (FASTER, report(1.05), HERE, Verdict.HOLDS, "faster than the reference"),
        (FASTER, report(1.6), HERE, Verdict.FAILS, "not as fast as claimed"),
        (FASTER, report(1.6), OTHER, Verdict.HOLDS, "faster than the reference"),
        (FASTER, DOUBTFUL, HERE, Verdict.UNRESOLVED, "do not show that it is faster"),
        (FASTER, SLOWER, OTHER, Verdict.FAILS, "not faster than the reference"),
        (FASTER, WRONG, HERE, Verdict.FAILS, "not correct here: wrong result"),
        (WRONG, FASTER, HERE, Verdict.FAILS, "claims no correct"),
    ],
)
def test_what_a_claim_is_worth(claimed, found, device, verdict, said):
    verification = Verification(bundle(claimed), final(found), device)
    assert verification.verdict is verdict
    assert said in verification.reason
    assert len(verification.rows()) == 2


def test_the_score_that_decided_decides_again():
    last = Final(0, Score.KERNELBENCH, FASTER, DOUBTFUL)
    assert Verification(bundle(), last, HERE).verdict is Verdict.UNRESOLVED
    assert replace(last, score=Score.VERIFIED).speedup_interval[0] > 1


def test_whether_tf32_was_allowed_is_claimed_and_judged_by_again():
    for allowed in (False, True):
        claim = unpack(pack(bundle(target="cuda", tf32=allowed))).claim
        assert EvaluationSettings(**claim.rules()).tf32 is allowed
        assert ("TF32" in dict(claim.facts())["rules"]) is allowed


def test_a_claim_of_before_there_was_a_choice_is_one_without_tf32():
    with zipfile.ZipFile(io.BytesIO(WHOLE)) as archive:
        claim = json.loads(archive.read("claim.json"))
    del claim["tf32"]
    assert unpack(with_content("claim.json", json.dumps(claim).encode())).claim.tf32 is False
