"""`gpuwatch doctor`: is this machine fit to serve, and what to do where it is not."""

import json
import os
from dataclasses import asdict

import typer

from gpuwatch.cli.client import AsJson, DataDirectory
from gpuwatch.cli.errors import FAILED


def doctor(*, data_dir: DataDirectory = None, as_json: AsJson = False) -> None:
    """Check driver, NVML, torch, allocator settings, workers, data directory, SQLite and clock, each with its remedy.

    Exit status 1 when there is a problem.

    Example: gpuwatch doctor
    """
    from gpuwatch.cli.findings import Level, findings, worst  # noqa: PLC0415 - keeps --help light
    from gpuwatch.cli.gather import gather  # noqa: PLC0415 - the same
    from gpuwatch.storage.datadir import DataDir  # noqa: PLC0415 - the same

    home = DataDir.default(os.environ) if data_dir is None else DataDir(data_dir)
    found = findings(gather(home.path, home.database))
    if as_json:
        typer.echo(json.dumps({"worst": worst(found), "findings": [asdict(f) for f in found]}, indent=2))
    else:
        from gpuwatch.cli.text import safe  # noqa: PLC0415 - keeps --help light

        for finding in found:
            typer.echo(f"{finding.level.value:8} {finding.check:10} {safe(finding.text)}")
            if finding.remedy:
                typer.echo(f"{'':8} {'':10} -> {finding.remedy}")
    if worst(found) is Level.PROBLEM:
        raise typer.Exit(FAILED)
