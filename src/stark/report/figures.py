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
STYLE: dict[Any, Any] = {"svg.hashsalt": "stark", "text.parse_math": False, "savefig.dpi": 200}
FAST_P_TICKS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
# Colours of rising lightness with dashes of their own, so that lines differ in grey too.
COLOURS = ("#000000", "#0b559f", "#c1440e", "#3a8f5c", "#b0679c", "#8a8a8a")
DASHES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
HATCHES = ("", "///")
SPREAD_ALPHA = 0.15

ChooseGroups = Callable[[Sequence[Group]], list[Group]]
Average = Callable[[Sequence[float]], float]
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
    figure = Figure(figsize=(6.4 * len(panels), 3.8), layout="constrained")
    for number, (score, level) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), number)
        axes.set_title(f"{level.title}, {score}", fontsize=10)
        panel(axes, [each for each in groups if (each.score, each.level) == (score, level)])
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
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
    averages: dict[str, Average] = {"mean": statistics.fmean, "median": statistics.median}
    for place, (name, average) in enumerate(averages.items()):
        heights = [average(ratios) for _, ratios in pairs]
        spread = [
            _seed_range(groups, each, average) or (height, height)
            for (each, _), height in zip(pairs, heights, strict=True)
        ]
        errors = [
            [height - min(low, height) for (low, _), height in zip(spread, heights, strict=True)],
            [max(high, height) - height for (_, high), height in zip(spread, heights, strict=True)],
        ]
        axes.bar(
            [number + 0.4 * place - 0.2 for number in range(len(pairs))],
            heights,
            0.4,
            yerr=errors if any(map(any, errors)) else None,
            capsize=3,
            color=("#4c78a8", "#d9d9d9")[place],
            edgecolor="black",
            linewidth=0.6,
            hatch=HATCHES[place],
            label=name,
        )
    axes.set_xticks(range(len(pairs)), [each.method for each, _ in pairs], rotation=30, ha="right", fontsize=8)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_ylabel("STARK's speed over")
    _put_beside(axes.legend, fontsize=8)


def _seed_range(groups: Sequence[Group], other: Group, average: Average) -> tuple[float, float] | None:
    """The lowest and highest average of one seed; None for a single seed."""
    found: list[float] = []
    for seed in _seeds(other):
        of_seed = [each.restrict_to({key for key in each.keys if key[1] == seed}) for each in groups]
        ratios = [ratios for each, ratios in stark_ratios(of_seed) if each.runs and each.labels == other.labels]
        found += map(average, ratios)
    return (min(found), max(found)) if len(found) > 1 else None


def _seeds(group: Group) -> list[int]:
    return sorted({run.seed for run in group.runs})


def _draw_fast_p(axes: Any, groups: Sequence[Group]) -> None:
    highest = max((one for each in groups for one in each.speedups() if one), default=1.0)
    ends = (FAST_P_TICKS[0], next((tick for tick in FAST_P_TICKS if tick > highest), highest * 1.1))
    for number, each in enumerate(groups):
        steps = sorted({*ends, *(one for one in each.speedups() if one and ends[0] < one < ends[1])})
        shares = [100 * fast_p(each.speedups(), p) for p in steps]
        axes.plot(steps, shares, drawstyle="steps-pre", **_line_style(number))
    axes.set_xscale("log")
    ticks = [tick for tick in FAST_P_TICKS if tick <= ends[1]]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_ylim(-3, 103)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("p, against eager")
    axes.set_ylabel("fast_p in %")
    _name_lines(axes, groups)


def _draw_best_so_far(axes: Any, groups: Sequence[Group]) -> None:
    from matplotlib.ticker import MaxNLocator

    for number, each in enumerate(groups):
        style = _line_style(number)
        curve = each.best_so_far_curve()
        axes.plot(range(1, len(curve) + 1), curve, drawstyle="steps-post", **style)
        if spread := _curve_range(each):
            places = range(1, len(spread) + 1)
            low, high = zip(*spread, strict=True)
            axes.fill_between(places, low, high, step="post", color=style["color"], alpha=SPREAD_ALPHA, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("attempts (band: lowest and highest seed)" if any(map(_curve_range, groups)) else "attempts")
    axes.set_ylabel("best speed-up so far")
    _name_lines(axes, groups)


def _curve_range(group: Group) -> list[tuple[float, float]]:
    """The lowest and highest seed after each attempt; nothing for a single seed."""
    seeds = _seeds(group)
    if len(seeds) < 2:
        return []
    curves = [group.restrict_to({k for k in group.keys if k[1] == seed}).best_so_far_curve() for seed in seeds]
    longest = max(map(len, curves))
    full = [[*curve, *[curve[-1]] * (longest - len(curve))] for curve in curves if curve]
    return [(min(values), max(values)) for values in zip(*full, strict=True)]


def _line_style(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.6}


def _put_beside(make_legend: Callable[..., Any], *words: Any, **options: Any) -> Any:
    """Add a legend to the right of the axes, where it covers nothing."""
    return make_legend(
        *words, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0, frameon=False, **options
    )


def _name_lines(axes: Any, groups: Sequence[Group]) -> None:
    """Add a legend. Names are set last, because matplotlib leaves out labels that begin with an underscore."""
    lines = axes.lines[: len(groups)]
    legend = _put_beside(axes.legend, lines, ["line"] * len(lines), fontsize=8, handlelength=3.5)
    for text, each in zip(legend.get_texts(), groups, strict=True):
        text.set_text(each.method)


# By name: the groups to show, and the function that draws a panel of them.
FIGURES: dict[str, tuple[ChooseGroups, DrawPanel]] = {
    "figure-1": (_groups_with_ratios, _draw_ratios),
    "fast-p": (list, _draw_fast_p),  # rescored winners too
    "so-far": (groups_with_attempts, _draw_best_so_far),
}
