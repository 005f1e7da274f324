"""What storage raises."""

import sqlite3
from collections.abc import Mapping
from os import PathLike
from pathlib import Path


class StorageError(Exception):
    """Base of everything that storage raises."""


class BadValue(StorageError, ValueError):
    """A text that is no size, duration or knob value. The message says what would be."""


class KnobsInvalid(StorageError, ValueError):
    """A change that is not allowed. ``problems`` holds every bad key with what is wrong and its range."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{key}: {what}" for key, what in problems.items()))
        self.problems = dict(problems)


class DatabaseUnavailable(StorageError):
    """The database cannot be used now: disk full, no permission, I/O error."""


class DatabaseMissing(DatabaseUnavailable):
    """There is no database at this path."""


class DatabaseLocked(DatabaseUnavailable):
    """Another process holds the database longer than we wait."""


class DatabaseDamaged(DatabaseUnavailable):
    """The file is no gpuwatch database, or no longer whole."""


class SchemaTooNew(StorageError):
    """The database was written by a newer gpuwatch; it is left alone."""


class WriterClosed(StorageError):
    """The row came after the writer had ended, or was still unwritten when its time to end ran out."""


class RowRejected(StorageError):
    """The row can never be written (it does not fit its table); it was counted as dropped."""


class JournalUnwritable(StorageError):
    """A knob change could not be made durable, so it must not be acknowledged."""


class DataDirUnusable(StorageError):
    """The data directory cannot be made or written."""


class AlreadyServing(StorageError):
    """Another living service holds this data directory."""

    def __init__(self, directory: str, pid: int | None) -> None:
        who = f"pid {pid}" if pid else "another process"
        super().__init__(f"a service already runs on {directory} ({who}); stop it or choose another --data-dir")
        self.pid = pid


_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT})


def explain(path: str | PathLike[str], error: sqlite3.Error) -> DatabaseUnavailable:
    """Say what a SQLite error means for the database at ``path``.

    ``SQLITE_ERROR`` (no such table, no such column) means a database that is not ours: our statements are fixed.
    """
    code = getattr(error, "sqlite_errorcode", None)  # absent on errors that the Python module raises itself
    primary = None if code is None else code & 0xFF  # https://www.sqlite.org/rescode.html: extended codes above
    if primary in _LOCKED:
        return DatabaseLocked(f"{path} is locked by another process; try again")
    if primary in _DAMAGED:
        return DatabaseDamaged(f"{path} is damaged or no gpuwatch database ({error}); move it away to start anew")
    if primary == sqlite3.SQLITE_CANTOPEN and not Path(path).exists():
        return DatabaseMissing(f"there is no database at {path}; has a service run with this data directory?")
    return DatabaseUnavailable(f"{path} cannot be used: {error}")
