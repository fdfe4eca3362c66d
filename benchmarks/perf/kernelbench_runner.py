"""KernelBench's own evaluation and timer, from a checkout of the user's, in a process of its own.

    python benchmarks/perf/kernelbench_runner.py CHECKOUT < order.json

It prints one line of JSON last. Packages that KernelBench imports but its evaluation hardly uses (chat clients,
progress bars, records, four functions of numpy) are stood in for where they are missing, so that a machine with
nothing but torch and triton will do. Nothing that is timed is touched.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

CORRECTNESS_TRIALS, TIMING_TRIALS = 5, 100


class _Record:
    """A pydantic model as far as it is used: keyword arguments become attributes, the others keep their defaults."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def _nothing(*_: Any, **__: Any) -> None: ...


STAND_INS: dict[str, dict[str, Any]] = {
    "requests": {},
    "pydantic": {"BaseModel": _Record},
    "dotenv": {"load_dotenv": _nothing},
    "tqdm": {"tqdm": _nothing},
    "openai": {"OpenAI": _nothing},
    "litellm": {"completion": _nothing},
    "numpy": {"mean": statistics.fmean, "std": statistics.pstdev, "min": min, "max": max},
}


def load(checkout: Path) -> SimpleNamespace:
    """Their modules ``eval`` and ``timing``, and what was stood in for."""
    importlib.import_module("torch")  # first: it, too, looks for numpy
    missing = [name for name in STAND_INS if importlib.util.find_spec(name) is None]
    for name in missing:
        module = ModuleType(name)
        vars(module).update(STAND_INS[name])
        sys.modules[name] = module
    sys.path.insert(0, str(checkout / "src"))
    modules = {name: importlib.import_module(f"kernelbench.{name}") for name in ("eval", "timing")}
    for name in missing:  # their modules have it; no other may find it
        del sys.modules[name]
    return SimpleNamespace(**modules, missing=missing)


def evaluate(kernelbench: SimpleNamespace, order: dict[str, Any]) -> dict[str, Any]:
    """One candidate by ``eval_kernel_against_ref``, in seconds from call to result. Nothing is built beforehand."""
    import torch

    torch.zeros(1, device="cuda")  # starting CUDA is not counted
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TORCH_EXTENSIONS_DIR": folder, "TRITON_CACHE_DIR": folder}
        begin = time.perf_counter()
        result = kernelbench.eval.eval_kernel_against_ref(
            original_model_src=order["task"],
            custom_model_src=order["candidate"],
            num_correct_trials=CORRECTNESS_TRIALS,
            num_perf_trials=TIMING_TRIALS,
            measure_performance=True,
            build_dir=Path(folder, "build"),
            device=torch.device("cuda:0"),
            backend=order["backend"],
        )
        seconds = time.perf_counter() - begin
    if result is None or not result.correctness or result.runtime <= 0:
        raise SystemExit(f"KernelBench does not find the candidate correct: {vars(result) if result else result}")
    return {"evaluation_s": seconds, "mean_ms": result.runtime}


def time_all(kernelbench: SimpleNamespace, order: dict[str, Any]) -> dict[str, list[float]]:
    """Samples of each kernel by their default timer, in milliseconds. Inputs are drawn on the device to save time."""
    return {name: _time(kernelbench, **kernel) for name, kernel in order["kernels"].items()}


def _time(kernelbench: SimpleNamespace, task: str, candidate: str, entry: str) -> list[float]:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        reference, source = (_module(text, Path(folder, name)) for text, name in ((task, "t.py"), (candidate, "c.py")))
        with torch.device("cuda"), torch.no_grad():
            model = getattr(source, entry)(*reference.get_init_inputs())
            inputs = reference.get_inputs()
            run = kernelbench.timing.get_timing_function()
            samples = run(model, inputs, num_trials=TIMING_TRIALS, verbose=False, device=torch.device("cuda:0"))
    del model, inputs
    torch.cuda.empty_cache()
    return [round(sample, 6) for sample in samples]


def _module(text: str, path: Path) -> Any:
    """A real file, because Triton reads the source again."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    begin = time.perf_counter()
    order = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        kernelbench = load(Path(sys.argv[1]))
        loaded_s = time.perf_counter() - begin
        answer = (evaluate if "candidate" in order else time_all)(kernelbench, order)
    print(json.dumps({"import_s": loaded_s, "stood_in": kernelbench.missing, "answer": answer}))


if __name__ == "__main__":
    main()
