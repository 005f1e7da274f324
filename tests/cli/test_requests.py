"""`gpuwatch requests`, with no service running."""

import json
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from cli_fakes import RECORD
from typer.testing import CliRunner, Result

from gpuwatch.cli.main import app
from gpuwatch.storage.datadir import DataDir
from gpuwatch.storage.records import Outcome
from gpuwatch.storage.writer import Writer

RUNNER = CliRunner()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    now = time.time()
    with closing(Writer(DataDir(tmp_path).database)) as writer:
        writer.start()
        writer.put(replace(RECORD, seq=1, request_id="old", at=now - 7200))
        writer.put(replace(RECORD, seq=2, request_id="timeout", at=now - 60))
        writer.put(replace(RECORD, seq=3, request_id="fine", at=now - 30, outcome=Outcome.OK, status=200))
        writer.put(replace(RECORD, seq=4, request_id="text", at=now - 10, lane="text"))
    return tmp_path


def requests(data_dir: Path, *arguments: str) -> Result:
    return RUNNER.invoke(app, ["requests", "list", *arguments, "--data-dir", str(data_dir)])


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        ((), ["text", "fine", "timeout", "old"]),
        (("--since", "1h"), ["text", "fine", "timeout"]),
        (("--since", "45"), ["text", "fine"]),
        (("--lane", "image"), ["fine", "timeout", "old"]),
        (("--outcome", "queue-timeout", "--lane", "image"), ["timeout", "old"]),
        (("--limit", "2"), ["text", "fine"]),
    ],
)
def test_only_what_was_asked_for_is_listed_newest_first(
    data_dir: Path, arguments: tuple[str, ...], ids: list[str]
) -> None:
    listed = json.loads(requests(data_dir, *arguments, "--json").stdout)["requests"]
    assert [r["request_id"] for r in listed] == ids
    assert [line.split()[2] for line in requests(data_dir, *arguments).stdout.splitlines()[1:]] == ids


@pytest.mark.parametrize("arguments", [("--outcome", "fine"), ("--since", "yesterday"), ("--limit", "0")])
def test_what_cannot_be_meant_is_wrong_usage(data_dir: Path, arguments: tuple[str, ...]) -> None:
    result = requests(data_dir, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")


def test_an_outcome_that_does_not_exist_is_answered_with_those_that_do(data_dir: Path) -> None:
    assert "out-of-memory" in requests(data_dir, "--outcome", "oom").stderr


def test_nothing_found_is_no_failure(data_dir: Path) -> None:
    result = requests(data_dir, "--lane", "long")
    assert (result.exit_code, result.stdout) == (0, "no requests\n")
