"""The console in a script: it says that it needs a terminal, and ends."""

from typer.testing import CliRunner

from gpuwatch.cli.main import app


def test_without_a_terminal_the_console_is_wrong_usage() -> None:
    result = CliRunner().invoke(app, ["tui"])
    assert result.exit_code == 2
    assert "needs a terminal" in result.stderr
