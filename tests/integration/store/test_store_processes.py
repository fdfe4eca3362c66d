"""The store between processes: real kills, a real second writer, real readers."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from conformance.store import a_call, a_node, a_root, a_run
from stark.core.errors import StoreLocked
from stark.core.records import Spend, TicketRecord
from stark.store.open import open_store
from subprocess_pair import started
from waiting import wait_until

KILLS = 10


def write_forever(pipe: Connection, folder: Path) -> None:
    """Make attempts, and acknowledge every operation after it has returned."""
    with closing(open_store(folder, write=True)) as store:
        if not store.runs():
            store.create(a_run())
            store.finish("run", a_root())
        number = max([node.id for node in store.nodes("run")] + [open.number for open in store.unfinished("run")])
        while True:
            number += 1
            store.begin("run", TicketRecord(number, 0, 1))
            pipe.send(("begun", number))
            reservation = store.reserve("run", number, 0, Spend(1000, 8.0))
            pipe.send(("reserved", number))
            store.journal("run", reservation, a_call(number, text="word " * (number % 4000)))
            pipe.send(("journalled", number))
            store.finish("run", a_node(number))
            pipe.send(("finished", number))


def drained(pipe: Connection) -> list[tuple[str, int]]:
    """What was acknowledged before the other side died."""
    received = []
    try:
        while True:
            received.append(pipe.recv())
    except (EOFError, ConnectionResetError):
        return received


def test_what_was_acknowledged_survives_every_kill(tmp_path):
    acknowledged: dict[str, set[int]] = {"begun": set(), "reserved": set(), "journalled": set(), "finished": set()}
    for _ in range(KILLS):
        with started(write_forever, tmp_path) as (process, pipe):
            first = pipe.recv()
            time.sleep(random.uniform(0, 0.2))
            process.kill()
            for kind, number in [first, *drained(pipe)]:
                acknowledged[kind].add(number)
        check_acknowledged(tmp_path, acknowledged)
    assert len(acknowledged["finished"]) > KILLS


def check_acknowledged(folder: Path, acknowledged: dict[str, set[int]]) -> None:
    with closing(open_store(folder, write=False)) as store:  # as a view would right after the kill
        finished = {node.id for node in store.nodes("run")}
    with closing(open_store(folder, write=True)) as store:
        assert store.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert {node.id for node in store.nodes("run")} == finished >= acknowledged["finished"]
        journalled = {call.number for call in store.calls("run")}
        assert journalled >= acknowledged["journalled"]
        assert finished | {ticket.number for ticket in store.unfinished("run")} >= acknowledged["begun"]
        lost = (store.spent("run").tokens - 120 * len(journalled)) / 1000
        assert len(acknowledged["reserved"] - journalled) <= lost <= KILLS


def read_until_signal(pipe: Connection, folder: Path) -> None:
    """Read over and over, and check each time that what is seen hangs together."""
    seen = rounds = 0
    with closing(open_store(folder, write=False)) as store:
        while not pipe.poll():
            nodes = [node.id for node in store.nodes("run")]
            calls = store.calls("run")
            spent = store.spent("run")
            assert nodes == list(range(len(nodes)))
            assert len(nodes) >= seen
            assert len(calls) >= len(nodes) - 1
            assert spent.tokens >= 120 * len(calls)
            seen, rounds = len(nodes), rounds + 1
            if rounds == 1:
                pipe.send("reading")
    pipe.send((seen, rounds))


def test_readers_and_a_writer_do_not_disturb_each_other(tmp_path):
    with closing(open_store(tmp_path, write=True)) as store:
        store.create(a_run())
        store.finish("run", a_root())
        with started(read_until_signal, tmp_path) as (_, one), started(read_until_signal, tmp_path) as (_, two):
            assert [pipe.recv() for pipe in (one, two)] == ["reading", "reading"]
            for number in range(1, 301):
                store.begin("run", TicketRecord(number, 0, 1))
                store.journal("run", store.reserve("run", number, 0, Spend(1000, 8.0)), a_call(number))
                store.finish("run", a_node(number))
            for pipe in (one, two):
                pipe.send("enough")
                seen, rounds = pipe.recv()
                assert seen <= 301
                assert rounds > 1


def hold_lock(pipe: Connection, folder: Path, leave: str) -> None:
    """Take the lock, leave another process behind, and wait to be killed."""
    store = open_store(folder, write=True)
    if leave == "program":
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], close_fds=False).pid
    else:
        left = os.fork()
        if left == 0:
            pipe.close()
            time.sleep(60)
            os._exit(0)
    pipe.send(left)
    time.sleep(60)
    store.close()


def can_be_opened(folder):
    try:
        open_store(folder, write=True).close()
    except StoreLocked:
        return False
    return True


@pytest.mark.parametrize("leave", ["program", "fork"])
def test_the_lock_dies_with_its_holder_and_not_later(tmp_path, leave):
    with started(hold_lock, tmp_path, leave) as (process, pipe):
        left = pipe.recv()
        try:
            with pytest.raises(StoreLocked, match=f"process {process.pid} on "):
                open_store(tmp_path, write=True)
            process.kill()
            process.join()
            os.kill(left, 0)  # still there
            # A forked child lets go of the lock as its first act, but the machine may be busy with others before.
            wait_until(lambda: can_be_opened(tmp_path))
        finally:
            os.kill(left, 9)
