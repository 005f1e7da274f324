"""The database's history, and the one connection that may write it.

Rules: a migration is history, so its columns are written out and never edited once released (a test holds that the
newest state equals the records); a file with a migration we do not know is left untouched; sqlite-utils is imported
only here, because readers need no migrations and the console must start fast.

WAL with ``synchronous=NORMAL`` loses no committed row when the process dies, and at most the last commits when the
machine does; the file is never torn (https://www.sqlite.org/wal.html). One connection both writes and checkpoints:
SQLite up to 3.51.2 can reset a WAL wrongly when one connection writes while another checkpoints.
"""

import sqlite3
from dataclasses import dataclass
from os import PathLike
from typing import Final

from sqlite_utils import Database, Migrations

from gpuwatch.storage.errors import SchemaTooNew, explain

BUSY_TIMEOUT_MS: Final = 5000
JOURNAL_SIZE_LIMIT_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LastIds:
    """The highest ids in the database, 0 where there is none: whoever allots ids goes on from the next one."""

    request: int = 0
    snapshot: int = 0
    event: int = 0
    run: int = 0
    knobs_version: int = 0


def open_database(path: str | PathLike[str], *, busy_timeout_ms: int = BUSY_TIMEOUT_MS) -> sqlite3.Connection:
    """Open the write connection, making or migrating the file.

    Transactions are explicit (``BEGIN IMMEDIATE``). The connection may be handed to one other thread. Raises
    `SchemaTooNew`, or a `DatabaseUnavailable` that says what is wrong.
    """
    try:
        timeout_s = busy_timeout_ms / 1000
        connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise explain(path, error) from error
    try:
        _prepare(connection, path)
    except sqlite3.Error as error:
        connection.close()
        raise explain(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def last_ids(connection: sqlite3.Connection) -> LastIds:
    """Read the highest ids. Raises `sqlite3.Error`."""
    row = connection.execute(
        "SELECT (SELECT max(seq) FROM requests), (SELECT max(id) FROM snapshots), (SELECT max(id) FROM events),"
        " (SELECT max(id) FROM runs), (SELECT max(version) FROM knob_changes)"
    ).fetchone()
    request, snapshot, event, run, knobs_version = (value or 0 for value in row)
    return LastIds(request=request, snapshot=snapshot, event=event, run=run, knobs_version=knobs_version)


def _prepare(connection: sqlite3.Connection, path: str | PathLike[str]) -> None:
    database = Database(connection, execute_plugins=False, recursive_triggers=False)
    applied = {migration.name for migration in _MIGRATIONS.applied(database)}  # reads only: a newer file stays as it is
    unknown = sorted(applied - _KNOWN)
    if unknown:
        raise SchemaTooNew(f"{path} was written by a newer gpuwatch (migration {', '.join(unknown)}); upgrade gpuwatch")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_SIZE_LIMIT_BYTES}")
    if applied != _KNOWN:
        _MIGRATIONS.apply(database)


_MIGRATIONS: Final = Migrations("gpuwatch")


@_MIGRATIONS()
def m001_first_tables(db: Database) -> None:
    """Make the tables of CONTRACT.md section 5, without rollups."""
    for statement in _FIRST_TABLES.split(";"):
        db.conn.execute(statement.strip())


_KNOWN: Final = frozenset({m001_first_tables.__name__})

_FIRST_TABLES: Final = """
CREATE TABLE requests (
    seq INTEGER PRIMARY KEY,
    request_id TEXT NOT NULL,
    at REAL NOT NULL,
    run_id INTEGER NOT NULL,
    lane TEXT NOT NULL,
    model TEXT NOT NULL,
    model_version TEXT,
    gpu INTEGER,
    outcome TEXT NOT NULL,
    status INTEGER NOT NULL,
    queue_ms REAL,
    batch_ms REAL,
    run_ms REAL,
    total_ms REAL NOT NULL,
    blocked_by TEXT,
    tag_bytes INTEGER,
    price_bytes INTEGER,
    price_source TEXT,
    peak_bytes INTEGER,
    peak_source TEXT,
    batch_id INTEGER,
    batch_size INTEGER,
    dims TEXT,
    retried INTEGER NOT NULL,
    degraded INTEGER NOT NULL,
    would TEXT,
    traceparent TEXT,
    error TEXT
) STRICT;
CREATE INDEX requests_at ON requests (at);
CREATE INDEX requests_request_id ON requests (request_id);
CREATE TABLE samples (
    at REAL NOT NULL,
    run_id INTEGER NOT NULL,
    gpu INTEGER NOT NULL,
    total_bytes INTEGER NOT NULL,
    used_bytes INTEGER NOT NULL,
    reserved_bytes INTEGER,
    allocated_bytes INTEGER,
    pressure_bytes INTEGER NOT NULL,
    promised_bytes INTEGER NOT NULL,
    foreign_bytes INTEGER NOT NULL,
    fragmentation_ratio REAL,
    alloc_retries INTEGER,
    util_pct REAL,
    temperature_c REAL,
    power_w REAL,
    in_flight INTEGER NOT NULL,
    waiting INTEGER NOT NULL,
    loop_lag_ms REAL,
    pressure TEXT NOT NULL,
    breaker TEXT NOT NULL
) STRICT;
CREATE INDEX samples_gpu_at ON samples (gpu, at);
CREATE TABLE snapshots (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    run_id INTEGER NOT NULL,
    gpu INTEGER NOT NULL,
    "trigger" TEXT NOT NULL,
    cause TEXT NOT NULL,
    headline TEXT NOT NULL,
    confidence REAL,
    request_id TEXT,
    requested_bytes INTEGER,
    used_bytes INTEGER,
    total_bytes INTEGER,
    reserved_bytes INTEGER,
    allocated_bytes INTEGER,
    foreign_bytes INTEGER,
    foreign_change_bytes INTEGER,
    knobs_version INTEGER NOT NULL,
    payload TEXT NOT NULL,
    segments BLOB
) STRICT;
CREATE INDEX snapshots_at ON snapshots (at);
CREATE INDEX snapshots_trigger ON snapshots ("trigger");
CREATE TABLE knob_changes (
    version INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    actor TEXT NOT NULL,
    note TEXT,
    expires_at REAL,
    changes TEXT NOT NULL
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    run_id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    severity TEXT NOT NULL,
    message TEXT NOT NULL,
    data TEXT NOT NULL
) STRICT;
CREATE INDEX events_at ON events (at);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    started_at REAL NOT NULL,
    ended_at REAL,
    clean INTEGER,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    host TEXT NOT NULL,
    gpus TEXT NOT NULL,
    settings TEXT NOT NULL
) STRICT
"""
