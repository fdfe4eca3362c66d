"""Every setting with its type, default and meaning. Numbers that the paper gives are its hyper-parameters.

The text under a field is its documentation; ``stark config``, the reference page and error messages show it.
``stark.run.settings_loader`` reads settings from files and the command line.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from stark_worker.protocol.request import KernelBenchVersion, Precision, Score, Target


class Group(BaseModel):
    """A group of settings: frozen, typed, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class RoleSettings(Group):
    """The chat model of one role."""

    model: str = ""
    """The chat model: `provider:name`, `playbook` or `playbook:SEED` (a library of moves, no LLM), `scripted:FOLDER`,
    `replay:RUN_FOLDER`, or `package.module:Class`."""
    base_url: str | None = None
    """Address of an OpenAI-compatible server (vLLM, Ollama, llama.cpp, a gateway)."""
    api_key_env: str | None = None
    """Name of the environment variable with the key, if it is not the provider's usual one. A `base_url` of your own
    gets no other key."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """Sampling temperature. A model that refuses it is called without it, and the node notes that."""
    effort: Literal["minimal", "low", "medium", "high"] | None = None
    """Reasoning effort, for models that reason."""
    max_output_tokens: int = Field(default=32_768, ge=1)
    """Most tokens of one reply, thoughts included. A call reserves them and its prompt from the budget."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest wait for one reply."""
    retries: int = Field(default=6, ge=0)
    """Number of retries after a temporary fault (429, 5xx, a lost connection)."""
    output: Literal["auto", "tool", "text"] = "auto"
    """Form of the answer: `tool` for a tool call, `text` for fenced blocks, `auto` for a tool call if the provider has
    tools."""
    stream: bool = True
    """Stream replies. Some providers need this for long ones."""


class Roles(Group):
    """One chat model per role, each of any provider."""

    model: str = ""
    """The chat model of every role without a model of its own. Default: `playbook`."""
    base_url: str | None = None
    """The address for every role without a model or an address of its own."""
    api_key_env: str | None = None
    """The variable with the key, for every role without a model or a variable of its own."""
    plan: RoleSettings = RoleSettings(temperature=0.8)
    """Proposes one optimisation and marks its place."""
    code: RoleSettings = RoleSettings(temperature=0.1)
    """Turns the marked scaffold into a complete ModelNew."""
    debug: RoleSettings = RoleSettings(temperature=0.1)
    """Repairs a failing candidate."""
    solo: RoleSettings = RoleSettings(temperature=0.7)
    """The single agent of the methods search-agent, sampling and reflexion."""
    temperature: float | None = Field(default=None, ge=0, le=2)
    """One temperature for all roles, instead of their own."""


class SearchSettings(Group):
    """Choice of the node to build upon."""

    policy: str | None = None
    """`epsilon-greedy`, `greedy`, `mcts`, `evolutionary`, `random`, `always-root`, `last-attempt`,
    `root-or-repair`, `root-first`, or `package.module:Class`. Default: the method's own."""
    epsilon: float = Field(default=0.3, ge=0, le=1)
    """Share of selections that explore a leaf (the paper uses 0.3 to 0.4)."""
    n_root: int = Field(default=5, ge=1)
    """Root throttling: the most direct children of the root."""
    n_child: int = Field(default=3, ge=0)
    """Dead-branch pruning: a node with more children than this, all failed, is never selected."""
    uct_c: float = Field(default=1.4, ge=0)
    """Exploration constant of MCTS (UCT)."""
    population: int = Field(default=10, ge=1)
    """Size of the evolutionary population."""
    tournament: int = Field(default=3, ge=1)
    """Number of members of the population that compete to be the parent."""
    max_repairs: int = Field(default=2, ge=0)
    """Root-or-repair: longest chain of repairs before it selects the root again."""
    root_first: int = Field(default=3, ge=0)
    """Root-first: number of first attempts that start from the root, each in another direction."""


class WindowSettings(Group):
    """The past that an agent sees."""

    enabled: bool | None = None
    """Show more than the selected node and the root. Default: the method's own."""
    observations: bool | None = None
    """Show what was observed of the selected node and the root. Default: the method's own; `sampling` has none."""
    leaders: int = Field(default=2, ge=0)
    """r: number of leaders of the whole tree that the planner sees; 0 turns the leaderboard off."""
    cap: int = Field(default=5, ge=0)
    """Most nodes in a window; a larger window is sampled at random."""
    cap_includes_root: bool = False
    """Count the selected node and the root towards the cap too, so that either may be dropped."""
    profile: bool = True
    """Show profiles."""
    log_characters: int = Field(default=4_000, ge=0)
    """Longest log per node; the middle of a longer log is left out."""


class AnchorSettings(Group):
    """Grounded instruction."""

    mode: Literal["enforced", "stripped", "off"] = "enforced"
    """`enforced`: anchors are requested, checked and passed on. `stripped`: removed before the coder sees the scaffold.
    `off`: not requested."""
    max_retries: int = Field(default=1, ge=0)
    """Number of times a reply that is unusable or breaks the anchor rules is sent back with the reason."""


class PromptSettings(Group):
    """The templates of the prompts."""

    wording: Literal["paper"] = "paper"
    """The built-in templates of the paper's methods. `paper` never changes; a later wording gets another name."""
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
    """Give the planner a sampled strategy to consider. `auto`: if its temperature is unset or refused. The method
    `informed` gives each attempt another direction anyway."""


class BudgetSettings(Group):
    """Limits of a run. Every call reserves its worst case first, so calls in flight never exceed a limit."""

    attempts: int = Field(default=30, ge=0)
    """B: the number of attempts."""
    tokens: int | None = Field(default=None, ge=0)
    """Most tokens of prompts and replies together. Required for a model without a known price."""
    usd: float = Field(default=10.0, ge=0)
    """Most US dollars for model calls."""
    wall_s: float | None = Field(default=None, gt=0)
    """Longest time of the search, over all resumed sessions; the final check comes on top."""
    stop_at_bound: float | None = Field(default=None, ge=0, le=1)
    """Begin no attempt once the best reaches this share of the task's bound; 0 for never. Default: 0.95 in
    `stark optimize` with the method `informed`, else never."""
    stop_after: int | None = Field(default=None, ge=0)
    """Begin no attempt after so many without a gain of 1 % beyond the noise; 0 for never. Default: 3 in
    `stark optimize` with the method `informed`, else never."""


Rate = Annotated[int, Field(ge=1)]


class LimitSettings(Group):
    """The most that a provider of chat models is asked for. Roles with the same provider, address and key share it.

    All runs of a benchmark share it too, and each of them that waits gets an equal part.
    """

    requests_per_minute: Rate | dict[str, Rate] | None = None
    """Most requests per minute: a number for every provider, or one each as in `{openai = 500, anthropic = 50}`.
    Retries after a refusal come on top."""
    tokens_per_minute: Rate | dict[str, Rate] | None = None
    """Most tokens of prompts and replies per minute, written the same way."""


class EvaluationSettings(Group):
    """The evaluation of candidates."""

    evaluator: str = "local"
    """`local`, `folder` (a worker elsewhere), `ray` (a cluster), `replay` (of a stored run), or
    `package.module:Class`."""
    folder: str | None = None
    """The folder that `python -m stark_worker serve` watches, or the run that a replay reads."""
    ray_address: str | None = None
    """The Ray cluster: `auto` for that of this machine, or its address. Default: start one here, and end it."""
    device_kind: str | None = None
    """The kind of device of a mixed cluster to measure on: a part of its name, or several between commas."""
    lanes: int | None = Field(default=None, ge=1)
    """Most devices of a cluster to use; a cluster that can grow is asked for as many. Default: all it has."""
    worker_timeout_s: float = Field(default=600.0, gt=0)
    """Longest time without a sign of life from the worker of a folder, or without a lane of a cluster."""
    target: Target = Target.CPU
    """Kernel language: `cuda`, `triton`, or `cpu` for C++."""
    precision: Precision = Precision.FP32
    """Floating-point type of inputs and weights."""
    tf32: bool = False
    """Allow TF32 for fp32 matrix products and convolutions on a GPU: in the reference, baselines and candidates. The
    tolerances stay the same."""
    score: Score = Score.VERIFIED
    """The deciding rules: `verified`, or `kernelbench` for KernelBench's protocol."""
    kernelbench_version: KernelBenchVersion = KernelBenchVersion.HEAD
    """Version of KernelBench's protocol: `HEAD`, or the paper's `v0.1`, which has wider tolerances and does not flush
    a GPU's cache."""
    atol: float | None = Field(default=None, ge=0)
    """Absolute tolerance instead of the rules' own."""
    rtol: float | None = Field(default=None, ge=0)
    """Relative tolerance instead of the rules' own."""
    allow_degenerate: bool = False
    """Search even if the task's check accepts answers that compute nothing, such as zeros."""
    allow_weak_sandbox: bool = False
    """Run kernels even if this machine cannot confine them well; see `stark doctor`."""
    torch_compile: bool = True
    """Time torch.compile too, for comparison, at the end of `stark optimize` and `stark resume`."""
    build_s: float = Field(default=300.0, gt=0)
    """Deadline for compiling and loading a candidate."""
    run_s: float = Field(default=60.0, gt=0)
    """Deadline for checking and timing a candidate."""
    final: bool = True
    """Rebuild the winner with torch's own toolchain and measure it again by both scores before it is reported."""
    retries: int = Field(default=2, ge=0)
    """Number of retries of an evaluation after a fault of the machinery."""


class Settings(Group):
    """All settings of a run."""

    method: str = "informed"
    """`informed`, or a method of the paper: `stark`, `search-agent`, `ma-only`, `sampling` or `reflexion`."""
    seed: int = 0
    """Seed of every random choice of the search."""
    jobs: int = Field(default=1, ge=1)
    """Number of parallel attempts."""
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
    limits: LimitSettings = LimitSettings()
    """The rates of providers."""
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
