"""Writes a winner as a file that can be put in a model's place.

The file needs torch alone. It holds the kernel, the original model, and a ``ModelNew`` around both: the kernel runs
where it was judged, the original everywhere else.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from stark_worker.protocol.interface import Interface, Shape, ShapeTrial
from stark_worker.protocol.request import Precision, Target

Place = tuple[int, int]  # the number of an input, and of one of its dimensions
CASTS = {Precision.FP32: "None", Precision.BF16: "torch.bfloat16", Precision.FP16: "torch.float16"}
PARTS = (  # of the file, in order; the part "facts" has the names and types of what is written for each kernel
    "sources",
    "nested",
    "original",
    "snapshots",
    "changes",
    "weights",
    "results",
    "calls",
    "kernel",
    "operators",
    "guards",
    "model",
)


@dataclass(frozen=True)
class Sizes:
    """Sizes for which a kernel was found right, of dimensions that have to be equal."""

    places: tuple[Place, ...]
    least: int
    most: int

    @property
    def text(self) -> str:
        name = "batch" if self.places[0] == (0, 0) else f"dimension {self.places[0][1]} of input {self.places[0][0]}"
        return f"{name} {self.least} to {self.most}"


@dataclass(frozen=True)
class Winner:
    """A kernel that was judged, its task, and the interface for which it was judged."""

    task_name: str
    kernel: str
    original: str
    target: Target
    precision: Precision
    interface: Interface
    trials: Sequence[ShapeTrial] = ()


def format_drop_in(winner: Winner) -> str:
    """Return the file's text: the facts of the kernel, then all parts as one module."""
    parts = [_read_part(name) for name in PARTS]
    imports = "\n".join(_merge_imports(node for part in parts for node in part.imports))
    return "\n\n\n".join([imports, _format_facts(winner), *(part.body for part in parts)]) + "\n"


@dataclass(frozen=True)
class _Part:
    """One of the files that every drop-in consists of."""

    imports: list[ast.Import | ast.ImportFrom]
    body: str


def _read_part(name: str) -> _Part:
    source = files("stark.artefact").joinpath(f"templates/drop_in/{name}.py").read_text(encoding="utf-8")
    module = ast.parse(source)
    imports = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
    body = "\n".join(source.splitlines()[imports[-1].end_lineno :]).strip("\n")
    title = f"# -- {(ast.get_docstring(module) or name).rstrip('.')} "
    return _Part(imports, f"{title:-<119}\n\n{body}")


def _merge_imports(nodes: Iterable[ast.Import | ast.ImportFrom]) -> list[str]:
    """Return one line for each imported module, torch's last. Parts do not import each other when they are one file."""
    plain: set[str] = set()
    names: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            plain |= {alias.name for alias in node.names}
        elif node.level == 0:
            names.setdefault(str(node.module), set()).update(map(ast.unparse, node.names))
    first = f"from __future__ import {', '.join(names.pop('__future__'))}"
    lines = [f"import {name}" for name in plain] + [
        f"from {module} import {', '.join(sorted(given))}" for module, given in names.items()
    ]
    return [first, "", *sorted(lines, key=lambda line: (line.split()[1].startswith("torch"), line[0] == "f", line))]


def describe_sizes(winner: Winner) -> str:
    """Say for which sizes the kernel runs."""
    found = allowed_sizes(winner.interface.shapes, winner.trials)
    shapes = ", ".join("x".join(map(str, shape)) for shape in winner.interface.shapes)
    return (
        f"for inputs of {shapes}" + "".join(f", and for {sizes.text}" for sizes in found) + ("" if found else " only")
    )


def allowed_sizes(judged: Sequence[Shape], trials: Sequence[ShapeTrial]) -> list[Sizes]:
    """Return the sizes between the smallest and the largest that was right, with nothing wrong in between."""
    tried: dict[tuple[Place, ...], dict[int, bool]] = {}
    for trial in trials:
        changed = [
            ((number, place), size)
            for number, shape in enumerate(trial.shapes)
            for place, size in enumerate(shape)
            if size != judged[number][place]
        ]
        places, sizes = tuple(place for place, _ in changed), {size for _, size in changed}
        if len(sizes) == 1:
            tried.setdefault(places, {})[sizes.pop()] = trial.is_right
    found = []
    for places, outcomes in tried.items():
        own = judged[places[0][0]][places[0][1]]
        wrong = [size for size, is_right in outcomes.items() if not is_right]
        floor = max((size for size in wrong if size < own), default=0)
        ceiling = min((size for size in wrong if size > own), default=max(own, *outcomes) + 1)
        right = [own, *(size for size, is_right in outcomes.items() if is_right and floor < size < ceiling)]
        if len(right) > 1:
            found.append(Sizes(places, min(right), max(right)))
    return found


def _format_facts(winner: Winner) -> str:
    interface = winner.interface
    sizes = [(each.places, each.least, each.most) for each in allowed_sizes(interface.shapes, winner.trials)]
    cast = CASTS[winner.precision]
    dtypes = "".join(f"torch.{dtype}, " for dtype in interface.dtypes)
    return f"""\
TASK = {winner.task_name!r}

# The kernel as the agents wrote it.
KERNEL = {_literal(winner.kernel)}

# The original model.
ORIGINAL = {_literal(winner.original)}

# What was judged.
JUDGED = {describe_sizes(winner)!r}
DEVICE, CAST, DTYPES = {winner.target.device_kind!r}, {cast}, ({dtypes})
SHAPES: tuple[tuple[int, ...], ...] = {tuple(interface.shapes)!r}
SIZES: tuple[tuple[tuple[tuple[int, int], ...], int, int], ...] = {tuple(sizes)!r}
CONSTRUCTED: dict[str, Any] = {json.loads(interface.construct)!r}
ARGUMENTS: dict[str, Any] = {json.loads(interface.arguments)!r}
RESULT: dict[str, Any] = {json.loads(interface.result)!r}
IS_RANDOM, CHANGES_STATE = {interface.is_random}, {interface.changes_state}"""


def _literal(source: str) -> str:
    """Return a literal of a source that reads like it, if quotes allow that."""
    for quotes in ("'''", '"""'):
        text = f"r{quotes}{source}{quotes}"
        try:
            if ast.literal_eval(text) == source:
                return text
        except SyntaxError:
            continue
    return repr(source)
