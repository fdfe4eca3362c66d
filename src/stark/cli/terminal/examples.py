"""Examples of each command, as ``--help`` shows them."""

from __future__ import annotations

EXAMPLES = {
    "optimize": (
        "stark optimize my_task.py",
        "stark optimize my_task.py --target cuda --model openai:gpt-5 --attempts 30 --jobs 4 --usd 20",
        "stark optimize my_task.py --from kernel.py --hint 'the batch is always 16'",
    ),
    "resume": ("stark resume runs/my_task", "stark resume runs/my_task --attempts 60"),
    "judge": (
        "stark judge my_task.py kernel.py --target cuda",
        "stark judge my_task.py kernel.py --export drop_in.py",
        "stark judge my_task.py kernel.py --variants sizes.json",
    ),
    "baseline": ("stark baseline my_task.py --target cuda",),
    "bound": ("stark bound my_task.py --target cuda",),
    "verify": ("stark verify evidence.zip --task my_task.py",),
    "show": ("stark show runs/my_task", "stark show runs/my_task 7", "stark show runs/my_task --json"),
    "export": (
        "stark export runs/my_task --best my_kernel.py",
        "stark export runs/my_task --bundle evidence.zip",
    ),
    "salvage": ("stark salvage runs/damaged runs/saved",),
    "view": ("stark view runs", "stark view runs/my_task --port 8765"),
    "watch": ("stark watch runs/my_task",),
    "runs": ("stark runs", "stark runs runs/last-week"),
    "report": ("stark report runs/table-1", "stark report runs/table-1 --out report"),
    "compare": ("stark compare runs/monday runs/tuesday",),
    "bench": (
        "stark bench --tasks my_tasks --method informed --method sampling --seeds 3",
        "stark bench --kernelbench KernelBench --grid configs/table-1.toml --store runs/table-1 --dry-run",
    ),
    "capture": (
        "stark capture mylib.layers:make_block --inputs 2x128x768",
        "stark capture mylib:make_model --inputs ids=int64:2x128 --rank",
    ),
    "pack-worker": ("stark pack-worker stark-worker.pyz",),
    "config": ("stark config",),
    "graph": ("stark graph",),
    "mcp": ("stark mcp",),
    "doctor": ("stark doctor --target cuda",),
}


def format_examples(command: str) -> str:
    """Return the end of a command's help: a heading, and an example on each line."""
    return "\n".join(["\b", "Examples:", *(f"  {each}" for each in EXAMPLES[command])])  # \b keeps the lines
