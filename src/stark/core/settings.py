"""Every setting, its type, its default and its meaning. The defaults are the paper's hyper-parameters.

The text under a field is its documentation: ``stark config``, the reference page and the error messages show it.
``stark.run.config`` reads settings from files and the command line.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stark_worker.protocol.request import KernelBenchVersion, Precision, Score, Target


class Group(BaseModel):
    """A group of settings: frozen, typed, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class RoleSettings(Group):
    """How one role talks to its chat model."""

    model: str = ""
    """The chat model: `provider:name`, `playbook` or `playbook:SEED` (no LLM: a library of moves), `scripted:FOLDER`,
    `replay:RUN_FOLDER`, or `package.module:Class`."""
    base_url: str | None = None
    """Address of an OpenAI-compatible server (vLLM, Ollama, llama.cpp, a gateway)."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the key, where it is not the provider's usual one. An address of
    one's own gets no other key."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature. A model that refuses one is called without it, and the node says so."""
    effort: Literal["minimal", "low", "medium", "high"] | None = None
    """Reasoning effort, for models that reason."""
    max_output_tokens: int = Field(default=16_384, ge=1)
    """Most tokens one reply may have. Together with the prompt it is what a call reserves from the budget."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for one reply."""
    retries: int = Field(default=6, ge=0)
    """How often a call is repeated after a fault that may pass (429, 5xx, a lost connection)."""
    output: Literal["auto", "tool", "text"] = "auto"
    """How the answer is structured: a tool call, fenced blocks, or a tool call wherever the provider has them."""
    stream: bool = True
    """Whether replies are streamed, which long ones need with some providers."""


class Roles(Group):
    """One chat model per role; each may use another provider."""

    model: str = ""
    """The chat model of every role that names none of its own. `playbook` where nothing is named at all."""
    base_url: str | None = None
    """The address for every role that names neither a model nor an address of its own."""
    api_key_env: str | None = None
    """The variable with the key, for every role that names neither a model nor a variable of its own."""
    plan: RoleSettings = RoleSettings(temperature=0.8)
    """Proposes one optimisation and marks where."""
    code: RoleSettings = RoleSettings(temperature=0.1)
    """Turns the marked scaffold into a complete ModelNew."""
    debug: RoleSettings = RoleSettings(temperature=0.1)
    """Repairs a failing candidate."""
    solo: RoleSettings = RoleSettings(temperature=0.7)
    """The single agent of the methods search-agent, sampling and reflexion."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """One temperature for all roles, in place of their own."""


class SearchSettings(Group):
    """Where to grow the tree."""

    policy: str | None = None
    """`epsilon-greedy`, `greedy`, `mcts`, `evolutionary`, `random`, `always-root`, `last-attempt`,
    `root-or-repair`, or `package.module:Class`. Unset: the method's own."""
    epsilon: float = Field(default=0.3, ge=0, le=1)
    """Share of selections that explore a leaf (the paper uses 0.3 to 0.4)."""
    n_root: int = Field(default=5, ge=1)
    """Root throttling: most direct children of the root."""
    n_child: int = Field(default=3, ge=0)
    """Dead-branch pruning: a node with more children than this, all failed, is given up."""
    uct_c: float = Field(default=1.4, ge=0)
    """Exploration constant of MCTS (UCT)."""
    population: int = Field(default=10, ge=1)
    """Size of the evolutionary population."""
    tournament: int = Field(default=3, ge=1)
    """How many members of the population compete to be the parent."""
    max_repairs: int = Field(default=2, ge=0)
    """Root-or-repair: longest chain of repairs before the root is taken again."""


class WindowSettings(Group):
    """What an agent is shown of the past."""

    enabled: bool | None = None
    """Whether windows hold more than the selected node and the root. Unset: the method's own."""
    leaders: int = Field(default=2, ge=0)
    """r: how many leaders of the whole tree the planner sees; 0 turns the leaderboard off."""
    cap: int = Field(default=5, ge=0)
    """Most nodes in a window; more are cut to this many at random."""
    cap_includes_root: bool = False
    """Whether the cap counts the selected node and the root too, so that either may be dropped."""
    profile: bool = True
    """Whether profiles are shown."""
    log_characters: int = Field(default=4_000, ge=0)
    """Longest log shown per node; the middle of a longer one is left out."""


class AnchorSettings(Group):
    """Grounded instruction."""

    mode: Literal["enforced", "stripped", "off"] = "enforced"
    """`enforced`: asked for, checked, passed on. `stripped`: removed before the coder sees the scaffold.
    `off`: not asked for."""
    max_retries: int = Field(default=1, ge=0)
    """How often a reply that is unusable or breaks the anchor rules is sent back with the reason."""


class PromptSettings(Group):
    """Which templates the prompts are made from."""

    system: str = "default"
    """System message: `default`, `alternative-1`, `alternative-2`, or a template file."""
    plan: str | None = None
    """Template file that replaces the plan agent's prompt."""
    code: str | None = None
    """Template file that replaces the code agent's prompt."""
    debug: str | None = None
    """Template file that replaces the debug agent's prompt."""
    solo: str | None = None
    """Template file that replaces the single agent's prompt."""
    strategy_hint: Literal["auto", "always", "never"] = "auto"
    """Whether the planner gets a sampled strategy to consider. `auto`: when its temperature is unset or refused."""


class BudgetSettings(Group):
    """What a run may spend. Every call reserves its worst case first, so no limit is exceeded by calls in flight."""

    attempts: int = Field(default=30, ge=0)
    """B: how many attempts are made."""
    tokens: int | None = Field(default=None, ge=0)
    """Most tokens, prompts and replies together. Needed for a model without a known price."""
    usd: float = Field(default=10.0, ge=0)
    """Most money spent on model calls."""
    wall_s: float | None = Field(default=None, gt=0)
    """Longest time a run searches, over all its resumptions; the final comes on top."""


class EvaluationSettings(Group):
    """How candidates are judged."""

    evaluator: str = "local"
    """`local`, `folder` (judged by a worker elsewhere), `replay` (of a stored run), or `package.module:Class`."""
    folder: str | None = None
    """The folder evaluator's folder, which `python -m stark_worker serve` works off; or the run a replay reads."""
    worker_timeout_s: float = Field(default=600.0, gt=0)
    """How long the folder evaluator waits for a sign of life from a worker."""
    target: Target = Target.CPU
    """Language of the kernels: `cuda`, `triton`, or C++ for the `cpu`."""
    precision: Precision = Precision.FP32
    """Floating-point type of inputs and weights."""
    tf32: bool = False
    """Whether torch may use TF32 in matrix products and convolutions of fp32, on a GPU: in the reference, in baselines
    and in candidates. The rules for tolerances stay the same."""
    score: Score = Score.VERIFIED
    """Which rules decide: `verified`, or `kernelbench` for its protocol."""
    kernelbench_version: KernelBenchVersion = KernelBenchVersion.HEAD
    """Which version of KernelBench's protocol: `HEAD`, or `v0.1`, the paper's, which has wider tolerances and does not
    flush a GPU's cache."""
    atol: float | None = Field(default=None, ge=0)
    """Absolute tolerance in place of the rules' own."""
    rtol: float | None = Field(default=None, ge=0)
    """Relative tolerance in place of the rules' own."""
    allow_degenerate: bool = False
    """Whether to search on a task whose check accepts answers that compute nothing, such as zeros."""
    allow_weak_sandbox: bool = False
    """Whether kernels may run on this machine where they cannot be locked in well: see `stark doctor`."""
    torch_compile: bool = True
    """Whether `stark optimize` and `stark resume` end by timing torch.compile too, for comparison."""
    build_s: float = Field(default=300.0, gt=0)
    """Deadline for compiling and loading a candidate."""
    run_s: float = Field(default=60.0, gt=0)
    """Deadline for checking and timing a candidate."""
    final: bool = True
    """Whether the winner is built by torch's own toolchain and judged anew by both scores before it is reported."""
    retries: int = Field(default=2, ge=0)
    """How often an evaluation is repeated after a fault of the machinery."""


class Settings(Group):
    """All settings of a run."""

    method: str = "stark"
    """`stark`, `search-agent`, `ma-only`, `sampling` or `reflexion`."""
    seed: int = 0
    """Seed of every random choice of the search."""
    jobs: int = Field(default=1, ge=1)
    """How many attempts are in flight at once."""
    budget: BudgetSettings = BudgetSettings()
    """Limits of the run."""
    search: SearchSettings = SearchSettings()
    """The policy and its parameters."""
    windows: WindowSettings = WindowSettings()
    """The dynamic context windows."""
    anchors: AnchorSettings = AnchorSettings()
    """The anchors of grounded instruction."""
    prompts: PromptSettings = PromptSettings()
    """The prompt templates."""
    roles: Roles = Roles()
    """The chat models."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """The evaluator."""


# -- old names --------------------------------------------------------------------------------------------------------

RENAMED = {
    "evaluation.patience_s": "evaluation.worker_timeout_s",
    "anchors.send_back": "anchors.max_retries",
    "windows.cap_counts": "windows.cap_includes_root",
}
NEW_VALUES = {"windows.cap_counts": {"others": False, "all": True}}


def with_new_names(stored: dict[str, Any]) -> dict[str, Any]:
    """Return stored settings of an earlier version under the names of this version."""
    settings = {group: dict(values) if isinstance(values, dict) else values for group, values in stored.items()}
    for old, new in RENAMED.items():
        (group, old_name), new_name = old.split("."), new.split(".")[1]
        values = settings.get(group)
        if isinstance(values, dict) and old_name in values:
            value = values.pop(old_name)
            values[new_name] = NEW_VALUES.get(old, {}).get(value, value)
    return settings
