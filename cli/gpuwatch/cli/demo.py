"""`gpuwatch demo`: the whole machine with real photographs, a real network and a card that gets full.

Rules: the service and the traffic are children, so that the console stays responsive and a killed demo leaves nothing
behind; what the client saw is held against what the database holds, and a difference is a failure. A simulated card and
a scripted neighbour are called so wherever they show.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gpuwatch.cli.client import DataDirectory
from gpuwatch.cli.errors import CommandFailed, WrongUsage


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
    )
    try:
        status = stage.run(seconds=seconds, screen=screen)
    except StorageError as error:
        raise CommandFailed(str(error)) from None
    raise typer.Exit(status)
