"""The figures of a report. The only home of matplotlib, which is an extra."""

from __future__ import annotations

import importlib.util
import io
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stark.analysis.groups import Group, with_attempts
from stark.analysis.metrics import fast_p
from stark.report.paper_tables import over_others

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = {"svg": {"Date": None}, "png": {"Software": None}}  # without what differs from day to day
# the same store gives the same file, and a name is a name: dollars in it are no mathematics
PLAIN: dict[Any, Any] = {"svg.hashsalt": "stark", "text.parse_math": False}
TICKS = (0.25, 0.5, 1, 2, 4, 8)
POINTS = [0.25 * 1.06**step for step in range(60)]  # p from 0.25 to about 8

Choose = Callable[[Sequence[Group]], list[Group]]
Draw = Callable[[Any, Sequence[Group]], None]


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(groups: Sequence[Group]) -> dict[str, dict[str, bytes]]:
    """Every figure by name, as a file of each kind: one panel per level and score."""
    import matplotlib

    matplotlib.use("agg")
    drawn = {name: chosen(groups) for name, (chosen, _) in FIGURES.items()}
    with matplotlib.rc_context(PLAIN):
        return {name: _files(_figure(FIGURES[name][1], shown)) for name, shown in drawn.items() if shown}


def _with_others(groups: Sequence[Group]) -> list[Group]:
    """The groups of the panels that have another method to compare STARK with."""
    places = {(each.score, each.level) for each, _ in over_others(groups)}
    return [each for each in groups if (each.score, each.level) in places]


def _figure(panel: Draw, groups: Sequence[Group]) -> Figure:
    from matplotlib.figure import Figure

    places = list(dict.fromkeys((each.score, each.level) for each in groups))
    figure = Figure(figsize=(4.8 * len(places), 3.8), layout="constrained")
    for number, (score, level) in enumerate(places, 1):
        axes = figure.add_subplot(1, len(places), number)
        axes.set_title(f"level {level}, {score}", fontsize=10)
        panel(axes, [each for each in groups if (each.score, each.level) == (score, level)])
        axes.grid(alpha=0.3)
    return figure


def _files(figure: Figure) -> dict[str, bytes]:
    found = {}
    for kind, metadata in KINDS.items():
        file = io.BytesIO()
        figure.savefig(file, format=kind, metadata=metadata)
        figure.set_layout_engine(None)  # all is in its place now, and to find the places is most of the work
        found[kind] = file.getvalue()
    return found


def _over_others(axes: Any, groups: Sequence[Group]) -> None:
    pairs = list(over_others(groups))
    places = range(len(pairs))
    axes.bar([place - 0.2 for place in places], [statistics.fmean(ratios) for _, ratios in pairs], 0.4, label="mean")
    axes.bar([place + 0.2 for place in places], [statistics.median(ratios) for _, ratios in pairs], 0.4, label="median")
    axes.set_xticks(list(places), [each.method for each, _ in pairs], rotation=30, ha="right", fontsize=8)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylabel("STARK's speed over")
    axes.legend(fontsize=8)


def _fast_p(axes: Any, groups: Sequence[Group]) -> None:
    for each in groups:
        axes.plot(POINTS, [100 * fast_p(each.speedups(), p) for p in POINTS])
    axes.set_xscale("log")
    axes.set_xticks(TICKS, list(map(str, TICKS)))
    axes.set_xticks([], minor=True)
    axes.set_xlabel("p, against eager")
    axes.set_ylabel("fast_p in %")
    _name_lines(axes, groups)


def _so_far(axes: Any, groups: Sequence[Group]) -> None:
    for each in groups:
        curve = each.curve()
        axes.plot(range(1, len(curve) + 1), curve)
    axes.set_xlabel("attempts")
    axes.set_ylabel("best speed-up so far")
    _name_lines(axes, groups)


def _name_lines(axes: Any, groups: Sequence[Group]) -> None:
    """A legend of the lines, which are those of the groups. They are named last: as a label, a name that begins with an
    underscore would be left out."""
    legend = axes.legend(axes.lines, ["line"] * len(axes.lines), fontsize=8)
    for text, each in zip(legend.get_texts(), groups, strict=True):
        text.set_text(each.method)


# by name: which groups have something to show, and how a panel of them is drawn
FIGURES: dict[str, tuple[Choose, Draw]] = {
    "figure-1": (_with_others, _over_others),
    "fast-p": (list, _fast_p),  # winners that were only judged again as well
    "so-far": (with_attempts, _so_far),
}
