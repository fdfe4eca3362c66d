"""Where tasks come from and which of them are taken."""

from __future__ import annotations

import json

import pytest

from fakes import TASK
from stark.bench.task_sources import REPRESENTATIVE, list_checkout, list_dataset, list_files, select
from stark.core.errors import TaskError, UsageError
from stark.core.table_files import format_parquet


@pytest.fixture
def checkout(tmp_path):
    """A folder laid out as KernelBench is, with every task of the representative subset and some others."""
    for level, numbers in {**REPRESENTATIVE, 4: (1,)}.items():
        folder = tmp_path / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True)
        for number in {*numbers, 99}:
            (folder / f"{number}_Task{number}.py").write_text(TASK)
    (tmp_path / "KernelBench" / "level1" / "98_Broken.py").write_text("class Model(")
    return tmp_path


def names(listings):
    return [listing.name for listing in listings]


def test_a_checkout_is_listed_by_level_and_number(checkout):
    listings = list_checkout(checkout)
    assert listings == sorted(listings, key=lambda listing: (listing.level, listing.number))
    assert names(listings)[:3] == ["level1/1_Task1", "level1/3_Task3", "level1/6_Task6"]
    assert names(list_checkout(checkout / "KernelBench")) == names(listings)


@pytest.mark.parametrize(("subset", "sizes"), [("representative", (18, 8, 9)), ("paper", (14, 8, 8))])
def test_the_named_subsets(checkout, subset, sizes):
    chosen = select(list_checkout(checkout), subset)
    assert tuple(sum(listing.level == level for listing in chosen) for level in (1, 2, 3)) == sizes
    assert all(listing.load().level == listing.level for listing in chosen)


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        (["level4"], ["level4/1_Task1", "level4/99_Task99"]),
        (["level1/1-6"], ["level1/1_Task1", "level1/3_Task3", "level1/6_Task6"]),
        (["level2/8", "*Task86"], ["level1/86_Task86", "level2/8_Task8"]),
    ],
)
def test_tasks_are_picked_by_level_number_range_and_name(checkout, only, expected):
    assert names(select(list_checkout(checkout), only=only)) == expected


def test_what_is_not_there_is_refused(checkout, tmp_path):
    listings = list_checkout(checkout)
    with pytest.raises(UsageError, match="level7"):
        select(listings, only=["level1", "level7"])
    with pytest.raises(UsageError, match="no subset"):
        select(listings, "papers")
    with pytest.raises(UsageError, match="needs task 3 of level 1"):
        select([listing for listing in listings if listing.number != 3], "paper")
    with pytest.raises(UsageError, match="not a KernelBench checkout"):
        list_checkout(checkout / "KernelBench" / "level1")


def test_only_what_is_selected_has_to_be_a_task(checkout):
    (broken,) = select(list_checkout(checkout), only=["*Broken"])
    with pytest.raises(TaskError, match="not valid Python"):
        broken.load()


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json"])
def test_a_snapshot_of_the_data_set_is_read(tmp_path, kind):
    rows = [{"code": TASK, "level": 2, "name": f"{number}_Task", "problem_id": number} for number in (10, 9)]
    file = tmp_path / f"level_2.{kind}"
    if kind == "parquet":
        file.write_bytes(format_parquet(rows))
    else:
        file.write_text(json.dumps(rows) if kind == "json" else "\n".join(map(json.dumps, rows)))
    listings = list_dataset(tmp_path)
    assert names(listings) == ["level2/9_Task", "level2/10_Task"]
    task = listings[0].load()
    assert (task.level, task.number, task.source) == (2, 9, TASK)


def test_a_snapshot_of_something_else_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no task"):
        list_dataset(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"text": "hello"}\n')
    with pytest.raises(UsageError, match="is not a task"):
        list_dataset(tmp_path)


def test_own_files_are_a_file_or_a_folder(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b.py", "deep/a.py"):
        (tmp_path / name).write_text(TASK)
    assert names(list_files(tmp_path)) == ["b", "deep/a"]
    assert names(list_files(tmp_path / "b.py")) == ["b"]
    assert list_files(tmp_path)[1].load().source == TASK
    with pytest.raises(TaskError, match="no task file"):
        list_files(tmp_path / "none")
