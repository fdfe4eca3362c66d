"""Rebuilds the prompts of recorded runs of the method stark in the form of the method informed, and compares them.

    python benchmarks/studies/prompts.py FOLDER [--bound RUN=MS ...] [--save]

FOLDER holds run folders with a `stark.db` each; older files are copied and brought up to date. For every attempt the
tree is the one that its planner saw. Recorded plans are rewritten: an idea, line ranges where the markers stood, and
the advice. A token is taken for four characters. Stops are replayed on the nodes in the order in which they landed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record

from stark.agents.informed.history import shorten_line
from stark.agents.informed.prompts import InformedPrompts
from stark.agents.informed.regions import choose_regions, make_scaffold
from stark.agents.source_lines import MARKER
from stark.core.chat import Message
from stark.core.records import Call, InFlight, RunRecord, Ticket, TicketRecord
from stark.core.settings import BudgetSettings
from stark.core.tree import ROOT_ID, Node, Plan, Role, Tree
from stark.run.methods import make_team, templates_of, with_stops
from stark.run.settings_loader import load_settings
from stark.search.stops import find_stop
from stark.store.open import open_store
from stark.store.rows import ticket_of

TOKEN = 4  # characters
IDEA_CHARACTERS = 100
# Facts that reviewers of the recorded prompts missed, as what a plan on a CUDA task must hold.
FACTS = {
    "tolerance": "A value may be off by",
    "split products": "about 22 bits",
    "how it is timed": "Timed call by call on new inputs, with the cache flushed",
    "noise": "The noise is about",
    "what is checked": "secret inputs of several distributions",
    "modes": "train mode under no_grad",
    "buffers": "no buffers such as running statistics",
    "cached weights": "derived from them may be kept",
    "shapes and gradients": "No gradients",
    "flags": "compute_90a",
    "CUTLASS": "no CUTLASS",
    "cuBLAS": "-lcublas",
    "memory in GiB": "GiB",
    "bandwidth is measured": "measured copy bandwidth",
    "two clocks": "the profiler's clock",
    "direction": "Direction of this attempt",
}
BELOW_ROOT = {"rows with parents": "| on #0 |", "the base": "## Base: #", "the explanation": "The coder said:"}


@dataclass(frozen=True)
class Run:
    """A recorded run."""

    name: str
    record: RunRecord
    nodes: tuple[Node, ...]
    tickets: tuple[TicketRecord, ...]
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Row:
    """One attempt: characters of its prompts then and now, and what is not source; tokens of its plan."""

    run: str
    number: int
    recorded: int
    rebuilt: int
    sources: int
    beyond_plan: int
    beyond_code: int
    recorded_plan_tokens: int
    plan_tokens: int
    missing_facts: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.rebuilt / self.recorded


def load_runs(folder: Path) -> Iterator[Run]:
    """Yield the recorded runs of a folder that planned, from copies that are brought up to date."""
    for path in sorted(folder.glob("*/stark.db")):
        with TemporaryDirectory() as scratch:
            shutil.copy(path, scratch)
            with closing(open_store(Path(scratch), write=True, create=False)) as store:
                (found,) = store.runs()
                rows = store.db.execute("SELECT * FROM tickets ORDER BY number").fetchall()
                run = Run(
                    path.parent.name,
                    found,
                    tuple(store.nodes(found.id)),
                    tuple(ticket_of(row) for row in rows),
                    tuple(store.calls(found.id)),
                )
        if any(call.role is Role.PLAN for call in run.calls):
            yield run


# -- prompts --------------------------------------------------------------------------------------------------------


def rebuild(run: Run) -> list[Row]:
    """Compare the prompts of every attempt that was planned and coded."""
    settings = load_settings(options={"method": "informed", "evaluation": run.record.settings["evaluation"]})
    prompts: InformedPrompts = make_team(settings, templates_of(settings), run.record.task, run.record.device).prompts
    tree = Tree(_with_idea(node) for node in run.nodes)
    first = {(call.number, call.role): call for call in reversed(run.calls)}
    tickets = {ticket.number: ticket for ticket in _make_tickets(run, tree)}
    return [
        _compare(run, prompts, tickets[number], first[number, Role.PLAN], first[number, Role.CODE], tree[number])
        for number in tickets
        if {(number, Role.PLAN), (number, Role.CODE)} <= first.keys() and number in tree
    ]


def _compare(run: Run, prompts: InformedPrompts, ticket: Ticket, planned: Call, coded: Call, node: Node) -> Row:
    assert node.plan is not None
    plan, written = rewrite_plan(node.plan, ticket.parent)
    asked, code = prompts.plan(ticket), prompts.code(ticket, plan)
    at_root = ticket.parent.id == ROOT_ID
    wanted = FACTS | ({} if at_root else BELOW_ROOT)
    missing = tuple(name for name, text in wanted.items() if text not in asked[1].content)
    sources = [_count_sources(messages) for messages in (asked, code)]
    lengths = [_length(messages) for messages in (asked, code)]
    return Row(
        run.name,
        ticket.number,
        recorded=_length(planned.messages) + _length(coded.messages),
        rebuilt=sum(lengths),
        sources=sum(sources),
        beyond_plan=lengths[0] - sources[0],
        beyond_code=lengths[1] - sources[1],
        recorded_plan_tokens=len(planned.reply.text + (planned.reply.arguments or "")) // TOKEN,
        plan_tokens=len(written) // TOKEN,
        missing_facts=missing,
    )


def rewrite_plan(plan: Plan, base: Node) -> tuple[Plan, str]:
    """Return a recorded plan in the new form, and the text that a planner would have written for it."""
    idea = shorten_line(plan.advice, IDEA_CHARACTERS)
    if base.id == ROOT_ID or plan.scaffold is None:
        return Plan(plan.advice, idea=idea), f"Idea: {idea}\n\n{plan.advice}"
    source = base.source or ""
    ranges = ", ".join(f"{first}-{last}" for first, last in marked_ranges(source, plan.scaffold))
    scaffold = make_scaffold(source, choose_regions(ranges, source)[0])
    return Plan(plan.advice, scaffold, (), idea), f"Idea: {idea}\nRegions: {ranges}\n\n{plan.advice}"


def marked_ranges(source: str, scaffold: str) -> list[tuple[int, int]]:
    """Return the lines of the source, counted from 1, between the markers of its scaffold."""
    lines = scaffold.split("\n")
    inside, marked = False, set()
    for number, line in enumerate(lines):
        if found := MARKER.search(line):
            inside = "BEGIN" in found[0].upper()
        elif inside:
            marked.add(number)
    matcher = difflib.SequenceMatcher(None, lines, source.split("\n"), autojunk=False)
    places = {
        block.a + step: block.b + step + 1 for block in matcher.get_matching_blocks() for step in range(block.size)
    }
    ranges: list[tuple[int, int]] = []
    before: int | None = None
    for number in sorted(marked & places.keys()):
        place = places[number]
        joined = before is not None and all(each in marked for each in range(before, number))
        ranges = [*ranges[:-1], (ranges[-1][0], place)] if joined else [*ranges, (place, place)]
        before = number
    return ranges


def _make_tickets(run: Run, tree: Tree) -> Iterator[Ticket]:
    landed = [node.id for node in run.nodes]
    begun: dict[int, Ticket] = {}
    for record_ in run.tickets:
        visible = set(landed[: record_.visible])
        others = tuple(
            InFlight(number, other.parent.id, other.sibling) for number, other in begun.items() if number not in visible
        )
        view = tree.at(record_.visible)
        begun[record_.number] = Ticket(record_.number, view[record_.parent_id], view, f"0/{run.name}", others)
        yield begun[record_.number]


def _with_idea(node: Node) -> Node:
    plan = node.plan and replace(node.plan, idea=shorten_line(node.plan.advice, IDEA_CHARACTERS))
    return replace(node, attempt=replace(node.attempt, plan=plan))


def _length(messages: Sequence[Message]) -> int:
    return sum(len(message.content) for message in messages)


def _count_sources(messages: Sequence[Message]) -> int:
    """Count the characters of the sources that a prompt holds in full."""
    return sum(len(block) for block in re.findall(r"^```+python\n(.*?)^```+$", messages[1].content, re.M | re.S))


# -- stops ----------------------------------------------------------------------------------------------------------


def replay_stops(run: Run, bound_ms: float | None = None) -> dict[str, Any]:
    """Return after how many attempts the run would have stopped, and the share of its best speed it had by then."""
    budget: BudgetSettings = with_stops(load_settings()).budget
    tree = Tree(run.nodes)
    assert tree.best is not None
    for landed in range(2, len(run.nodes) + 1):
        view = Tree(run.nodes[:landed])
        if reason := find_stop(view, budget, bound_ms):
            break
    best = view.best
    share = (tree.best.runtime_ms or 0.0) / best.runtime_ms if best and best.runtime_ms else 0.0
    return {"attempts": landed - 1, "reason": str(reason) if reason else "none", "share_of_best": round(share, 4)}


# -- figures --------------------------------------------------------------------------------------------------------


def summarise(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the figures of some attempts."""
    later = [row for row in rows if row.number > 2]
    return {
        "attempts": len(rows),
        "share_of_all_characters": round(sum(row.rebuilt for row in rows) / sum(row.recorded for row in rows), 3),
        "median_share": round(statistics.median(row.share for row in rows), 3),
        "attempts_at_most_40_percent": sum(row.share <= 0.4 for row in rows),
        "least_possible_share": round(sum(row.sources for row in rows) / sum(row.recorded for row in rows), 3),
        "most_tokens_beyond_sources": max(max(row.beyond_plan, row.beyond_code) for row in rows) // TOKEN,
        "median_tokens_beyond_sources": round(
            statistics.median(count for row in rows for count in (row.beyond_plan, row.beyond_code)) / TOKEN
        ),
        "most_tokens_of_a_plan": max(row.plan_tokens for row in rows),
        "median_recorded_plan_tokens": round(statistics.median(row.recorded_plan_tokens for row in later or rows)),
        "missing_facts": sorted({fact for row in rows for fact in row.missing_facts}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--bound",
        action="append",
        default=[],
        metavar="RUN=MS",
        help="the bound of a run's task, which was not recorded: bytes moved at the measured copy bandwidth",
    )
    parser.add_argument("--save", action="store_true", help="write the committed result file")
    options = parser.parse_args()
    bounds = {name: float(ms) for name, ms in (each.split("=") for each in options.bound)}
    runs = list(load_runs(options.folder))
    rows = {run.name: rebuild(run) for run in runs}
    result = {
        "all": summarise([row for each in rows.values() for row in each]),
        "runs": {name: summarise(each) for name, each in rows.items()},
        "bounds_ms": bounds,
        "stops": {run.name: replay_stops(run, bounds.get(run.name)) for run in runs},
        "rows": [asdict(row) | {"share": round(row.share, 3)} for each in rows.values() for row in each],
    }
    print(json.dumps({name: value for name, value in result.items() if name != "rows"}, indent=2))
    if options.save:
        record.write(record.result_file("prompts"), record.facts() | result)


if __name__ == "__main__":
    main()
