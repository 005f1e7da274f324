"""The `gpuwatch` command.

Rules: starting is light. Nothing here, or in what it imports, loads torch, a web framework, the screen or an HTTP
client: each command imports what it needs when it runs.
"""

from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from gpuwatch.cli import console, demo, doctor, knobs, requests, serve, snapshots, status
from gpuwatch.cli.errors import Commands

DISTRIBUTION = "gpuwatch-dashboard"

app = typer.Typer(
    name="gpuwatch",
    cls=Commands,
    help="Decides, before a request runs, whether its VRAM fits; shows the operator why requests wait.\n\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage, 3 service not reachable.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(short_help="The whole machine with traffic, on a simulated card where there is no CUDA.")(demo.demo)
app.command(short_help="Run models behind the guard.")(serve.serve)
app.command("tui")(console.tui)
app.command(short_help="Mode, verdict, cards, lanes and what blocks them.")(status.status)
app.add_typer(knobs.app, name="knobs")
app.add_typer(snapshots.app, name="snapshots")
app.add_typer(requests.app, name="requests")
app.command(short_help="Check this machine; each finding with its remedy.")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpuwatch {installed_version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def main(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""
    del version  # its callback has done it


def run() -> None:
    """Run the command line: the console script's entry."""
    app()
