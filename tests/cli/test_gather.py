"""The doctor's look at a machine: what it states of this one, and that looking changes nothing."""

import os
import sqlite3
import sys
from pathlib import Path

import pytest

from gpuwatch.cli.gather import gather, place


def test_a_directory_that_does_not_exist_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    error, free_bytes = place(tmp_path / "not" / "yet")
    assert error is None
    assert free_bytes is not None
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    error, _ = place(tmp_path / "data" / "dir")
    assert error == f"{tmp_path / 'data'} is a file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_of_somebody_else_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    error, _ = place(tmp_path)
    assert error == f"{tmp_path} is not writable by this user"


def test_the_facts_are_this_machines(tmp_path: Path) -> None:
    database = tmp_path / "telemetry.db"
    database.write_text("")
    facts = gather(tmp_path, database, {"WEB_CONCURRENCY": "3", "HOME": "/home/ann"})
    assert facts.python == sys.version_info[:3]
    assert facts.sqlite == sqlite3.sqlite_version_info
    assert facts.torch_version is not None
    assert facts.detector_weights is True
    assert facts.environment == {"WEB_CONCURRENCY": "3"}
    assert facts.last_written_at == database.stat().st_mtime
    assert facts.nvml_no_driver or facts.nvml_error or facts.nvml_driver


def test_a_database_that_is_not_there_has_no_time(tmp_path: Path) -> None:
    assert gather(tmp_path, tmp_path / "none.db", {}).last_written_at is None
