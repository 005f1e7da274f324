"""`gpuwatch status`: one screen of text."""

import json

import typer

from gpuwatch.cli.client import AsJson, DataDirectory, TokenFile, Url, reach
from gpuwatch.cli.errors import CommandFailed


def status(
    *, url: Url = None, token_file: TokenFile = None, data_dir: DataDirectory = None, as_json: AsJson = False
) -> None:
    """Show the service: mode, verdict, cards, lanes and what blocks them, last change, last snapshot.

    Example: gpuwatch status --json
    """
    with reach(url, token_file, data_dir) as admin:
        data = admin.get("/state")
    if as_json:
        typer.echo(json.dumps(data, indent=2))
        return
    import msgspec  # noqa: PLC0415 - keeps --help light

    from gpuwatch.cli.pages import status_lines  # noqa: PLC0415 - the same
    from gpuwatch.storage import codec  # noqa: PLC0415 - the same
    from gpuwatch.storage.state import State  # noqa: PLC0415 - the same

    try:
        state = codec.build(State, data)
    except msgspec.ValidationError as error:
        raise CommandFailed(f"this service's state is not understood ({error}); is it another version?") from None
    typer.echo("\n".join(status_lines(state, now=state.at)))
