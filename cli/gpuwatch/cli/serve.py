"""`gpuwatch serve`: runs models until SIGTERM or Ctrl-C."""

from pathlib import Path
from typing import Annotated

import typer

from gpuwatch.cli.errors import CommandFailed, WrongUsage


def serve(
    *,
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TARGET...", help="package.module:attribute, or builtin:detector; more in the file."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; default: gpuwatch.toml here, if any.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="SPEC", help="auto, cuda:0, sim:SIZE (a simulated card). Default: auto.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where inference listens. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Inference port; 0 takes a free one. Default: 8000.")] = None,
    admin_host: Annotated[str | None, typer.Option(help="Where the admin listens. Default: 127.0.0.1.")] = None,
    admin_port: Annotated[int | None, typer.Option(help="Admin port; 0 takes a free one. Default: 8001.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where database, tokens and service.json live.")] = None,
) -> None:
    """Run models behind the guard, until SIGTERM or Ctrl-C.

    Example: gpuwatch serve builtin:detector --gpu sim:768MiB
    """
    from gpuwatch.service.settings import Settings, SettingsError  # noqa: PLC0415 - keeps --help light

    overrides = {
        "targets": targets or [],
        "gpu": gpu,
        "host": host,
        "port": port,
        "admin_host": admin_host,
        "admin_port": admin_port,
        "data_dir": data_dir,
    }
    try:
        settings = Settings.load(config, overrides)
    except SettingsError as bad:
        raise WrongUsage(str(bad)) from None
    try:
        from gpuwatch.service.serving import serve as run  # noqa: PLC0415 - loads the web framework
    except ImportError as missing:
        raise CommandFailed(f"{missing}; to serve models: pip install 'gpuwatch-dashboard[torch]'") from None
    raise typer.Exit(run(settings))
