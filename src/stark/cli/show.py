"""The commands on the folder of a run: ``stark show``, ``export``, ``salvage`` and ``view``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from stark.cli.options import RunFolder, RunName
from stark.cli.stored_run import read_calls, read_final, read_models, read_run
from stark.cli.terminal import screen, tree
from stark.core.bound import stored_speed_of_light
from stark.core.errors import UsageError
from stark.core.tree import Role


def show(
    folder: RunFolder,
    node: Annotated[int | None, typer.Argument(help="Show only this node, in full.")] = None,
    run: RunName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run, or the node, as JSON.")] = False,
) -> None:
    """Show the tree of a run, or one node with its prompts, scaffold, change and log."""
    from stark.report import exports

    record, nodes = read_run(folder, run)
    if node is not None and all(each.id != node for each in nodes):
        known = ", ".join(str(each.id) for each in sorted(nodes, key=lambda each: each.id))
        raise UsageError(f"The run in {folder} has no node {node}.", f"Its nodes are {known}.")
    if as_json:
        screen.show_json(exports.describe_run(record, nodes, read_final(folder, run), node))
        return
    if node is None:
        tree.show_tree(record, nodes, read_models(folder, run), read_final(folder, run))
        return
    by_id = {each.id: each for each in nodes}
    parent_id = by_id[node].parent_id
    limit = stored_speed_of_light(nodes)
    tree.show_node(by_id[node], None if parent_id is None else by_id[parent_id], read_calls(folder, run, node), limit)


def export(
    folder: RunFolder,
    best: Annotated[Path | None, typer.Option("--best", metavar="FILE", help="Write the best kernel here.")] = None,
    training_data: Annotated[
        Path | None, typer.Option("--training-data", metavar="FILE", help="Write a role's calls as chat-format JSONL.")
    ] = None,
    role: Annotated[Role, typer.Option("--role", help="The role whose calls are written.")] = Role.CODE,
    run: RunName = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="FILE", help="Write the evidence for the best kernel here.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --best replace a file.")] = False,
) -> None:
    """Write the best kernel of a run, the evidence for it, or its calls as training data."""
    from stark.report import exports

    if best is None and training_data is None and bundle is None:
        raise UsageError("There is nothing to export.", "Give --best FILE, --bundle FILE or --training-data FILE.")
    record, nodes = read_run(folder, run)
    if best is not None:
        if os.path.isfile(best) and not force:
            raise UsageError(f"{best} is there already.", "Name another file, or replace it with --force.")
        exports.write_best(best, record, nodes, read_final(folder, run))
        screen.show_line(f"The best kernel is in {best}.")
    if training_data is not None:
        count = exports.write_training_data(training_data, nodes, read_calls(folder, run), role)
        screen.show_line(f"{count} calls of the {role} agent are in {training_data}.")
    if bundle is not None:
        from stark.store.lookup import settings_of

        evidence = exports.bundle_of(record, nodes, read_final(folder, run), settings_of(record).evaluation)
        screen.show_bundle(bundle, exports.write_bundle(bundle, evidence))


def salvage(folder: RunFolder, into: Annotated[Path, typer.Argument(metavar="NEW_DIR", help="A new folder.")]) -> None:
    """Copy the readable part of a damaged run into a new folder."""
    from stark.store.salvage import salvage as salvage_store

    counts = salvage_store(folder, into)
    screen.show_line(f"Saved into {into}: " + ", ".join(f"{count} {table}" for table, count in counts.items()) + ".")


def view(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run, a benchmark, or a folder of many.")],
    port: Annotated[int | None, typer.Option("--port", help="Port (default: the first free one from 8400 on).")] = None,
    host: Annotated[str, typer.Option("--host", help="Address to serve; all but loopback need a token.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option("--token", envvar="STARK_VIEW_TOKEN", help="Letters and digits a client must know.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A further name of this machine; may be repeated.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve the page of a run, a benchmark, or a folder of many; it follows live and only reads."""
    try:
        from stark.web.serve import serve
    except ModuleNotFoundError as error:
        raise UsageError(f"The page needs {error.name}.", "Install it: pip install 'stark-kernels[web]'") from error

    def announce(address: str) -> None:
        screen.show_line(f"The page of {folder} is at {address} (Ctrl-C ends it)")
        if open_browser:
            typer.launch(address)

    serve(folder, host, port, token, name or [], announce)
