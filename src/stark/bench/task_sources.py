"""Lists and selects tasks: from a KernelBench checkout, a snapshot of its data set, or the user's own files.

Only selected tasks are read and checked, so a broken file elsewhere does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from stark.core.errors import TaskError, UsageError
from stark.core.table_files import Row, read_rows
from stark.core.task import Task, check_contract, check_syntax, read_source

REPRESENTATIVE = {
    1: (1, 3, 6, 18, 23, 26, 33, 36, 40, 42, 48, 54, 57, 65, 77, 82, 86, 87),
    2: (1, 2, 8, 18, 23, 28, 33, 43),
    3: (1, 5, 8, 11, 20, 21, 33, 38, 43),
}
# The paper's rates are multiples of 1/14, 1/8 and 1/8, so it left out five tasks without naming them. Most likely
# these: four do not fit its 40 GB card under KernelBench's comparison.
NOT_IN_THE_PAPER = {(1, 23), (1, 26), (1, 36), (1, 87), (3, 21)}

_LEVEL_FOLDER = re.compile(r"level(\d+)")
_NUMBERED = re.compile(r"(\d+)_.*")
_RANGE = re.compile(r"level(\d+)(?:/(\d+)(?:-(\d+))?)?")


@dataclass(frozen=True)
class Listing:
    """A task that has not been read yet."""

    name: str
    level: int | None
    number: int | None
    read: Callable[[], str]

    def load(self) -> Task:
        """Read and check the task."""
        source = self.read()
        check_syntax(source, Path(self.name))
        check_contract(source, Path(self.name))
        return Task(self.name, source, level=self.level, number=self.number)


def list_checkout(path: Path) -> list[Listing]:
    """List the tasks of a KernelBench checkout, by level and number."""
    top = path / "KernelBench" if (path / "KernelBench").is_dir() else path
    found = []
    for folder in top.glob("level*"):
        level = _LEVEL_FOLDER.fullmatch(folder.name)
        for file in folder.glob("*.py") if level else ():
            number = _NUMBERED.fullmatch(file.stem)
            if level and number:
                found.append(_listing(file.stem, int(level[1]), int(number[1]), _reader(file)))
    if not found:
        raise UsageError(
            f"{path} is not a KernelBench checkout.", "Give a folder that holds level1, level2, ... with task files."
        )
    return _sorted(found)


def list_dataset(path: Path) -> list[Listing]:
    """List the tasks of a downloaded data set: Parquet or JSON files with code, level, name, problem_id."""
    kinds = ("parquet", "jsonl", "json")
    files = next((files for kind in kinds if (files := sorted(path.rglob(f"*.{kind}")))), [])
    found = [_row_listing(row, file) for file in files for row in read_rows(file)]
    if not found:
        raise UsageError(f"{path} holds no task.", "Download the data set into that folder first.")
    return _sorted(found)


def list_files(path: Path) -> list[Listing]:
    """List one task file, or every task file in a folder and below."""
    if path.is_file():
        return [Listing(path.stem, None, None, _reader(path))]
    files = sorted(path.rglob("*.py"))
    if not files:
        raise TaskError(f"There is no task file in {path}.", "Name a file, or a folder that holds some.")
    return [Listing(str(file.relative_to(path).with_suffix("")), None, None, _reader(file)) for file in files]


def select(listings: Sequence[Listing], subset: str = "all", only: Sequence[str] = ()) -> list[Listing]:
    """Select the tasks of a subset that match any ``only`` pattern.

    A pattern is ``level1``, ``level1/26``, ``level1/1-10``, or a name with wildcards: ``*Softmax*``.
    """
    chosen = _subset(listings, subset)
    if not only:
        return chosen
    for pattern in only:
        if not any(_matches(listing, pattern) for listing in chosen):
            raise UsageError(
                f"No task matches {pattern!r}.", "Write level1, level1/26, level1/1-10, or a name such as '*Softmax*'."
            )
    return [listing for listing in chosen if any(_matches(listing, pattern) for pattern in only)]


def _subset(listings: Sequence[Listing], name: str) -> list[Listing]:
    if name == "all":
        return list(listings)
    if name not in ("representative", "paper"):
        raise UsageError(f"There is no subset {name!r}.", "Known: representative, paper, all.")
    wanted = {(level, number) for level, numbers in REPRESENTATIVE.items() for number in numbers}
    if name == "paper":
        wanted -= NOT_IN_THE_PAPER
    chosen = [listing for listing in listings if (listing.level, listing.number) in wanted]
    if missing := wanted - {(listing.level, listing.number) for listing in chosen}:
        level, number = min(missing)
        raise UsageError(
            f"The subset {name} needs task {number} of level {level}, which is missing.",
            "Give a complete KernelBench checkout.",
        )
    return chosen


def _matches(listing: Listing, pattern: str) -> bool:
    place = _RANGE.fullmatch(pattern)
    if place is None:
        return fnmatchcase(listing.name, pattern) or fnmatchcase(listing.name.rpartition("/")[2], pattern)
    level, first, last = place.groups()
    if listing.level != int(level) or listing.number is None:
        return False
    return first is None or int(first) <= listing.number <= int(last or first)


def _listing(name: str, level: int, number: int, read: Callable[[], str]) -> Listing:
    return Listing(f"level{level}/{name}", level, number, read)


def _row_listing(row: Row, file: Path) -> Listing:
    try:
        code = str(row["code"])
        return _listing(str(row["name"]), int(row["level"]), int(row["problem_id"]), lambda: code)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"A row of {file} is not a task: {error!r}.", "Give a snapshot of KernelBench's data set."
        ) from error


def _reader(file: Path) -> Callable[[], str]:
    return lambda: read_source(file)


def _sorted(listings: list[Listing]) -> list[Listing]:
    return sorted(listings, key=lambda listing: (listing.level or 0, listing.number or 0))
