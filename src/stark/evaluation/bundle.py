"""Evidence in one file: the kernel, its task, both reports with every sample, and the SHA-256 of each member.

A bundle is a zip archive of a fixed form: these members in this order, not compressed, without dates. So the same claim
makes the same bytes, and any other archive is refused before its content is used. Nothing is unpacked onto the disk.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stark.core.errors import BundleError
from stark.core.records import Final
from stark.core.settings import EvaluationSettings
from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import KernelBenchVersion, Precision, Score, Target

FORMAT, VERSION = "stark-bundle", 2
READABLE_VERSIONS = (1, 2)  # reports of version 1 have older names, which are still read
KERNEL, TASK, CLAIM, MANIFEST = "kernel.py", "task.py", "claim.json", "manifest.json"
REPORTS = {Score.VERIFIED: "verified.json", Score.KERNELBENCH: "kernelbench.json"}
MEMBERS = (KERNEL, TASK, CLAIM, *REPORTS.values(), MANIFEST)
MAX_BYTES = 64 * 2**20
Origin = tuple[DeviceFacts, dict[str, str]]  # the device and the versions
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of the format


@dataclass(frozen=True)
class Claim:
    """The rules and the device by which a kernel was judged."""

    task_name: str
    made_at: str
    isolation: str
    target: Target
    precision: Precision
    score: Score
    kernelbench_version: KernelBenchVersion
    atol: float | None
    rtol: float | None
    device: DeviceFacts
    versions: dict[str, str]
    tf32: bool = False

    @classmethod
    def of(cls, task_name: str, made_at: str, origin: Origin, final: Final, rules: EvaluationSettings) -> Claim:
        isolation = str(final.report.isolation or "unknown")
        conditions = (rules.target, rules.precision, final.score, rules.kernelbench_version, rules.atol, rules.rtol)
        return cls(task_name, made_at, isolation, *conditions, *origin, rules.tf32)

    def rules(self) -> dict[str, Any]:
        """Return the settings that judge the kernel again in the same way."""
        names = ("target", "precision", "score", "kernelbench_version", "atol", "rtol", "tf32")
        return {name: getattr(self, name) for name in names}

    def facts(self) -> list[tuple[str, str]]:
        """Return the claim as named texts for a person."""
        tolerances = [f"{name} {getattr(self, name):g}" for name in ("atol", "rtol") if getattr(self, name) is not None]
        tf32 = ["TF32"] if self.tf32 else []
        return [
            ("task", self.task_name),
            ("made", self.made_at),
            ("device", self.device.name),
            ("rules", ", ".join([self.target, self.precision, *tf32, self.score, *tolerances])),
            ("isolation", self.isolation),
        ]


@dataclass(frozen=True)
class Bundle:
    """A kernel and the claim about it."""

    claim: Claim
    task_source: str
    kernel_source: str
    final: Final


@dataclass(frozen=True)
class Manifest:
    """The SHA-256 of each member of an archive."""

    members: dict[str, str] = field(default_factory=dict)
    format: str = FORMAT
    version: int = VERSION


def pack(bundle: Bundle) -> bytes:
    """Return the bundle as bytes; equal bundles make equal bytes."""
    texts = {
        KERNEL: bundle.kernel_source,
        TASK: bundle.task_source,
        CLAIM: to_json(bundle.claim),
        REPORTS[Score.VERIFIED]: to_json(bundle.final.verified),
        REPORTS[Score.KERNELBENCH]: to_json(bundle.final.kernelbench),
    }
    members = {name: text.encode() for name, text in texts.items()}
    manifest = Manifest({name: hashlib.sha256(content).hexdigest() for name, content in members.items()})
    return _archive({**members, MANIFEST: to_json(manifest).encode()})


def read_bundle(path: Path) -> bytes:
    """Read a file that may be a bundle."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}.", "Check the path.") from error
    if len(data) > MAX_BYTES:
        raise BundleError(
            f"{path} is larger than {MAX_BYTES // 2**20} MB, the most a bundle may have.",
            "Give a file that `stark export --bundle` wrote.",
        )
    return data


def unpack(data: bytes) -> Bundle:
    """Return the bundle in these bytes. Raise ``BundleError`` if ``pack`` would not write exactly these."""
    members = _members(data)
    _check_manifest(members)
    if _archive(members) != data:
        raise _refusal("it holds more than its members")
    try:
        sources = {name: members[name].decode() for name in (TASK, KERNEL)}
        claim = from_json(Claim, members[CLAIM])
        EvaluationSettings(**claim.rules())  # refuses impossible tolerances
        verified, kernelbench = (from_json(EvalReport, members[name]) for name in REPORTS.values())
    except ValueError as error:  # from the protocol, the settings or the encoding
        raise _refusal(f"a member cannot be read: {error}") from error
    return Bundle(claim, sources[TASK], sources[KERNEL], Final(0, claim.score, verified, kernelbench))


def manifest_digest(data: bytes) -> str:
    """Return the SHA-256 of the manifest, which identifies a bundle."""
    return hashlib.sha256(_members(data)[MANIFEST]).hexdigest()


def _members(data: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            infos = archive.infolist()
            if tuple(info.filename for info in infos) != MEMBERS:
                raise _refusal(f"its members are not {', '.join(MEMBERS)}")
            if any(info.compress_type != zipfile.ZIP_STORED or info.file_size > len(data) for info in infos):
                raise _refusal("its members are compressed")
            return {info.filename: archive.read(info) for info in infos}
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise _refusal(f"it is damaged: {error}") from error


def _check_manifest(members: Mapping[str, bytes]) -> None:
    try:
        manifest = from_json(Manifest, members[MANIFEST])
    except ProtocolError as error:
        raise _refusal(f"its manifest cannot be read: {error}") from error
    if manifest.format != FORMAT or manifest.version not in READABLE_VERSIONS:
        raise _refusal(f"its format is not {FORMAT} version {VERSION} or older")
    found = {name: hashlib.sha256(members[name]).hexdigest() for name in MEMBERS if name != MANIFEST}
    if changed := [name for name in found if manifest.members.get(name) != found[name]]:
        raise _refusal(f"{changed[0]} does not match the manifest")
    if manifest.members.keys() != found.keys():
        raise _refusal("its manifest lists other members")


def _archive(members: Mapping[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name, ZIP_EPOCH)
            entry.create_system, entry.external_attr = 3, 0o644 << 16  # the same on every system
            archive.writestr(entry, content)
    return written.getvalue()


def _refusal(why: str) -> BundleError:
    return BundleError(f"The archive was changed, or is not a bundle: {why}.", "Get it again from its author.")
