"""Measures the page in a real browser, and what its readers cost a run.

    python benchmarks/perf/page.py [--nodes 1000] [--rounds 5] [--save]

The first part opens a run of many nodes in Chromium, from an empty browser to a drawn tree and a filled table, and pans
the tree frame by frame. The second part makes the same run with and without a server, of which 50 clients ask and never
read. Its agents and evaluator answer at once, so the run does nothing but search and store.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src", "tests")]

import record

from browser import open_browser, open_page, serve
from fakes import TASK
from page_store import write_run
from stark.store.open import open_store
from stark_process import command, environment

CLIENTS = 50
BEFORE, ATTEMPTS = 20, 300
FRAMES = 120

PAN = """async (frames) => {
    const tree = stark.app.view.tree;
    const times = [];
    for (const scale of [0.2, 1]) {
        tree.zoom(scale / tree.view.scale);
        for (let frame = 0; frame < frames; frame++) {
            const began = performance.now();
            tree.pan(frame % 2 ? 7 : -3, frame < frames / 2 ? -40 : 40);
            await new Promise(requestAnimationFrame);
            await new Promise(requestAnimationFrame);
            times.push((performance.now() - began) / 2);
        }
    }
    return times;
}"""
PAINT = """() => {
    const tree = stark.app.view.tree;
    const times = [];
    for (let round = 0; round < 50; round++) {
        const began = performance.now();
        tree.paint();
        tree.canvas.getContext("2d").getImageData(0, 0, 1, 1);
        times.push(performance.now() - began);
    }
    return times;
}"""


def measure_browser(nodes: int, rounds: int) -> dict[str, Any]:
    """Return the seconds to open a run, and the milliseconds of a frame while it pans."""
    with tempfile.TemporaryDirectory() as name, open_browser() as browser:
        write_run(Path(name), nodes, prompt_characters=20_000)
        cold, warm, frames, paints = [], [], [], []
        for _ in range(rounds):
            with serve(Path(name)) as address:
                for times in (cold, warm):  # the first reader makes the server read the store
                    began = time.perf_counter()
                    with open_page(browser, address, viewport={"width": 1600, "height": 1000}) as page:
                        page.locator(".count", has_text=f"{nodes + 1} rows").wait_for()
                        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
                        times.append(time.perf_counter() - began)
                        frames += page.evaluate(PAN, FRAMES)
                        paints += page.evaluate(PAINT)
    return {
        "open_s": {"first": statistics.median(cold), "again": statistics.median(warm), "worst": max(cold)},
        "frame_ms": {"median": statistics.median(frames), "95 %": statistics.quantiles(frames, n=20)[-1]},
        "paint_ms": {"median": statistics.median(paints), "worst": max(paints)},
    }


def measure_stalled(rounds: int) -> dict[str, Any]:
    """Return attempts per second of runs with and without readers that stall, one after the other."""
    rates: dict[str, list[float]] = {"alone": [], "read": []}
    for number in range(rounds):
        for kind in sorted(rates, reverse=bool(number % 2)):
            with tempfile.TemporaryDirectory() as name:
                rates[kind].append(run_once(Path(name), is_read=kind == "read"))
    ratios = [read / alone for read, alone in zip(rates["read"], rates["alone"], strict=True)]
    return {"clients": CLIENTS, "attempts": ATTEMPTS, "attempts_per_s": rates, "ratio": statistics.median(ratios)}


def run_once(folder: Path, is_read: bool) -> float:
    """Return attempts per second of a run that goes on while it is read. The readers are there before it does."""
    (folder / "task.py").write_text(TASK)
    words = ("--method", "stark", "--model", "fakes:PretendModel", "--evaluator", "fakes:HashEvaluator")
    more = ("--set", "evaluation.torch_compile=false", "--usd", 1_000, "--run", folder / "run")
    play("optimize", folder / "task.py", *words, *more, "--attempts", BEFORE)
    before_s = read_seconds(folder / "run")
    with ExitStack() as stack:
        if is_read:
            stall(stack.enter_context(serve(folder)), stack)
        play("resume", folder / "run", "--attempts", BEFORE + ATTEMPTS)
    made = count_nodes(folder / "run") - 1 - BEFORE
    assert made == ATTEMPTS, f"{made} attempts were made"
    return made / (read_seconds(folder / "run") - before_s)


def play(*words: object) -> None:
    """Run a command that may end without a confirmed kernel."""
    done = subprocess.run(command(*words), env=environment(), stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 3):
        sys.exit(done.returncode)


def count_nodes(folder: Path) -> int:
    with closing(open_store(folder, write=False)) as store:
        return len(store.judgements(store.runs()[0].id))


def read_seconds(folder: Path) -> float:
    with closing(open_store(folder, write=False)) as store:
        (run,) = store.runs()
        return store.seconds(run.id)


def stall(address: str, stack: ExitStack) -> None:
    """Ask for events and documents, and never read what comes."""
    place = urlsplit(address)
    for number in range(CLIENTS):
        client = stack.enter_context(socket.create_connection((place.hostname, place.port)))
        path = ("/api/events?store=run", "/api/index", "/api/run?store=run&run=run")[number % 3]
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/page.json")
    arguments = parser.parse_args()
    browser = measure_browser(arguments.nodes, arguments.rounds)
    opened, frame, paint = browser["open_s"], browser["frame_ms"], browser["paint_ms"]
    print(f"{arguments.nodes} nodes: open {opened['first']:.2f} s, again {opened['again']:.2f} s")
    print(f"frame {frame['median']:.1f} ms, 95 % below {frame['95 %']:.1f} ms; paint {paint['median']:.1f} ms")
    stalled = measure_stalled(arguments.rounds)
    print(f"{CLIENTS} stalled readers: {stalled['ratio']:.3f} of the throughput without them")
    if arguments.save:
        found = {"nodes": arguments.nodes, **browser, "stalled": stalled, "load": os.getloadavg()}
        record.write(record.result_file("page"), record.facts() | found)


if __name__ == "__main__":
    main()
