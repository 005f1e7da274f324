import sqlite3
from pathlib import Path

import pytest

from gpuwatch.storage.errors import (
    AlreadyServing,
    DatabaseDamaged,
    DatabaseLocked,
    DatabaseMissing,
    DatabaseUnavailable,
    KnobsInvalid,
    explain,
)


def sqlite_error(code: int) -> sqlite3.OperationalError:
    made = sqlite3.OperationalError("as SQLite says it")
    made.sqlite_errorcode = code
    return made


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY, DatabaseLocked),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, DatabaseLocked),
        (sqlite3.SQLITE_LOCKED, DatabaseLocked),
        (sqlite3.SQLITE_CORRUPT, DatabaseDamaged),
        (sqlite3.SQLITE_CORRUPT_INDEX, DatabaseDamaged),
        (sqlite3.SQLITE_NOTADB, DatabaseDamaged),
        (sqlite3.SQLITE_CANTOPEN, DatabaseMissing),
        (sqlite3.SQLITE_FULL, DatabaseUnavailable),
        (sqlite3.SQLITE_IOERR_WRITE, DatabaseUnavailable),
        (sqlite3.SQLITE_READONLY, DatabaseUnavailable),
    ],
)
def test_a_sqlite_error_is_named_by_what_it_means_for_the_file(
    tmp_path: Path, code: int, kind: type[DatabaseUnavailable]
) -> None:
    path = tmp_path / "telemetry.db"
    explained = explain(path, sqlite_error(code))
    assert type(explained) is kind
    assert str(path) in str(explained)


def test_a_file_that_is_there_but_cannot_be_opened_is_not_called_missing(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.db"
    path.touch()
    assert type(explain(path, sqlite_error(sqlite3.SQLITE_CANTOPEN))) is DatabaseUnavailable


def test_an_error_without_a_code_still_says_what_it_said(tmp_path: Path) -> None:
    explained = explain(tmp_path / "x", sqlite3.ProgrammingError("Cannot operate on a closed database."))
    assert "closed database" in str(explained)


def test_who_serves_is_named_where_it_is_known() -> None:
    assert "pid 7" in str(AlreadyServing("/d", 7))
    assert "another process" in str(AlreadyServing("/d", None))


def test_every_bad_knob_is_in_the_message() -> None:
    invalid = KnobsInvalid({"a": "too low", "b": "unknown"})
    assert str(invalid) == "a: too low; b: unknown"
    assert invalid.problems == {"a": "too low", "b": "unknown"}
