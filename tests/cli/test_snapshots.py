"""`gpuwatch snapshots`, with no service running."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cli_fakes import SNAPSHOT
from typer.testing import CliRunner, Result

from gpuwatch.cli.main import app
from gpuwatch.storage import codec
from gpuwatch.storage.datadir import DataDir
from gpuwatch.storage.writer import Writer

RUNNER = CliRunner()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    with closing(Writer(DataDir(tmp_path).database)) as writer:
        writer.start()
        for number in (1, 2, 3):
            writer.put(replace(SNAPSHOT, id=number, headline=f"headline {number}"))
    return tmp_path


def snapshots(data_dir: Path, *arguments: str) -> Result:
    return RUNNER.invoke(app, ["snapshots", *arguments, "--data-dir", str(data_dir)])


def test_the_newest_come_first_up_to_the_limit(data_dir: Path) -> None:
    lines = snapshots(data_dir, "list", "--limit", "2").stdout.splitlines()
    assert ["headline 3" in lines[1], "headline 2" in lines[2], len(lines)] == [True, True, 3]


def test_list_json_holds_the_heads(data_dir: Path) -> None:
    data = json.loads(snapshots(data_dir, "list", "--json").stdout)
    assert [s["id"] for s in data["snapshots"]] == [3, 2, 1]


def test_show_gives_the_page(data_dir: Path) -> None:
    result = snapshots(data_dir, "show", "2")
    assert result.exit_code == 0
    assert "headline 2" in result.stdout


def test_show_json_is_the_whole_snapshot(data_dir: Path) -> None:
    data = json.loads(snapshots(data_dir, "show", "3", "--json").stdout)
    assert data == json.loads(codec.dumps(replace(SNAPSHOT, headline="headline 3")))


def test_a_snapshot_that_is_not_there_fails(data_dir: Path) -> None:
    result = snapshots(data_dir, "show", "9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "there is no snapshot 9" in result.stderr


def test_without_snapshots_it_says_so_and_json_is_empty(tmp_path: Path) -> None:
    with closing(Writer(DataDir(tmp_path).database)) as writer:
        writer.start()
    assert snapshots(tmp_path, "list").stdout == "no snapshots\n"
    assert json.loads(snapshots(tmp_path, "list", "--json").stdout) == {"snapshots": []}


def test_without_a_database_it_fails_in_one_line(tmp_path: Path) -> None:
    for arguments in (("list",), ("show", "1")):
        result = snapshots(tmp_path, *arguments)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
