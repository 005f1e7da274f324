"""A write connection whose statements fail, wait or are counted as a test wants it."""

import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, cast

from gpuwatch.storage.schema import open_database


def error(code: int) -> sqlite3.OperationalError:
    made = sqlite3.OperationalError(sqlite3_name(code))
    made.sqlite_errorcode = code
    return made


def sqlite3_name(code: int) -> str:
    return {sqlite3.SQLITE_FULL: "database or disk is full", sqlite3.SQLITE_BUSY: "database is locked"}[code]


class Faults:
    """Opens connections and sees each of their statements.

    ``before`` runs on the writer's thread ahead of a statement and may raise or wait. ``failed`` is set once a
    statement has raised, ``committed`` once a batch is written.
    """

    def __init__(self, before: Callable[[str], None] = lambda _sql: None) -> None:
        self.before = before
        self.failed = threading.Event()
        self.committed = threading.Event()
        self.commits = 0
        self.opened = 0

    def __call__(self, path: str | PathLike[str]) -> sqlite3.Connection:
        self.opened += 1
        return cast("sqlite3.Connection", _Connection(open_database(path), self))


class _Connection:
    def __init__(self, real: sqlite3.Connection, faults: Faults) -> None:
        self._real = real
        self._faults = faults

    def execute(self, sql: str, given: Iterable[object] | Mapping[str, object] = ()) -> sqlite3.Cursor:
        return self._seen(sql, lambda: self._real.execute(sql, cast("Any", given)))

    def executemany(self, sql: str, given: Iterable[Mapping[str, object]]) -> sqlite3.Cursor:
        return self._seen(sql, lambda: self._real.executemany(sql, given))

    def _seen(self, sql: str, call: Callable[[], sqlite3.Cursor]) -> sqlite3.Cursor:
        try:
            self._faults.before(sql)
            cursor = call()
        except sqlite3.Error:
            self._faults.failed.set()
            raise
        if sql == "COMMIT":
            self._faults.commits += 1
            self._faults.committed.set()
        return cursor

    @property
    def in_transaction(self) -> bool:
        return self._real.in_transaction

    def close(self) -> None:
        self._real.close()
