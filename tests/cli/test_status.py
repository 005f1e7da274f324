"""`gpuwatch status`."""

import json
from pathlib import Path

from cli_fakes import STATE, FakeAdmin, serving
from typer.testing import CliRunner

from gpuwatch.cli.main import app
from gpuwatch.storage import codec

RUNNER = CliRunner(env={"GPUWATCH_ADMIN_URL": None, "GPUWATCH_DATA_DIR": None, "STATE_DIRECTORY": None})


def test_the_screen_says_what_waits_and_for_what(tmp_path: Path) -> None:
    with serving(FakeAdmin(), tmp_path):
        result = RUNNER.invoke(app, ["status", "--data-dir", str(tmp_path)])
    assert result.exit_code == 0
    assert "image waits for bytes, not slots" in result.stdout


def test_json_is_the_services_own_object_unknown_keys_included(tmp_path: Path) -> None:
    state = codec.plain(STATE) | {"of_a_later_version": 1}
    with serving(FakeAdmin(state=state), tmp_path):
        result = RUNNER.invoke(app, ["status", "--json", "--data-dir", str(tmp_path)])
    assert json.loads(result.stdout) == json.loads(codec.dumps(state))


def test_a_state_of_a_later_version_is_still_shown(tmp_path: Path) -> None:
    with serving(FakeAdmin(state=codec.plain(STATE) | {"of_a_later_version": 1}), tmp_path):
        result = RUNNER.invoke(app, ["status", "--data-dir", str(tmp_path)])
    assert result.exit_code == 0


def test_a_state_that_is_not_understood_fails_in_one_line(tmp_path: Path) -> None:
    with serving(FakeAdmin(state={"gpus": 3}), tmp_path):
        result = RUNNER.invoke(app, ["status", "--data-dir", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1


def test_no_service_is_status_3(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["status", "--data-dir", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no service runs" in result.stderr
