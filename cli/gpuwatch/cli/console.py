"""`gpuwatch tui`: the console."""

import sys
from typing import Annotated

import typer

from gpuwatch.cli.client import DataDirectory, TokenFile, Url, actor, find_service
from gpuwatch.cli.errors import WrongUsage


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
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise WrongUsage("the console needs a terminal; gpuwatch status prints the same in one screen of text")
    from gpuwatch.tui.app import run  # noqa: PLC0415 - loads the screen

    find_service(url, token_file, data_dir)  # a token file that cannot be read is said before the screen opens
    raise typer.Exit(run(find=lambda: find_service(url, token_file, data_dir), read_only=read_only, actor=actor()))
