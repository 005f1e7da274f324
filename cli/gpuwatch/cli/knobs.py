"""`gpuwatch knobs`: what may be turned at run time, from a shell."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from gpuwatch.cli.client import AsJson, DataDirectory, TokenFile, Url, reach
from gpuwatch.cli.errors import CommandFailed, WrongUsage

app = typer.Typer(help="Show and turn the limits while the service runs.", no_args_is_help=True)


@app.command()
def get(
    *,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Which; default: all.")] = None,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Show knobs: value, where it comes from, unit and range.

    Example: gpuwatch knobs get lanes.image.concurrency
    """
    with reach(url, token_file, data_dir) as admin:
        data = admin.get("/knobs")
    wanted = keys or list(data["knobs"])
    unknown = [key for key in wanted if key not in data["knobs"]]
    if unknown:
        raise WrongUsage(f"there is no knob {', '.join(unknown)}; `gpuwatch knobs get` lists all")
    if as_json:
        typer.echo(json.dumps(_only(data, wanted), indent=2))
        return
    from gpuwatch.cli.text import knob_value, safe, table  # noqa: PLC0415 - keeps --help light

    specs = _specs(data)
    rows = [
        (
            key,
            knob_value(data["knobs"][key], specs[key].unit),
            safe(data["origin"].get(key, "-")),
            specs[key].unit,
            specs[key].range_text,
            safe(specs[key].help),
        )
        for key in wanted
    ]
    typer.echo("\n".join(table(("knob", "value", "origin", "unit", "takes", "what it does"), rows, right=(1,))))


@app.command("set")
def set_(
    *,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Sizes as 512MiB, durations as 30s.")],
    note: Annotated[str | None, typer.Option(help="Why: kept with the change.")] = None,
    url: Url = None,
    token_file: TokenFile = None,
    data_dir: DataDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Turn knobs: all of them or none. Takes effect at once and cancels no work.

    Example: gpuwatch knobs set lanes.image.concurrency=4 budget.margin_bytes=512MiB --note "after the OOM of 03:12"
    """
    texts = _split(settings)
    with reach(url, token_file, data_dir) as admin:
        specs = _specs(admin.get("/knobs"))
        changes = _typed(texts, specs)
        answer = admin.patch("/knobs", {"changes": changes, **({"note": note} if note else {})})
    for warning in answer.get("warnings", ()):
        typer.echo(f"gpuwatch: warning: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
        return
    from gpuwatch.cli.text import knob_value, pairs  # noqa: PLC0415 - keeps --help light

    changed: Mapping[str, Any] = answer["changed"]
    lines = pairs(
        (key, f"{knob_value(before, specs[key].unit)} -> {knob_value(after, specs[key].unit)}")
        for key, (before, after) in changed.items()
    )
    typer.echo("\n".join([f"knobs v{answer['version']}", *lines]))


@app.command()
def history(
    *, url: Url = None, token_file: TokenFile = None, data_dir: DataDirectory = None, as_json: AsJson = False
) -> None:
    """Show what was turned, by whom and when, newest first.

    Example: gpuwatch knobs history
    """
    with reach(url, token_file, data_dir) as admin:
        data = admin.get("/knobs/history")
    if as_json:
        typer.echo(json.dumps(data, indent=2))
        return
    from gpuwatch.cli.text import change_pairs, moment, safe, table  # noqa: PLC0415 - keeps --help light

    rows = [
        (
            f"v{change['version']}",
            moment(change["at"]),
            safe(change["actor"]),
            change_pairs(change["changes"]),
            safe(change.get("note") or ""),
        )
        for change in data["changes"]
    ]
    typer.echo("\n".join(table(("version", "at", "actor", "changes", "note"), rows)) if rows else "nothing was turned")


def _split(settings: list[str]) -> dict[str, str]:
    """Read ``KEY=VALUE`` texts. Raises `WrongUsage` that names every bad one."""
    bad = [text for text in settings if "=" not in text or text.startswith("=")]
    if bad:
        raise WrongUsage(f"{', '.join(bad)}: write KEY=VALUE")
    parts = [text.split("=", 1) for text in settings]
    twice = sorted({key for key, _ in parts if sum(key == other for other, _ in parts) > 1})
    if twice:
        raise WrongUsage(f"{', '.join(twice)} is given twice")
    return {key.strip(): value.strip() for key, value in parts}


def _specs(data: Mapping[str, Any]) -> dict[str, Any]:
    """Rebuild the service's own table: its ranges count, not those that this command was built with."""
    import msgspec  # noqa: PLC0415 - keeps --help light

    from gpuwatch.storage.knobs import KnobSpec  # noqa: PLC0415 - the same

    try:
        return {key: msgspec.convert({**spec, "key": key}, KnobSpec) for key, spec in data["spec"].items()}
    except msgspec.ValidationError as error:
        raise CommandFailed(f"this service's knobs are not understood ({error}); is it another version?") from None


def _typed(texts: Mapping[str, str], specs: Mapping[str, Any]) -> dict[str, object]:
    """Give typed values of what was typed. Raises `WrongUsage` that lists every bad key with its range."""
    from gpuwatch.storage.errors import BadValue  # noqa: PLC0415 - keeps --help light

    problems: list[str] = []
    values: dict[str, object] = {}
    for key, text in texts.items():
        try:
            values[key] = specs[key].read(text)
        except KeyError:
            problems.append(f"  {key}: there is no such knob")
        except BadValue as bad:
            problems.append(f"  {key}: {bad}")
    if problems:
        raise WrongUsage("nothing was changed\n" + "\n".join(problems))
    return values


def _only(data: Mapping[str, Any], keys: list[str]) -> dict[str, Any]:
    parts = {name: {key: data[name][key] for key in keys if key in data[name]} for name in ("knobs", "origin", "spec")}
    return {"version": data["version"], **parts}
