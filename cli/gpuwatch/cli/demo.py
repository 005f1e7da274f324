"""`gpuwatch demo`: the whole machine with real photographs, a real network and a card that gets full.

Rules: the service and the traffic are children, so that the console stays responsive and a killed demo leaves nothing
behind; what the client saw is held against what the database holds, and a difference is a failure. A simulated card and
a scripted neighbour are called so wherever they show.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from gpuwatch.cli.client import DataDirectory, actor
from gpuwatch.cli.errors import CommandFailed, WrongUsage

if TYPE_CHECKING:
    from gpuwatch.storage.discovery import Found


def demo(
    *,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="sim:SIZE, cuda:0 or auto. Default: auto with CUDA, else a simulated card."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=1, help="How long to send requests. Default: 30 without the console, else until it is left."),
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="No console: a line a second, then a summary.")] = False,
    data_dir: DataDirectory = None,
    port: Annotated[int, typer.Option(min=0, help="Inference port; 0 takes a free one.")] = 0,
    admin_port: Annotated[int, typer.Option(min=0, help="Admin port; 0 takes a free one.")] = 0,
) -> None:
    """Start the service with a built-in model and traffic that fills the card, and open the console.

    Without a terminal, or with --headless: a line a second, then a summary, and it ends by itself.

    Example: gpuwatch demo --headless --seconds 30
    """
    from gpuwatch.cli.photos import PhotosMissing, check  # noqa: PLC0415 - keeps --help light
    from gpuwatch.cli.play import play_on  # noqa: PLC0415 - the same
    from gpuwatch.cli.stage import Stage, has_cuda  # noqa: PLC0415 - the same
    from gpuwatch.storage.errors import BadValue, StorageError  # noqa: PLC0415 - the same

    try:
        check()
        play = play_on(gpu, has_cuda=has_cuda)
    except PhotosMissing as missing:
        raise CommandFailed(str(missing)) from None
    except BadValue as bad:
        raise WrongUsage(f"--gpu {gpu}: {bad}") from None
    screen = not headless and sys.stdout.isatty() and sys.stdin.isatty()
    stage = Stage(
        play,
        data_dir=data_dir or Path(tempfile.mkdtemp(prefix="gpuwatch-demo-")),
        port=port,
        admin_port=admin_port,
        environment=os.environ,
        say=typer.echo,
        console=_console,
    )
    signal.signal(signal.SIGTERM, _leave)
    try:
        status = stage.run(seconds=seconds, screen=screen)
    except StorageError as error:
        raise CommandFailed(str(error)) from None
    raise typer.Exit(status)


def _console(found: "Found") -> int:
    from gpuwatch.tui.app import run  # noqa: PLC0415 - loads the screen, and only with a terminal

    return run(find=lambda: found, read_only=False, actor=actor())


def _leave(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an ordinary way out, on which every child is ended."""
    del frame
    raise SystemExit(128 + number)
