"""The built-in policies by name."""

from __future__ import annotations

from stark.core.interfaces import Policy
from stark.core.plugins import find_class
from stark.core.settings import SearchSettings
from stark.search.epsilon_greedy import EpsilonGreedy
from stark.search.evolutionary import Evolutionary
from stark.search.mcts import Mcts
from stark.search.root_first import RootFirst
from stark.search.simple import AlwaysRoot, Greedy, LastAttempt, RandomChoice, RootOrRepair

POLICIES = {
    "epsilon-greedy": EpsilonGreedy,
    "greedy": Greedy,
    "mcts": Mcts,
    "evolutionary": Evolutionary,
    "random": RandomChoice,
    "always-root": AlwaysRoot,
    "last-attempt": LastAttempt,
    "root-or-repair": RootOrRepair,
    "root-first": RootFirst,
}


def open_policy(name: str, settings: SearchSettings) -> Policy:
    """Return the policy of that name."""
    policy: Policy = find_class("policy", name, POLICIES)(settings)
    return policy
