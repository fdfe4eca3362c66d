"""Evolutionary selection: the fittest form the population, a tournament among some of them picks the parent."""

from __future__ import annotations

from itertools import islice
from random import Random

from stark.core.settings import SearchSettings
from stark.core.tree import Node, Tree


class Evolutionary:
    """Failed candidates die: only correct nodes, the root among them, ever enter the population."""

    def __init__(self, settings: SearchSettings) -> None:
        self._settings = settings

    def select(self, tree: Tree, rng: Random) -> Node | None:
        population = list(islice(tree.ranked(), self._settings.population))
        contestants = rng.sample(range(len(population)), min(self._settings.tournament, len(population)))
        return population[min(contestants)]
