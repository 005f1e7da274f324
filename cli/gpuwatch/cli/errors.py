"""How a command fails: one plain line on stderr and an exit status (0 done, 1 failed, 2 wrong usage, 3 not reachable).

`Commands` is the one place that turns a failure into both, so that a command body only raises.
"""

from typing import Any

import typer
from typer.core import TyperGroup

FAILED = 1
WRONG_USAGE = 2
NOT_REACHABLE = 3


class CommandFailed(Exception):
    """The command could not do what was asked; the message is for the person who typed it."""

    status = FAILED


class WrongUsage(CommandFailed):
    """What was typed cannot be meant."""

    status = WRONG_USAGE


class NotReachable(CommandFailed):
    """No service answers where it was looked for."""

    status = NOT_REACHABLE


class Commands(TyperGroup):
    """The root of the commands: prints what a command raised and leaves with its status."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # noqa: ANN401 - as typer has it
        """Run the command. Raises `typer.Exit` with the failure's status."""
        try:
            return super().invoke(ctx)
        except CommandFailed as failed:
            typer.echo(f"gpuwatch: {failed}", err=True)
            raise typer.Exit(failed.status) from None
