"""`gpuwatch tui`: the console."""

from typing import Annotated

import typer

from gpuwatch.cli.client import DataDirectory, TokenFile, Url, actor, find_service


def tui(
    *,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDirectory = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Look, turn nothing.")] = False,
) -> None:
    """Open the console; it connects when a service appears.

    Example: gpuwatch tui --data-dir /var/lib/gpuwatch
    """
    from gpuwatch.tui.app import run  # noqa: PLC0415 - loads the screen

    find_service(url, token_file, data_dir)  # a token file that cannot be read is said before the screen opens
    raise typer.Exit(run(find=lambda: find_service(url, token_file, data_dir), read_only=read_only, actor=actor()))
