"""A benchmark's grid: files, axes, names, and kernels another tool made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pretend import TASK
from stark.errors import SettingsError, UsageError
from stark.grid import Kind, judged_cells, make_grid, read_generations, read_grid, settings_maker, with_baselines
from stark.settings import Settings
from stark.task import Task
from stark_worker.protocol import KernelBenchVersion, Score

CONFIGS = Path(__file__).parents[2] / "configs"
TASKS = [Task(f"level1/{number}_Task", f"# {number}\n{TASK}", "", 1, number) for number in (1, 2)]


@pytest.mark.parametrize("name", ["table-1", "table-3", "switches", "strict"])
def test_the_grids_we_ship_can_be_made(name):
    grid = read_grid(CONFIGS / f"{name}.toml", {})
    cells = make_grid(TASKS, grid.methods, grid.switches, grid.seeds, settings_maker(Path(grid.config), [], {}))
    assert len(cells) == 2 * len(grid.methods) * (1 + len(grid.switches)) * grid.seeds
    assert {cell.settings.budget.attempts for cell in cells} == {30}


def test_the_papers_tables_are_scored_as_the_paper_did():
    grid = read_grid(CONFIGS / "table-1.toml", {})
    settings = settings_maker(Path(grid.config), [], {})("stark", 0, ())
    assert settings.evaluation.score is Score.KERNELBENCH
    assert settings.evaluation.kernelbench_version is KernelBenchVersion.V01


def test_the_command_line_prevails_over_the_file(tmp_path):
    grid = read_grid(CONFIGS / "table-3.toml", {"methods": ["stark"], "seeds": 2, "config": "mine.toml"})
    assert (grid.methods, grid.seeds, grid.subset, grid.config) == (("stark",), 2, "paper", "mine.toml")
    (tmp_path / "bad.toml").write_text("seed = 3\n")
    with pytest.raises(SettingsError, match=r"seed in .*bad\.toml"):
        read_grid(tmp_path / "bad.toml", {})


def test_every_cell_has_a_name_of_its_own_and_its_own_settings():
    switches = ["anchors.mode=off", "windows.leaders=0,search.epsilon=0.4"]
    cells = make_grid(TASKS, ["stark", "sampling"], switches, 2, settings_maker(None, [], {"budget": {"attempts": 7}}))
    assert len({cell.id for cell in cells}) == len(cells) == 2 * 2 * 3 * 2
    last = cells[5].settings
    assert (last.windows.leaders, last.search.epsilon, last.seed, last.budget.attempts) == (0, 0.4, 1, 7)


def test_baselines_are_measured_once_per_task_and_score():
    cells = with_baselines(make_grid(TASKS, ["stark", "sampling"], [], 1, settings_maker(None, [], {})), True)
    kinds = [cell.kind for cell in cells[:4]]
    assert kinds == [Kind.SEARCH, Kind.SEARCH, Kind.BASELINES, Kind.BASELINES]
    assert len({cell.id for cell in cells}) == len(cells) == 8
    assert [given.label for given in cells[2].given] == ["torch.compile default", "torch.compile max-autotune"]


def test_generations_are_found_by_their_names(tmp_path):
    for name in ("level_1_problem_2_sample_10", "level_1_problem_2_sample_9", "level_2_problem_1_sample_0"):
        (tmp_path / f"{name}_kernel.py").write_text(name)
    (tmp_path / "notes.py").write_text("")
    found = read_generations(tmp_path)
    assert [given.label for given in found[1, 2]] == ["sample 9", "sample 10"]
    cells = judged_cells(TASKS, found, "theirs", Settings())
    placed = [(cell.task.number, cell.settings.evaluation.score, len(cell.given)) for cell in cells]
    assert placed == [(number, score, made) for number, made in ((1, 0), (2, 2)) for score in Score]
    assert judged_cells(TASKS[:1], found, "theirs", Settings()) == [], "none of them is for a chosen task"
    with pytest.raises(UsageError, match="holds no generated kernel"):
        read_generations(tmp_path / "none")


def test_a_method_or_switch_that_is_named_twice_is_run_once():
    maker = settings_maker(None, [], {})
    switches = ["anchors.mode=off", "", "anchors.mode=off"]
    cells = make_grid(TASKS[:1], ["stark", "sampling", "stark"], switches, 1, maker)
    assert [(cell.settings.method, cell.switch) for cell in cells] == [
        (method, switch) for method in ("stark", "sampling") for switch in ("", "anchors.mode=off")
    ]


@pytest.mark.parametrize("name", ["level1/1_Task", "level1/1_Other"])
def test_tasks_that_could_not_be_told_apart_are_refused(name):
    task = Task("level1/1_Task", TASK, "", 1, 1)
    maker = settings_maker(None, [], {})
    twice = [task, replace(task, name=name, source=f"# other\n{TASK}")]
    for made in (
        lambda: make_grid(twice, ["stark"], [], 1, maker),
        lambda: judged_cells(twice, {}, "x", maker("stark", 0, ())),
    ):
        with pytest.raises(UsageError, match="number 1 of level 1") as refused:
            made()
        assert name in refused.value.message
