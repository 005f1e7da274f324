"""`gpuwatch serve`: what cannot be started says why. A service that runs is the demo's test."""

from pathlib import Path

from typer.testing import CliRunner

from gpuwatch.cli.main import app

RUNNER = CliRunner()


def test_a_setting_that_cannot_be_meant_is_wrong_usage(tmp_path: Path) -> None:
    config = tmp_path / "gpuwatch.toml"
    config.write_text("[sim]\nneighbour_bytes = 'many'\n")
    result = RUNNER.invoke(app, ["serve", "builtin:detector", "--config", str(config)])
    assert result.exit_code == 2
    assert "'many' is not a size" in result.stderr


def test_a_target_that_does_not_exist_fails(tmp_path: Path) -> None:
    arguments = ["serve", "builtin:nonsense", "--gpu", "sim:64MiB", "--port", "0", "--admin-port", "0"]
    result = RUNNER.invoke(app, [*arguments, "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
