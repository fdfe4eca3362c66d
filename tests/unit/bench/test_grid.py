"""A benchmark's grid: files, axes, names, and kernels another tool made."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from fakes import TASK, PretendModel
from paths import ROOT
from stark.bench.forecast import PACES, forecast
from stark.bench.grid import judged_cells, make_grid, read_generations, read_grid, settings_factory, with_baselines
from stark.core.errors import SettingsError, UsageError
from stark.core.records import Kind
from stark.core.settings import Settings
from stark.core.task import Task
from stark_worker.protocol.request import KernelBenchVersion, Score, Target

CONFIGS = ROOT / "configs"
TASKS = [Task(f"level1/{number}_Task", f"# {number}\n{TASK}", "", 1, number) for number in (1, 2)]


@pytest.mark.parametrize("name", ["table-1", "table-3", "switches", "strict"])
def test_the_grids_we_ship_can_be_made(name):
    grid = read_grid(CONFIGS / f"{name}.toml", {})
    cells = make_grid(TASKS, grid.methods, grid.switches, grid.seeds, settings_factory(Path(grid.config), [], {}))
    assert len(cells) == 2 * len(grid.methods) * (1 + len(grid.switches)) * grid.seeds
    assert {cell.settings.budget.attempts for cell in cells} == {30}


def test_the_papers_tables_are_scored_as_the_paper_did():
    grid = read_grid(CONFIGS / "table-1.toml", {})
    settings = settings_factory(Path(grid.config), [], {})("stark", 0, ())
    assert settings.evaluation.score is Score.KERNELBENCH
    assert settings.evaluation.kernelbench_version is KernelBenchVersion.V01


def test_the_command_line_prevails_over_the_file(tmp_path):
    grid = read_grid(CONFIGS / "table-3.toml", {"methods": ["stark"], "seeds": 2, "config": "mine.toml"})
    assert (grid.methods, grid.seeds, grid.subset, grid.config) == (("stark",), 2, "paper", "mine.toml")
    (tmp_path / "bad.toml").write_text("seed = 3\n")
    with pytest.raises(SettingsError, match=r"seed in .*bad\.toml"):
        read_grid(tmp_path / "bad.toml", {})


@pytest.mark.parametrize("line", ["methods = []", "seeds = []", "seeds = 0"])
def test_a_grid_without_anything_on_an_axis_is_refused_by_the_name_of_that(tmp_path, line):
    (tmp_path / "empty.toml").write_text(line)
    with pytest.raises(SettingsError, match=rf"^{line.partition(' ')[0]} in .*empty\.toml"):
        read_grid(tmp_path / "empty.toml", {})


@pytest.mark.parametrize("switch", [" ", ",", " , "])
def test_a_switch_that_changes_nothing_is_refused(switch):
    with pytest.raises(SettingsError, match="changes nothing"):
        make_grid(TASKS, ["stark"], [switch], 1, settings_factory(None, [], {}))


def test_every_cell_has_a_name_of_its_own_and_its_own_settings():
    switches = ["anchors.mode=off", "windows.leaders=0,search.epsilon=0.4"]
    cells = make_grid(
        TASKS, ["stark", "sampling"], switches, 2, settings_factory(None, [], {"budget": {"attempts": 7}})
    )
    assert len({cell.id for cell in cells}) == len(cells) == 2 * 2 * 3 * 2
    last = cells[5].settings
    assert (last.windows.leaders, last.search.epsilon, last.seed, last.budget.attempts) == (0, 0.4, 1, 7)


def test_a_switch_prevails_over_the_command_line():
    settings_of = settings_factory(None, [], {"roles": {"model": "fakes:One"}})
    plain, switched = make_grid(TASKS[:1], ["stark"], ["roles.model=fakes:Other"], 1, settings_of)
    assert plain.settings.roles.plan.model == "fakes:One"
    assert switched.settings.roles.plan.model == switched.settings.roles.code.model == "fakes:Other"


@pytest.mark.parametrize(
    ("switch", "base_url", "key"),
    [
        ("roles.model=openai:gpt-5", None, None),
        ("roles.model=other,roles.base_url=http://there/v1", "http://there/v1", None),
        ("roles.temperature=0.5", "http://here/v1", "MINE"),
    ],
)
def test_another_model_of_a_switch_is_not_asked_for_at_the_address_of_the_first(switch, base_url, key):
    here = {"model": "qwen", "base_url": "http://here/v1", "api_key_env": "MINE"}
    switched = make_grid(TASKS[:1], ["stark"], [switch], 1, settings_factory(None, [], {"roles": here}))[1]
    assert (switched.settings.roles.plan.base_url, switched.settings.roles.plan.api_key_env) == (base_url, key)


def test_baselines_are_measured_once_per_task_and_score():
    cells = with_baselines(make_grid(TASKS, ["stark", "sampling"], [], 1, settings_factory(None, [], {})), True)
    kinds = [cell.kind for cell in cells[:4]]
    assert kinds == [Kind.SEARCH, Kind.SEARCH, Kind.BASELINES, Kind.BASELINES]
    assert len({cell.id for cell in cells}) == len(cells) == 8
    assert [given.label for given in cells[2].given] == ["torch.compile default", "torch.compile max-autotune"]


MANY = 10_000  # runs and attempts at once, so that the lane is what takes the time


def hours_of(*sets, attempts=5, parallel_runs=MANY, jobs=MANY, baselines=False, both_scores=False):
    options = {"roles": {"model": "fakes:PretendModel"}, "budget": {"attempts": attempts}, "jobs": jobs}
    cells = make_grid(TASKS, ["stark"], [], 1, settings_factory(None, ["evaluation.target=triton", *sets], options))
    cells = with_baselines(cells, both_scores) if baselines else cells
    return forecast(cells, parallel_runs, both_scores).hours * 3600


def test_an_estimate_counts_references_attempts_finals_and_baselines():
    pace = PACES[Target.TRITON]
    plain = hours_of("evaluation.final=false")
    assert plain == pytest.approx(2 * (1 + 5) * pace.evaluation)
    assert hours_of() - plain == pytest.approx(2 * pace.final)
    timed = 2 * (pace.compiled + pace.tuned + 2 * pace.evaluation)
    assert hours_of(baselines=True) - hours_of() == pytest.approx(timed), "each in turns with the reference"
    assert pace.compiled >= 10, "it is compiled before it is timed"


def test_an_estimate_counts_what_judging_by_the_other_score_takes():
    pace = PACES[Target.TRITON]
    assert hours_of(both_scores=True) - hours_of() == pytest.approx(2 * pace.evaluation), (
        "the references; finals have both"
    )
    without = hours_of("evaluation.final=false", both_scores=True) - hours_of("evaluation.final=false")
    assert without == pytest.approx(2 * 2 * pace.evaluation), "and the winners"


def test_winners_are_built_outside_the_lane_of_a_gpu_and_inside_that_of_a_cpu():
    for target, in_lane in ((Target.CUDA, False), (Target.CPU, True)):
        pace, sets = PACES[target], [f"evaluation.target={target}"]
        final = hours_of(*sets) - hours_of(*sets, "evaluation.final=false")
        assert final == pytest.approx(2 * (pace.final + pace.stock_build * in_lane))
    waiting = [
        hours_of("evaluation.target=cuda", f"evaluation.final={final}", parallel_runs=1, jobs=1)
        for final in ("true", "false")
    ]
    pace = PACES[Target.CUDA]
    assert waiting[0] - waiting[1] == pytest.approx(2 * (pace.stock_build + pace.final))


def test_a_grid_takes_no_less_than_one_of_its_searches():
    """However many runs may be in flight: the attempts of a run follow each other, as many at once as it has jobs."""
    pace = PACES[Target.TRITON]
    alone, by_jobs = (hours_of(parallel_runs=16, jobs=jobs, attempts=30) for jobs in (1, 5))
    assert alone >= 30 * (pace.call + pace.evaluation) + pace.final
    assert by_jobs - pace.final == pytest.approx((alone - pace.final) / 5)
    assert hours_of(parallel_runs=1, jobs=1, attempts=30) == pytest.approx(2 * alone)


class CountedModel(PretendModel):
    """Keeps count of how often it is opened, by its temperature: each role has one of its own."""

    opened: ClassVar[Counter[float | None]] = Counter()

    def __init__(self, settings):
        super().__init__(settings)
        self.opened[settings.temperature] += 1


def test_an_estimate_opens_every_model_once():
    CountedModel.opened.clear()
    options = {"roles": {"model": f"{__name__}:CountedModel", "code": {"temperature": 0.2}}}
    switches = ["anchors.mode=off", "roles.plan.temperature=0.9"]
    cells = make_grid(TASKS, ["stark", "ma-only", "sampling"], switches, 3, settings_factory(None, [], options))
    assert forecast(cells, 1).calls > 1_000
    assert CountedModel.opened == {0.8: 1, 0.9: 1, 0.2: 1, 0.1: 1, 0.7: 1}, "plan, switched plan, code, debug, solo"


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
    (tmp_path / "level_1_problem_2_sample_09_kernel.py").write_text("another")
    with pytest.raises(UsageError, match="are the same sample"):
        read_generations(tmp_path)


def test_a_method_or_switch_that_is_named_twice_is_run_once():
    maker = settings_factory(None, [], {})
    switches = ["anchors.mode=off", "", "anchors.mode=off"]
    cells = make_grid(TASKS[:1], ["stark", "sampling", "stark"], switches, 1, maker)
    assert [(cell.settings.method, cell.switch) for cell in cells] == [
        (method, switch) for method in ("stark", "sampling") for switch in ("", "anchors.mode=off")
    ]


@pytest.mark.parametrize("name", ["level1/1_Task", "level1/1_Other"])
def test_tasks_with_the_same_identity_are_refused(name):
    task = Task("level1/1_Task", TASK, "", 1, 1)
    maker = settings_factory(None, [], {})
    twice = [task, replace(task, name=name, source=f"# other\n{TASK}")]
    for made in (
        lambda: make_grid(twice, ["stark"], [], 1, maker),
        lambda: judged_cells(twice, {}, "x", maker("stark", 0, ())),
    ):
        with pytest.raises(UsageError, match="number 1 of level 1") as refused:
            made()
        assert name in refused.value.message


def test_a_grid_file_with_an_old_name_is_refused_with_the_new_one(tmp_path):
    file = tmp_path / "grid.toml"
    file.write_text("at_once = 4\n")
    with pytest.raises(SettingsError, match="at_once, which is now the option --parallel-runs"):
        read_grid(file, {})
