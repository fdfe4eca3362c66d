"""Draws a workflow's graph as SVG or Mermaid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

Edge = tuple[str, str, str]  # from, to, label

WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 120, 40, 60, 70, 30


def format_mermaid(edges: Sequence[Edge]) -> str:
    """The graph as a Mermaid flow chart."""
    lines = ["flowchart TD"]
    for start, end, label in edges:
        arrow = f"-- {label} -->" if label else "-->"
        lines.append(f"    {_display_name(start)} {arrow} {_display_name(end)}")
    return "\n".join(lines) + "\n"


def format_svg(edges: Sequence[Edge]) -> str:
    """The graph as a layered drawing; the depth of a node is the longest path to it."""
    layers = _layers(edges)
    widest = max(len(layer) for layer in layers)
    width = 2 * MARGIN + widest * WIDTH + (widest - 1) * GAP_X
    height = 2 * MARGIN + len(layers) * HEIGHT + (len(layers) - 1) * GAP_Y
    places = {
        name: (width / 2 + (column - (len(layer) - 1) / 2) * (WIDTH + GAP_X), MARGIN + depth * (HEIGHT + GAP_Y))
        for depth, layer in enumerate(layers)
        for column, name in enumerate(layer)
    }
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="14">',
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="10" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0L10 5L0 10z" fill="#555"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *(_draw_edge(edge, places) for edge in edges),
        *(_draw_node(name, x, y) for name, (x, y) in places.items()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _layers(edges: Sequence[Edge]) -> list[list[str]]:
    """Nodes by depth. Without cycles, as many rounds as edges settle every depth."""
    depth: dict[str, int] = {}
    for start, end, _ in edges:
        depth.setdefault(start, 0)
        depth.setdefault(end, 0)
    for _ in edges:
        for start, end, _ in edges:
            depth[end] = max(depth[end], depth[start] + 1)
    return [[name for name in depth if depth[name] == level] for level in range(max(depth.values()) + 1)]


def _draw_edge(edge: Edge, places: Mapping[str, tuple[float, float]]) -> str:
    start, end, label = edge
    (x1, y1), (x2, y2) = places[start], places[end]
    y1 += HEIGHT
    middle = (y1 + y2) / 2
    line = (
        f'<path d="M{x1:.0f} {y1:.0f} C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}" fill="none" '
        'stroke="#555" stroke-width="1.5" marker-end="url(#tip)"/>'
    )
    if not label:
        return line
    return (
        line + f'<text x="{(x1 + x2) / 2:.0f}" y="{middle:.0f}" text-anchor="middle" fill="#777">{escape(label)}</text>'
    )


def _draw_node(name: str, x: float, y: float) -> str:
    terminal = name.startswith("__")
    shape = (
        f'<rect x="{x - WIDTH / 2:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="{20 if terminal else 6}" '
        f'fill="{"#eee" if terminal else "#e3f0ff"}" stroke="#36c"/>'
    )
    return (
        shape
        + f'<text x="{x:.0f}" y="{y + HEIGHT / 2 + 5:.0f}" text-anchor="middle">{escape(_display_name(name))}</text>'
    )


def _display_name(name: str) -> str:
    return {"__start__": "begin", "__end__": "done"}.get(name, name)
