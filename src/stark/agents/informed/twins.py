"""Near-twins: candidates whose code is the same but for comments, layout and the library's name."""

from __future__ import annotations

import functools
import re

from stark.agents.source_lines import code_lines
from stark.core.tree import ROOT_ID, Node, Tree

_LIBRARY_NAME = re.compile(r"""\bname\s*=\s*f?["'][^"'\n]*["']""")


@functools.lru_cache(maxsize=256)
def normalise(source: str) -> str:
    """Return the code of a source without comments, layout and the name under which it is built."""
    code = "\n".join(line.text for line in code_lines(source))
    return "".join(_LIBRARY_NAME.sub("name=", code).split())


def find_twin(tree: Tree, source: str) -> Node | None:
    """Return the first candidate of a tree that is the same code."""
    wanted = normalise(source)
    return next(
        (node for node in tree if node.id != ROOT_ID and node.source and normalise(node.source) == wanted), None
    )
