"""`gpuwatch requests`: what became of recent requests, from the database, with or without a service."""

import json
import time
from typing import Annotated

import typer

from gpuwatch.cli.client import AsJson, DataDirectory, open_database
from gpuwatch.cli.errors import CommandFailed, WrongUsage
from gpuwatch.storage.records import Outcome

app = typer.Typer(help="What became of recent requests.", no_args_is_help=True)


@app.callback()
def requests() -> None:
    """Keep ``list`` a word of its own: typer folds a lone command into its group."""


@app.command("list")
def list_(
    *,
    lane: Annotated[str | None, typer.Option(help="Only of this lane.")] = None,
    outcome: Annotated[
        str | None, typer.Option(help="Only with this outcome: ok, queue-timeout, out-of-memory …")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="DURATION", help="Only the last 1h, 30m, 90s …")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    data_dir: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """List requests, newest first. Needs no running service.

    Example: gpuwatch requests list --outcome out-of-memory --since 1h
    """
    from gpuwatch.cli.history import request_table  # noqa: PLC0415 - keeps --help light
    from gpuwatch.storage import codec  # noqa: PLC0415 - the same
    from gpuwatch.storage.errors import StorageError  # noqa: PLC0415 - the same

    wanted, after = _outcome(outcome), _since(since)
    try:
        found = open_database(data_dir).requests(lane=lane, outcome=wanted, since=after, limit=limit)
    except StorageError as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        typer.echo(json.dumps({"requests": codec.plain(found)}, indent=2))
    else:
        typer.echo("\n".join(request_table(found)) if found else "no requests")


def _outcome(text: str | None) -> Outcome | None:
    try:
        return None if text is None else Outcome(text)
    except ValueError:
        raise WrongUsage(f"--outcome {text}: there is none of that name; there are {', '.join(Outcome)}") from None


def _since(text: str | None) -> float | None:
    from gpuwatch.storage.errors import BadValue  # noqa: PLC0415 - keeps --help light
    from gpuwatch.storage.units import parse_duration  # noqa: PLC0415 - the same

    try:
        return None if text is None else time.time() - parse_duration(text)
    except BadValue as bad:
        raise WrongUsage(f"--since: {bad}") from None
