"""Evolutionary selection: a tournament in the population of the fastest nodes selects the parent."""

from __future__ import annotations

from itertools import islice
from random import Random

from stark.core.settings import SearchSettings
from stark.core.tree import Node, Tree


class Evolutionary:
    """Selects from correct nodes only, including the root."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings

    def select(self, tree: Tree, rng: Random) -> Node | None:
        population = list(islice(tree.ranked(), self._settings.population))
        contestants = rng.sample(range(len(population)), min(self._settings.tournament, len(population)))
        return population[min(contestants)]
