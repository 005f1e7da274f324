"""`gpuwatch snapshots`: out-of-memories and near-misses, from the database, with or without a service."""

import json
from typing import Annotated

import typer

from gpuwatch.cli.client import AsJson, DataDirectory, open_database
from gpuwatch.cli.errors import CommandFailed

app = typer.Typer(help="Out-of-memories and near-misses, and what caused them.", no_args_is_help=True)


@app.command("list")
def list_(
    *,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    data_dir: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """List snapshots, newest first. Needs no running service.

    Example: gpuwatch snapshots list --limit 5
    """
    from gpuwatch.cli.history import snapshot_table  # noqa: PLC0415 - keeps --help light
    from gpuwatch.storage import codec  # noqa: PLC0415 - the same
    from gpuwatch.storage.errors import StorageError  # noqa: PLC0415 - the same

    try:
        heads = open_database(data_dir).snapshots(limit=limit)
    except StorageError as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        typer.echo(json.dumps({"snapshots": codec.plain(heads)}, indent=2))
    else:
        typer.echo("\n".join(snapshot_table(heads)) if heads else "no snapshots")


@app.command()
def show(
    *,
    number: Annotated[int, typer.Argument(metavar="ID", help="The snapshot's number, as `list` shows it.")],
    data_dir: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Show one snapshot: who, what was asked for, figures, in flight, processes, knobs, the minute before.

    Example: gpuwatch snapshots show 3
    """
    from gpuwatch.cli.history import snapshot_page  # noqa: PLC0415 - keeps --help light
    from gpuwatch.storage import codec  # noqa: PLC0415 - the same
    from gpuwatch.storage.errors import StorageError  # noqa: PLC0415 - the same

    try:
        snapshot = open_database(data_dir).snapshot(number)
    except StorageError as error:
        raise CommandFailed(str(error)) from None
    if snapshot is None:
        raise CommandFailed(f"there is no snapshot {number}; `gpuwatch snapshots list` shows those there are")
    if as_json:
        typer.echo(json.dumps(codec.plain(snapshot), indent=2))
    else:
        typer.echo("\n".join(snapshot_page(snapshot)))
