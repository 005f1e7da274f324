import sqlite3
import typing
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from storage_strategies import event, request, snapshot

from gpuwatch.storage import batch
from gpuwatch.storage.errors import DatabaseDamaged, DatabaseUnavailable, SchemaTooNew
from gpuwatch.storage.records import KnobChange, Run
from gpuwatch.storage.schema import JOURNAL_SIZE_LIMIT_BYTES, LastIds, last_ids, open_database
from gpuwatch.storage.tables import TABLES, Table

EACH_TABLE = pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
TYPES = {int: "INTEGER", bool: "INTEGER", float: "REAL", bytes: "BLOB"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "telemetry.db"


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_database(path)) as opened:
        yield opened


@EACH_TABLE
def test_a_tables_columns_are_its_records_fields_with_their_types(connection: sqlite3.Connection, table: Table) -> None:
    columns = connection.execute(f"PRAGMA table_info({table.name})").fetchall()
    assert tuple(name for _, name, *_ in columns) == table.columns
    hints = typing.get_type_hints(table.kind)
    for _, name, kind, not_null, _, key in columns:
        parts = typing.get_args(hints[name]) if type(None) in typing.get_args(hints[name]) else (hints[name],)
        optional = type(None) in parts
        held = next(part for part in parts if part is not type(None))
        assert kind == TYPES.get(held, "TEXT"), name
        assert bool(not_null or key) is not optional, name
        assert bool(key) is (name == table.key), name


@EACH_TABLE
def test_every_table_is_strict(connection: sqlite3.Connection, table: Table) -> None:
    (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table.name,)).fetchone()
    assert sql.endswith("STRICT")


def test_what_is_searched_has_an_index(connection: sqlite3.Connection) -> None:
    found = {
        (table, tuple(column for _, _, column in connection.execute(f"PRAGMA index_info({index})")))
        for table, index in connection.execute(
            "SELECT tbl_name, name FROM sqlite_schema WHERE type = 'index'"
        ).fetchall()
    }
    assert found >= {
        ("requests", ("at",)),
        ("requests", ("request_id",)),
        ("samples", ("gpu", "at")),
        ("snapshots", ("at",)),
        ("snapshots", ("trigger",)),
        ("events", ("at",)),
    }


def test_the_file_is_in_wal_mode_and_its_log_is_bounded(connection: sqlite3.Connection) -> None:
    settings = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in
                ("journal_mode", "synchronous", "busy_timeout", "journal_size_limit")}  # fmt: skip
    assert settings == {
        "journal_mode": "wal",
        "synchronous": 1,
        "busy_timeout": 5000,
        "journal_size_limit": JOURNAL_SIZE_LIMIT_BYTES,
    }


def test_a_new_database_has_no_ids(connection: sqlite3.Connection) -> None:
    assert last_ids(connection) == LastIds(request=0, snapshot=0, event=0, run=0, knobs_version=0)


def test_opening_again_keeps_the_rows_and_tells_the_highest_ids(path: Path) -> None:
    with closing(open_database(path)) as connection:
        batch.write(
            connection,
            [
                request(7),
                request(3),
                snapshot(4),
                event(9),
                Run(id=2, started_at=1.0, pid=1, version="v", host="h"),
                KnobChange(version=5, at=1.0, actor="a", changes={}),
            ],
        )
    with closing(open_database(path)) as connection:
        assert last_ids(connection) == LastIds(request=7, snapshot=4, event=9, run=2, knobs_version=5)


def test_opening_needs_no_lock_once_the_tables_are_there(path: Path, connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    with closing(open_database(path, busy_timeout_ms=0)) as second:
        assert last_ids(second) == LastIds()


def test_a_database_of_a_newer_gpuwatch_is_left_as_it_is(path: Path, connection: sqlite3.Connection) -> None:
    connection.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('gpuwatch', 'm999_later', 'then')"
    )
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.read_bytes()
    with pytest.raises(SchemaTooNew, match=r"m999_later.*upgrade gpuwatch"):
        open_database(path)
    assert path.read_bytes() == before


def test_another_tools_tables_and_migrations_in_the_same_file_do_no_harm(path: Path) -> None:
    with closing(open_database(path)) as connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('other', 'm9', 'then')"
        )
        connection.execute("CREATE TABLE notes (text TEXT)")
    open_database(path).close()


def test_what_is_no_database_is_named_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"this is no database, but long enough to be taken for one" * 20)
    before = path.read_bytes()
    with pytest.raises(DatabaseDamaged, match=r"telemetry\.db"):
        open_database(path)
    assert path.read_bytes() == before


def test_a_place_that_cannot_hold_a_database_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone" / "telemetry.db"):
        with pytest.raises(DatabaseUnavailable, match=str(path)):
            open_database(path)
