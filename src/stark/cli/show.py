"""The commands that look into the folder of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from stark.cli.options import RunFolder, RunName
from stark.cli.terminal import screen, tree
from stark.core.errors import UsageError
from stark.core.tree import Role


def show(
    folder: RunFolder,
    node: Annotated[int | None, typer.Argument(help="A node, to see all of it.")] = None,
    run: RunName = None,
) -> None:
    """Show the tree of a run, or one node with its prompts, scaffold, change and log."""
    record, nodes = read(folder, run)
    if node is None:
        tree.show_tree(record, nodes, read_models(folder, run), read_final(folder, run))
        return
    by_id = {each.id: each for each in nodes}
    if node not in by_id:
        raise UsageError(
            f"The run in {folder} has no node {node}.", f"Its nodes: {', '.join(map(str, sorted(by_id)))}."
        )
    parent_id = by_id[node].parent_id
    tree.show_node(by_id[node], None if parent_id is None else by_id[parent_id], read_calls(folder, run, node))


def export(
    folder: RunFolder,
    best: Annotated[Path | None, typer.Option("--best", metavar="FILE", help="Write the best kernel here.")] = None,
    training_data: Annotated[
        Path | None, typer.Option("--training-data", metavar="FILE", help="Write a role's calls as chat-format JSONL.")
    ] = None,
    role: Annotated[Role, typer.Option("--role", help="Whose calls.")] = Role.CODE,
    run: RunName = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="FILE", help="Write the evidence for the best kernel here.")
    ] = None,
) -> None:
    """Take the best kernel out of a run, the evidence for it, or calls as training data."""
    from stark.report import exports

    if best is None and training_data is None and bundle is None:
        raise UsageError("Nothing to export was named.", "Give --best FILE, --bundle FILE or --training-data FILE.")
    record, nodes = read(folder, run)
    if best is not None:
        exports.write_best(best, record, nodes, read_final(folder, run))
        screen.say(f"The best kernel is in {best}.")
    if training_data is not None:
        count = exports.write_training_data(training_data, nodes, read_calls(folder, run), role)
        screen.say(f"{count} calls of the {role} agent are in {training_data}.")
    if bundle is not None:
        from stark.store.lookup import settings_of

        evidence = exports.bundle_of(record, nodes, read_final(folder, run), settings_of(record).evaluation)
        screen.show_bundle(bundle, exports.write_bundle(bundle, evidence))


def salvage(folder: RunFolder, into: Annotated[Path, typer.Argument(metavar="NEW_DIR", help="A new folder.")]) -> None:
    """Copy whatever can still be read of a damaged run into a new folder."""
    from stark.store.salvage import salvage as salvage_store

    counts = salvage_store(folder, into)
    screen.say(f"Saved into {into}: " + ", ".join(f"{count} {table}" for table, count in counts.items()) + ".")


def read(folder: Path, run: str | None = None) -> Any:
    """A run and its nodes. Its calls hold every prompt, so they are read only where they are used."""
    with _opened(folder, run) as (store, record):
        return record, store.nodes(record.id)


def read_final(folder: Path, run: str | None = None) -> Any:
    with _opened(folder, run) as (store, record):
        return store.final(record.id)


def read_models(folder: Path, run: str | None = None) -> Any:
    """Who was asked."""
    with _opened(folder, run) as (store, record):
        return store.models(record.id)


def read_usage(folder: Path, run: str | None = None) -> Any:
    """What the calls came to, by role."""
    with _opened(folder, run) as (store, record):
        return store.usage(record.id)


def read_calls(folder: Path, run: str | None, number: int | None = None) -> Any:
    """The calls of one attempt, or of all."""
    with _opened(folder, run) as (store, record):
        return store.calls(record.id, number)


@contextmanager
def _opened(folder: Path, run: str | None) -> Iterator[tuple[Any, Any]]:
    from stark.store.lookup import pick_run
    from stark.store.open import open_store

    with closing(open_store(folder, write=False)) as store:
        yield store, pick_run(store, folder, run)


COMMANDS = (show, export, salvage)
