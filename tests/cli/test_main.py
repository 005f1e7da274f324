"""The command line as a whole."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gpuwatch.cli.main import app

RUNNER = CliRunner()
COMMANDS = [
    ["demo"], ["serve"], ["tui"], ["status"], ["doctor"], ["knobs"], ["knobs", "get"], ["knobs", "set"],
    ["knobs", "history"], ["snapshots"], ["snapshots", "list"], ["snapshots", "show"], ["requests"],
    ["requests", "list"],
]  # fmt: skip
GROUPS = [["knobs"], ["snapshots"], ["requests"]]
HEAVY = ["torch", "fastapi", "uvicorn", "textual", "httpx", "msgspec", "sqlite_utils", "pydantic", "PIL", "numpy"]
ASK = "import json, sys; from gpuwatch.cli.main import app; print(json.dumps(sorted(sys.modules)))"


def test_starting_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, check=True, text=True)  # noqa: S603 - ours
    loaded = set(json.loads(done.stdout))
    assert "gpuwatch.cli.knobs" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_help_lists_exactly_what_works() -> None:
    listed = RUNNER.invoke(app, ["--help"]).stdout.split("Commands:")[1]
    assert re.findall(r"^  (\w+) ", listed, re.MULTILINE) == [name for name, *rest in COMMANDS if not rest]


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in GROUPS], ids=" ".join)
def test_every_command_has_help_with_an_example_of_itself(command: list[str]) -> None:
    result = RUNNER.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert f"Example: gpuwatch {' '.join(command)}" in " ".join(result.stdout.split())


def test_version_is_the_installed_distributions() -> None:
    result = RUNNER.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout.startswith("gpuwatch 0.")


@pytest.mark.parametrize("arguments", [["nonsense"], ["status", "--nonsense"], ["snapshots", "show", "first"]])
def test_wrong_usage_is_status_2_and_says_so_on_stderr(arguments: list[str]) -> None:
    result = RUNNER.invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr


def test_the_module_runs_as_the_command_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuwatch.cli", "--version"], capture_output=True, check=True, text=True
    )
    assert done.stdout == RUNNER.invoke(app, ["--version"]).stdout
