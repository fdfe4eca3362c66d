"""The interface of a task's model, as far as it was judged: what decides if a kernel can take the model's place."""

from __future__ import annotations

from dataclasses import dataclass

RIGHT = "right"  # the outcome on a shape on which a candidate computes what the task computes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ShapeTrial:
    """The outcome of a candidate on inputs of other sizes than the task's."""

    shapes: tuple[Shape, ...]
    outcome: str

    @property
    def is_right(self) -> bool:
        return self.outcome == RIGHT

    def __str__(self) -> str:
        return f"{', '.join('x'.join(map(str, shape)) for shape in self.shapes)} {self.outcome}"


@dataclass(frozen=True)
class Interface:
    """The judged interface of a model.

    ``construct``, ``arguments`` and ``result`` are packed values: of the constructor, and of a call and its result.
    ``takes_weights`` is False if a candidate makes its weights itself, from the same seed. ``follows_weights`` is
    True if it computed with other weights after it had been called. ``changes_state`` if a call changes the model's
    buffers or its inputs.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    construct: str
    arguments: str
    result: str
    takes_weights: bool = False
    follows_weights: bool | None = None
    is_random: bool = False
    changes_state: bool = False
