"""The SQLite store: what it refuses, what it survives, and what it says."""

from __future__ import annotations

import os
import random
import resource
import shutil
import sqlite3
import tempfile
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.store import FAILED, OK, a_call, a_node, a_root, a_run
from stark.core.errors import StoreDamaged, StoreError, StoreLocked, StoreTooNew
from stark.core.records import Final, Spend, TicketRecord
from stark.store import rows, schema
from stark.store.connection import insert, transaction
from stark.store.open import open_store
from stark.store.salvage import salvage
from stark_worker.protocol.request import Score


def fill(folder: Path, attempts: int = 40, text: str = "reply " * 300) -> None:
    """A run with a long chain and a wide root, two calls per attempt, and one attempt left unfinished."""
    with closing(open_store(folder, write=True)) as store:
        store.create(a_run())
        store.finish("run", a_root())
        for number in range(1, attempts + 1):
            parent = 0 if number % 3 else number - 1
            store.begin("run", TicketRecord(number, parent, number))
            for index in (0, 1):
                store.journal("run", store.reserve("run", number, index, Spend(999, 9.0)), a_call(number, index, text))
            if number < attempts:
                store.finish("run", a_node(number, parent, source=f"# {number}\n" + "x = 1\n" * 200))
        store.clock("run", 60.0)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store of some size, to be copied."""
    folder = tmp_path_factory.mktemp("filled")
    fill(folder)
    return folder


@pytest.fixture
def run(filled, tmp_path):
    """The folder of a stored run."""
    return shutil.copytree(filled, tmp_path / "run")


def everything(folder: Path) -> tuple:
    with closing(open_store(folder, write=False)) as store:
        return (
            store.runs(),
            store.nodes("run"),
            store.unfinished("run"),
            store.calls("run"),
            store.spent("run"),
            store.seconds("run"),
            store.judgements("run"),
        )


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def as_ordinary_user(folder: Path):
    """Run as a user whom file permissions bind; they do not bind root."""
    if os.geteuid() != 0:
        yield
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public_path():
    """A folder that an ordinary user can reach."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    for folder in (path, *(found for found in path.rglob("*") if found.is_dir())):
        folder.chmod(0o755)
    shutil.rmtree(path)


# -- opening ----------------------------------------------------------------------------------------------------------


def test_reading_creates_nothing(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(StoreError, match=f"There is no run in {folder}"):
            open_store(folder, write=False)
    assert list(tmp_path.iterdir()) == []


def test_a_store_at_rest_is_one_file_and_reading_leaves_it_so(tmp_path):
    fill(tmp_path, attempts=2)
    before = bytes_in(tmp_path)
    assert set(before) == {"stark.db", "writer.lock"}
    assert len(everything(tmp_path)[1]) == 2
    assert bytes_in(tmp_path) == before


def test_a_reader_sees_what_the_writer_has_done_so_far(tmp_path):
    with closing(open_store(tmp_path, write=True)) as writer:
        writer.create(a_run())
        with closing(open_store(tmp_path, write=False)) as reader:
            assert reader.nodes("run") == []
            writer.finish("run", a_root())
            writer.begin("run", TicketRecord(1, 0, 1))
            writer.reserve("run", 1, 0, Spend(10, 0.5))
            assert reader.nodes("run") == [a_root()]
            assert reader.spent("run") == Spend(10, 0.5)
        assert writer.nodes("run") == [a_root()]


def test_a_reader_may_outlive_writers(tmp_path):
    fill(tmp_path, attempts=1)
    with closing(open_store(tmp_path, write=False)) as reader:
        for number in (2, 3):
            assert len(reader.nodes("run")) == number - 1
            with closing(open_store(tmp_path, write=True)) as writer:
                writer.finish("run", a_node(number))
                assert len(reader.nodes("run")) == number
            assert len(reader.nodes("run")) == number


def test_a_reader_cannot_write(tmp_path):
    fill(tmp_path, attempts=1)
    with closing(open_store(tmp_path, write=False)) as reader, pytest.raises(sqlite3.Error, match="readonly"):
        reader.db.execute("DELETE FROM clocks")


def test_a_closed_store_says_so(tmp_path):
    store = open_store(tmp_path, write=True)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.runs()


def test_a_folder_with_an_odd_name(tmp_path):
    folder = tmp_path / "50% done? #1 é"
    fill(folder, attempts=1)
    assert everything(folder)[0] == [a_run()]


def test_settings_that_were_replaced_are_kept(tmp_path):
    with closing(open_store(tmp_path, write=True)) as store:
        store.create(a_run(settings={"seed": 1}))
        store.amend("run", {"seed": 1, "hint": "\ud800"})
        store.amend("run", {"seed": 3})
        history = [row["settings"] for row in store.db.execute("SELECT settings FROM amendments ORDER BY rowid")]
    assert history == ['{"seed": 1}', '{"seed": 1, "hint": "\ud800"}']


# -- the lock ---------------------------------------------------------------------------------------------------------


def test_the_error_of_a_second_writer_names_the_first(tmp_path):
    with closing(open_store(tmp_path, write=True)):
        with pytest.raises(StoreLocked, match=f"process {os.getpid()} on .* since 20.*Wait until that process ends"):
            open_store(tmp_path, write=True)
        with pytest.raises(StoreLocked):
            salvage(tmp_path, tmp_path / "new")
    open_store(tmp_path, write=True).close()


def test_a_refused_file_does_not_stay_locked(tmp_path):
    (tmp_path / "stark.db").write_text("not a database at all" * 100)
    for _ in range(2):
        with pytest.raises(StoreDamaged):
            open_store(tmp_path, write=True)


# -- versions ---------------------------------------------------------------------------------------------------------


def make_file(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "stark.db", isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def test_an_empty_file_of_version_0_is_migrated(tmp_path):
    make_file(tmp_path, f"PRAGMA application_id = {schema.APPLICATION_ID}")
    with closing(open_store(tmp_path, write=False)) as store:
        assert store.runs() == []
    fill(tmp_path, attempts=2)
    assert len(everything(tmp_path)[1]) == 2


def test_a_further_migration_keeps_the_data_and_runs_once(run, monkeypatch):
    before = everything(run)
    monkeypatch.setattr(
        schema, "MIGRATIONS", [*schema.MIGRATIONS, lambda db: db.execute("ALTER TABLE nodes ADD COLUMN tag TEXT")]
    )
    for _ in range(2):
        open_store(run, write=True).close()
        assert everything(run) == before


def test_a_migration_that_fails_changes_nothing(tmp_path, monkeypatch):
    fill(tmp_path, attempts=2)
    before = everything(tmp_path)

    def half_done(db):
        db.execute("DROP TABLE calls")
        db.execute("DROP TABLE no_such_table")

    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, half_done])
        with pytest.raises(StoreError, match="no_such_table"):
            open_store(tmp_path, write=True)
    assert everything(tmp_path) == before


def test_a_file_from_the_future_is_left_alone(tmp_path):
    fill(tmp_path, attempts=2)
    make_file(tmp_path, "PRAGMA user_version = 99")
    before = (tmp_path / "stark.db").read_bytes()
    for write in (True, False):
        with pytest.raises(StoreTooNew, match=rf"version 99.*up to {len(schema.MIGRATIONS)}"):
            open_store(tmp_path, write=write)
    with pytest.raises(StoreTooNew):
        salvage(tmp_path, tmp_path / "new")
    assert (tmp_path / "stark.db").read_bytes() == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("write", [True, False])
def test_the_database_of_another_program_is_left_alone(tmp_path, write):
    make_file(tmp_path, "CREATE TABLE songs (title TEXT)")
    before = (tmp_path / "stark.db").read_bytes()
    with pytest.raises(StoreError, match="another program"):
        open_store(tmp_path, write=write)
    assert (tmp_path / "stark.db").read_bytes() == before


# -- damage -----------------------------------------------------------------------------------------------------------


def no_database(file: Path) -> None:
    file.write_bytes(b"<html>404</html>" * 400)


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def cut_to_a_stump(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:50])


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 + 100])


def gone_but_for_its_log(file: Path) -> None:
    file.rename(file.with_name("stark.db-wal"))


@pytest.mark.parametrize("write", [True, False])
@pytest.mark.parametrize("harm", [no_database, emptied, cut_to_a_stump, cut_in_half, gone_but_for_its_log])
def test_a_damaged_file_is_recognised_and_not_touched(run, harm, write):
    harm(run / "stark.db")
    before = bytes_in(run)
    with pytest.raises(StoreDamaged, match=f"stark salvage {run} NEW_DIR"):
        open_store(run, write=write)
    assert {name: data for name, data in bytes_in(run).items() if name != "writer.lock"} == {
        name: data for name, data in before.items() if name != "writer.lock"
    }


def test_damage_that_is_met_later_is_reported_as_damage(run):
    data = bytearray((run / "stark.db").read_bytes())
    data[4096 * 20 :] = os.urandom(len(data) - 4096 * 20)
    (run / "stark.db").write_bytes(data)
    with closing(open_store(run, write=False)) as store, pytest.raises(StoreDamaged, match="stark salvage"):
        store.nodes("run")
    with pytest.raises(StoreDamaged, match="stark salvage"):
        open_store(run, write=True)


@pytest.mark.parametrize("write", [True, False])
def test_a_schema_that_is_no_text_is_damage(run, write):
    data = (run / "stark.db").read_bytes()
    assert data.count(b"CREATE TABLE nodes (") == 1
    (run / "stark.db").write_bytes(data.replace(b"CREATE TABLE nodes (", b"CREATE TABLE nodes \xfa"))
    with pytest.raises(StoreDamaged), closing(open_store(run, write)) as store:
        store.nodes("run")


@pytest.mark.parametrize("column", ["role", "report", "plan", "notes"])
def test_a_row_that_makes_no_sense_is_damage(tmp_path, column):
    fill(tmp_path, attempts=2)
    make_file(tmp_path, f'UPDATE nodes SET "{column}" = \'{{"half\' WHERE id = 1')
    with closing(open_store(tmp_path, write=False)) as store, pytest.raises(StoreDamaged):
        store.nodes("run")


@pytest.mark.parametrize("seed", range(15))
def test_random_damage_never_shows_an_sqlite_error_and_what_is_salvaged_is_consistent(run, tmp_path, seed):
    rng = random.Random(seed)
    new = tmp_path / "new"
    data = bytearray((run / "stark.db").read_bytes())
    for _ in range(rng.randint(1, 4)):
        page = rng.randrange(len(data) // 4096)
        size = rng.choice([8, 100, 4096])
        data[page * 4096 : page * 4096 + size] = rng.choice([rng.randbytes(size), bytes(size)])
    (run / "stark.db").write_bytes(data)
    for write in (True, False):
        try:
            with closing(open_store(run, write)) as store:
                for look in (store.nodes, store.unfinished, store.calls, store.spent, store.seconds):
                    look("run")
        except StoreError:
            pass
    (run / "stark.db").write_bytes(data)
    try:
        salvage(run, new)
    except StoreDamaged:
        assert not new.exists()
    else:
        check_consistent(new)
    assert (run / "stark.db").read_bytes() == data


def test_a_final_without_its_node_is_not_salvaged(tmp_path):
    """Else it would speak of the next node of that number."""
    fill(tmp_path / "old", attempts=3)
    with closing(open_store(tmp_path / "old", write=True)) as store:
        for number in (1, 2):
            store.confirm("run", Final(number, Score.VERIFIED, OK, OK))
    make_file(tmp_path / "old", "DELETE FROM nodes WHERE id = 2")
    assert salvage(tmp_path / "old", tmp_path / "new")["finals"] == 1
    with closing(open_store(tmp_path / "new", write=False)) as store:
        assert store.final("run").node_id == 1


def test_a_final_that_makes_no_sense_is_not_salvaged(tmp_path):
    fill(tmp_path / "old", attempts=3)
    with closing(open_store(tmp_path / "old", write=True)) as store:
        store.confirm("run", Final(1, Score.VERIFIED, OK, OK))
    make_file(tmp_path / "old", """UPDATE finals SET verified = '{"half'""")
    assert salvage(tmp_path / "old", tmp_path / "new")["finals"] == 0


def check_consistent(folder: Path) -> None:
    """A salvaged run can be read and gone on with."""
    with closing(open_store(folder, write=True)) as store:
        (run,) = store.runs()
        nodes = store.nodes(run.id)
        landed: set[int] = set()
        for node in nodes:
            assert node.parent_id is None or node.parent_id in landed
            landed.add(node.id)
        for ticket in store.unfinished(run.id):
            assert ticket.parent_id in {node.id for node in nodes[: ticket.visible]}
            calls = store.calls(run.id, ticket.number)
            assert [call.index for call in calls] == list(range(len(calls)))
        assert store.db.execute("PRAGMA foreign_key_check").fetchall() == []
        store.clock(run.id, 1.0)
        assert store.seconds(run.id) >= 1.0
        store.finish(run.id, a_node(1000, nodes[0].id) if nodes else a_root())


# -- salvage ----------------------------------------------------------------------------------------------------------


def test_salvaging_a_healthy_store_loses_nothing(run, tmp_path):
    kept = salvage(run, tmp_path / "deep" / "new")
    counts = {"nodes": 40, "tickets": 40, "reservations": 80, "calls": 80}
    assert kept == {"runs": 1, "clocks": 1, "amendments": 0, "endings": 0, "finals": 0, **counts}
    assert everything(tmp_path / "deep" / "new") == everything(run)
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"new"}


def test_salvage_reads_on_behind_a_lost_page(run, tmp_path):
    file = run / "stark.db"
    data = file.read_bytes()
    place = data.index(b"# 20\nx = 1") // 4096 * 4096
    file.write_bytes(data[:place] + bytes(4096) + data[place + 4096 :])
    salvage(run, tmp_path / "new")
    left = {node.id for node in everything(tmp_path / "new")[1]}
    assert 20 not in left
    assert {1, 2, 38} <= left
    assert everything(tmp_path / "new")[4].tokens == 80 * 120
    check_consistent(tmp_path / "new")


def test_salvage_reads_a_file_that_was_cut(run, tmp_path):
    cut_in_half(run / "stark.db")
    kept = salvage(run, tmp_path / "new")
    assert 5 < kept["nodes"] < 40
    check_consistent(tmp_path / "new")


def test_salvage_keeps_only_what_hangs_together(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    fill(old, attempts=7)  # 3 hangs on 2, 6 on 5, all others on the root; 7 is unfinished
    make_file(
        old,
        "UPDATE nodes SET same_as = 2 WHERE id = 4",
        "DELETE FROM nodes WHERE id = 2",
        "DELETE FROM tickets WHERE number = 5",
        "DELETE FROM reservations WHERE number = 4",
        'DELETE FROM calls WHERE number = 7 AND "index" = 0',
        "DELETE FROM clocks",
    )
    salvage(old, new)
    with closing(open_store(new, write=False)) as store:
        assert [node.id for node in store.nodes("run")] == [0, 1, 4, 5, 6]
        assert [node.same_as for node in store.nodes("run")] == [None] * 5
        # 7 saw all seven nodes that had landed, of which five are left; 2 lost its node and is to be tried again
        assert store.unfinished("run") == [TicketRecord(2, 0, 2), TicketRecord(7, 0, 5)]
        assert [(call.number, call.index) for call in store.calls("run")] == [
            (number, index) for number in (1, 2, 4, 5, 6) for index in (0, 1)
        ]
        assert store.spent("run") == Spend(14 * 120, 14 * 0.25)
    check_consistent(new)


def test_salvage_of_a_run_that_makes_no_sense_leaves_nothing_behind(run, tmp_path):
    make_file(run, "UPDATE runs SET device = 'x'")
    with pytest.raises(StoreDamaged, match="no readable run"):
        salvage(run, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_salvage_refuses_what_it_cannot_do(tmp_path):
    fill(tmp_path / "run", attempts=1)
    with pytest.raises(StoreError, match="There is no run in"):
        salvage(tmp_path / "nowhere", tmp_path / "new")
    with pytest.raises(StoreError, match="is not empty"):
        salvage(tmp_path / "run", tmp_path / "run")
    no_database(tmp_path / "run" / "stark.db")
    with pytest.raises(StoreDamaged, match="Nothing can be rescued"):
        salvage(tmp_path / "run", tmp_path / "new")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


# -- permissions and space --------------------------------------------------------------------------------------------


def test_an_unwritable_place_is_one_sentence(public_path):
    public_path.chmod(0o555)
    with as_ordinary_user(public_path):
        for folder in (public_path, public_path / "new"):
            with pytest.raises(StoreError, match=r"cannot be used: Permission denied\. Check the permissions"):
                open_store(folder, write=True)
    assert list(public_path.iterdir()) == []


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(StoreError, match="There is no run"):
        open_store(tmp_path / "run", write=False)
    with pytest.raises(StoreError, match=r"cannot be used: File exists\. Choose another folder"):
        open_store(tmp_path / "run", write=True)


def test_a_read_only_folder_can_be_read(public_path):
    fill(public_path, attempts=3)
    expected = everything(public_path)
    make_file(public_path, "PRAGMA journal_mode = WAL")  # as a killed writer leaves it
    for path in (*public_path.iterdir(), public_path):
        path.chmod(0o555 if path.is_dir() else 0o444)
    with as_ordinary_user(public_path):
        assert everything(public_path) == expected
        with pytest.raises(StoreError, match="Permission denied"):
            open_store(public_path, write=True)
    assert {path.name for path in public_path.iterdir()} == {"stark.db", "writer.lock"}


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])  # as a writer that closed and one that was killed leave it
def test_a_file_that_cannot_be_written_is_noticed_on_opening(public_path, mode):
    fill(public_path, attempts=1)
    make_file(public_path, f"PRAGMA journal_mode = {mode}")
    (public_path / "stark.db").chmod(0o444)
    with as_ordinary_user(public_path), pytest.raises(StoreError, match="readonly database"):
        open_store(public_path, write=True)


@contextmanager
def no_file_larger_than(size: int):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_when_the_disk_is_full_nothing_is_half_written(tmp_path):
    with closing(open_store(tmp_path, write=True)) as store:
        store.create(a_run())
        store.finish("run", a_root())
        store.begin("run", TicketRecord(1, 0, 1))
        reservation = store.reserve("run", 1, 0, Spend(1000, 4.0))
        large = a_call(1, text="x" * 2_000_000)
        with no_file_larger_than(1_000_000), pytest.raises(StoreError, match=r"cannot be used: .* resume the run"):
            store.journal("run", reservation, large)
        assert store.spent("run") == Spend(1000, 4.0)
        assert store.calls("run") == []
        store.journal("run", reservation, large)
        assert store.calls("run") == [large]


def test_a_full_disk_leaves_no_half_made_store(tmp_path):
    with no_file_larger_than(10_000), pytest.raises(StoreError):
        open_store(tmp_path / "run", write=True)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["writer.lock"]
    open_store(tmp_path / "run", write=True).close()


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path):
    with closing(open_store(tmp_path, write=True)) as store:
        store.create(a_run())
        store.finish("run", a_root())
        store.begin("run", TicketRecord(1, 0, 1))
        yield store


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_number_that_is_none(begun, number):
    reservation = begun.reserve("run", 1, 0, Spend())
    priced = replace(a_call(1).reply, cost_usd=number)
    attempts = [
        lambda: begun.finish("run", a_node(1, outside_share=number)),
        lambda: begun.finish("run", a_node(1, report=replace(OK, duration_s=number))),
        lambda: begun.reserve("run", 1, 1, Spend(1, number)),
        lambda: begun.journal("run", reservation, a_call(1, reply=priced)),
        lambda: begun.journal("run", reservation, a_call(1, duration_s=number)),
        lambda: begun.clock("run", number),
        lambda: begun.amend("run", {"usd": number}),
        lambda: begun.create(a_run("other", settings={"usd": number})),
    ]
    for attempt in attempts:
        with pytest.raises(StoreError, match="cannot be stored"):
            attempt()
    assert (begun.nodes("run"), begun.calls("run")) == ([a_root()], [])
    assert (begun.spent("run"), begun.seconds("run"), begun.runs()) == (Spend(), 0.0, [a_run()])


def test_a_record_that_contradicts_the_tree_is_refused(begun):
    with pytest.raises(StoreError, match="contradicts"):
        begun.finish("run", a_node(2, parent_id=77))
    with pytest.raises(StoreError, match="contradicts"):
        begun.begin("run", TicketRecord(1, 0, 1))
    with pytest.raises(StoreError, match="no open reservation 5"):
        begun.journal("run", 5, a_call(1))
    assert begun.nodes("run") == [a_root()]


def test_a_reservation_belongs_to_its_call(begun):
    reservation = begun.reserve("run", 1, 0, Spend(10, 1.0))
    for number, index in ((2, 0), (1, 1)):
        with pytest.raises(StoreError, match="no open reservation"):
            begun.journal("run", reservation, a_call(number, index))
    assert begun.spent("run") == Spend(10, 1.0)


@given(st.lists(st.text(st.characters(), max_size=30), min_size=3, max_size=3))
def test_any_text_comes_back_exactly(texts):
    first, second, third = texts
    with tempfile.TemporaryDirectory() as folder, closing(open_store(Path(folder), write=True)) as store:
        store.create(a_run(first, given=second, settings={"hint": third}))
        node = a_root(source=first, explanation=second, report=replace(FAILED, log=third))
        store.finish(first, node)
        assert store.runs() == [a_run(first, given=second, settings={"hint": third})]
        assert store.nodes(first) == [node]


# -- what is read -----------------------------------------------------------------------------------------------------


def test_money_is_counted_without_reading_prompts(tmp_path):
    fill(tmp_path, attempts=5)
    statements: list[str] = []
    for write in (True, False):
        with closing(open_store(tmp_path, write)) as store:
            store.spent("run")
            store.db.set_trace_callback(statements.append)
            assert store.spent("run") == Spend(10 * 120, 10 * 0.25)
            store.db.set_trace_callback(None)
    assert len(statements) == 1  # the writer remembers, a reader looks
    assert "FROM reservations" in statements[0]


def test_the_calls_of_an_attempt_are_found_by_index(tmp_path):
    fill(tmp_path, attempts=5)
    statements: list[str] = []
    with closing(open_store(tmp_path, write=True)) as store:
        store.db.set_trace_callback(statements.append)
        store.calls("run", 3)
        store.db.set_trace_callback(None)
        (plan,) = store.db.execute(f"EXPLAIN QUERY PLAN {statements[-1]}").fetchall()
    assert "USING INDEX" in plan["detail"]
    assert "number=?" in plan["detail"]


@pytest.mark.parametrize("read", ["judgements", "usage", "count_calls"])
def test_what_a_report_reads_lies_apart_from_the_texts(tmp_path, read):
    fill(tmp_path, attempts=5)
    statements: list[str] = []
    with closing(open_store(tmp_path, write=True)) as store:
        store.db.set_trace_callback(statements.append)
        getattr(store, read)("run")
        store.db.set_trace_callback(None)
        (plan,) = store.db.execute(f"EXPLAIN QUERY PLAN {statements[-1]}").fetchall()
    assert "USING COVERING INDEX" in plan["detail"]


# -- files of version 1, which knew no benchmarks ---------------------------------------------------------------------


@pytest.fixture
def version_1(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        with closing(open_store(tmp_path / "old", write=True)) as store:
            row = {name: value for name, value in rows.run_row(a_run()).items() if name != "labels"}
            with transaction(store.db):
                insert(store.db, "runs", row)
                insert(store.db, "clocks", {"run": 1, "seconds": 0.0})
                node = rows.node_row(1, 0, a_root())
                insert(store.db, "nodes", {name: value for name, value in node.items() if name != "judgement"})
    return tmp_path / "old"


def test_a_file_of_version_1_is_brought_up_to_date(version_1):
    with closing(open_store(version_1, write=True)) as store:
        assert store.runs() == [a_run(labels={})]
        assert store.ending("run") is None
        assert (store.nodes("run"), store.judgements("run")) == ([a_root()], [a_root().judgement])


def test_a_node_of_version_1_that_makes_no_sense_is_reported_when_it_is_read(version_1):
    make_file(version_1, "UPDATE nodes SET report = '{\"half'")
    with closing(open_store(version_1, write=True)) as store, pytest.raises(StoreDamaged, match="salvage"):
        store.judgements("run")


def test_a_file_of_version_1_can_be_salvaged(version_1, tmp_path):
    assert salvage(version_1, tmp_path / "new")["nodes"] == 1
    with closing(open_store(tmp_path / "new", write=False)) as store:
        assert (store.runs(), store.nodes("run")) == ([a_run(labels={})], [a_root()])
        assert store.judgements("run") == [a_root().judgement]
