"""Draws the figures of a report. Only this module imports matplotlib, which is an extra."""

from __future__ import annotations

import importlib.util
import io
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stark.analysis.groups import Group, groups_with_attempts
from stark.analysis.metrics import fast_p
from stark.report.paper_tables import stark_ratios

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILE_KINDS = {"svg": {"Date": None}, "png": {"Software": None}}  # metadata left out, so that files are reproducible
# A fixed salt makes files reproducible; a dollar sign in a name does not start mathematics.
STYLE: dict[Any, Any] = {"svg.hashsalt": "stark", "text.parse_math": False}
FAST_P_TICKS = (0.25, 0.5, 1, 2, 4, 8)
FAST_P_POINTS = [0.25 * 1.06**step for step in range(60)]  # p from 0.25 to about 8

ChooseGroups = Callable[[Sequence[Group]], list[Group]]
DrawPanel = Callable[[Any, Sequence[Group]], None]


def can_draw() -> bool:
    """True if matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw_figures(groups: Sequence[Group]) -> dict[str, dict[str, bytes]]:
    """Draw every figure with one panel per level and score; return files by name and kind."""
    import matplotlib

    matplotlib.use("agg")
    chosen = {name: choose(groups) for name, (choose, _) in FIGURES.items()}
    with matplotlib.rc_context(STYLE):
        return {name: _save(_make_figure(FIGURES[name][1], found)) for name, found in chosen.items() if found}


def _groups_with_ratios(groups: Sequence[Group]) -> list[Group]:
    """The groups of panels in which STARK can be compared with another method."""
    panels = {(each.score, each.level) for each, _ in stark_ratios(groups)}
    return [each for each in groups if (each.score, each.level) in panels]


def _make_figure(panel: DrawPanel, groups: Sequence[Group]) -> Figure:
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((each.score, each.level) for each in groups))
    figure = Figure(figsize=(4.8 * len(panels), 3.8), layout="constrained")
    for number, (score, level) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), number)
        axes.set_title(f"{level.title}, {score}", fontsize=10)
        panel(axes, [each for each in groups if (each.score, each.level) == (score, level)])
        axes.grid(alpha=0.3)
    return figure


def _save(figure: Figure) -> dict[str, bytes]:
    found = {}
    for kind, metadata in FILE_KINDS.items():
        file = io.BytesIO()
        figure.savefig(file, format=kind, metadata=metadata)
        figure.set_layout_engine(None)  # the layout is done, and it is most of the work
        found[kind] = file.getvalue()
    return found


def _draw_ratios(axes: Any, groups: Sequence[Group]) -> None:
    pairs = list(stark_ratios(groups))
    places = range(len(pairs))
    axes.bar([place - 0.2 for place in places], [statistics.fmean(ratios) for _, ratios in pairs], 0.4, label="mean")
    axes.bar([place + 0.2 for place in places], [statistics.median(ratios) for _, ratios in pairs], 0.4, label="median")
    axes.set_xticks(list(places), [each.method for each, _ in pairs], rotation=30, ha="right", fontsize=8)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylabel("STARK's speed over")
    axes.legend(fontsize=8)


def _draw_fast_p(axes: Any, groups: Sequence[Group]) -> None:
    for each in groups:
        axes.plot(FAST_P_POINTS, [100 * fast_p(each.speedups(), p) for p in FAST_P_POINTS])
    axes.set_xscale("log")
    axes.set_xticks(FAST_P_TICKS, list(map(str, FAST_P_TICKS)))
    axes.set_xticks([], minor=True)
    axes.set_xlabel("p, against eager")
    axes.set_ylabel("fast_p in %")
    _name_lines(axes, groups)


def _draw_best_so_far(axes: Any, groups: Sequence[Group]) -> None:
    for each in groups:
        curve = each.best_so_far_curve()
        axes.plot(range(1, len(curve) + 1), curve)
    axes.set_xlabel("attempts")
    axes.set_ylabel("best speed-up so far")
    _name_lines(axes, groups)


def _name_lines(axes: Any, groups: Sequence[Group]) -> None:
    """Add a legend. Names are set last, because matplotlib leaves out labels that begin with an underscore."""
    legend = axes.legend(axes.lines, ["line"] * len(axes.lines), fontsize=8)
    for text, each in zip(legend.get_texts(), groups, strict=True):
        text.set_text(each.method)


# By name: the groups to show, and the function that draws a panel of them.
FIGURES: dict[str, tuple[ChooseGroups, DrawPanel]] = {
    "figure-1": (_groups_with_ratios, _draw_ratios),
    "fast-p": (list, _draw_fast_p),  # rescored winners too
    "so-far": (groups_with_attempts, _draw_best_so_far),
}
