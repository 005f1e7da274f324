"""The one thread that writes the database.

Rules: `put` never waits for the disk and never raises for it; one thread and one connection write, checkpoint and
close; a batch is one transaction. What is lost is counted, so that at every moment

    written + dropped + queued = offered                         (rows given to `put` and `put_soon`)

Two lanes: *kept* rows (snapshots, knob changes, events, runs, and whatever came by `put_soon`) are unbounded and go
first; *loose* rows (samples, requests) are bounded, and a row that finds the lane full is dropped. While a database is
locked, full or broken its rows stay at the front of their lanes and are tried again with growing pauses.
"""

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final

from gpuwatch.storage import batch
from gpuwatch.storage.errors import RowRejected, WriterClosed, explain
from gpuwatch.storage.records import OomSnapshot
from gpuwatch.storage.schema import LastIds, last_ids, open_database
from gpuwatch.storage.state import TelemetryState
from gpuwatch.storage.tables import TABLES, Row

BATCH_ROWS: Final = 200
LINGER_S: Final = 0.1
QUEUE_ROWS: Final = 20_000
_BUSY_TIMEOUT_MS: Final = 250  # short: the writer has pauses of its own, and closing must not wait for SQLite's
_PAUSES_S: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
_JOIN_GRACE_S: Final = 1.0

Connect = Callable[[str | PathLike[str]], sqlite3.Connection]
"""Opens the write connection; tests hand in one that fails."""


@dataclass(frozen=True, slots=True)
class _Item:
    record: Row
    loose: bool
    done: Future[None] | None = None


class Writer:
    """Writes records to the database at ``path`` on a thread of its own.

    ``queue_rows`` bounds the loose lane; a batch is written after ``batch_rows`` rows or ``linger_s`` seconds.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        connect: Connect = open_database,
        clock: Callable[[], float] = time.monotonic,
        queue_rows: int = QUEUE_ROWS,
        batch_rows: int = BATCH_ROWS,
        linger_s: float = LINGER_S,
    ) -> None:
        self._path = Path(path)
        self._connect = connect
        self._clock = clock
        self._queue_rows = queue_rows
        self._batch_rows = batch_rows
        self._linger_s = linger_s
        self._changed = threading.Condition()
        self._kept: deque[_Item] = deque()
        self._loose: deque[_Item] = deque()
        self._batch: tuple[_Item, ...] = ()  # taken from the lanes, its fate not known yet
        self._batch_loose = 0
        self._urgent = 0
        self._written = 0
        self._dropped = 0
        self._left = 0
        self._trouble: str | None = None  # why the database is not being written now
        self._rejected: str | None = None  # the last row that could never be written
        self._sizes = (0, 0)
        self._keep_snapshots: int | None = None
        self._prune_due = False
        self._close_by: float | None = None
        self._ended = False
        self._connection: sqlite3.Connection | None = None
        self._thread = threading.Thread(target=self._work, name="gpuwatch-writer", daemon=True)
        self._started: Future[LastIds] = Future()

    def start(self) -> LastIds:
        """Open the database and begin to write; give the ids to go on from.

        Blocks while the database is made or migrated. Raises `SchemaTooNew` or a `DatabaseUnavailable`; the writer has
        ended then.
        """
        self._thread.start()
        return self._started.result()

    def put(self, record: Row) -> None:
        """Hand a row over. Never waits for the disk and never raises for it; what is lost is counted."""
        loose = not TABLES[type(record)].kept
        with self._changed:
            if self._ends() or (loose and len(self._loose) + self._batch_loose >= self._queue_rows):
                self._dropped += 1
                return
            (self._loose if loose else self._kept).append(_Item(record, loose))
            self._changed.notify()

    def put_soon(self, record: Row) -> Future[None]:
        """Hand a row over that is written at once and never dropped for room; the future is done when it is committed.

        Whoever gives up waiting does not take the row back. The future raises `RowRejected` or `WriterClosed` where the
        row was lost.
        """
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        with self._changed:
            if not self._ends():
                self._kept.append(_Item(record, loose=False, done=done))
                self._urgent += 1
                self._changed.notify()
                return done
            self._dropped += 1
        done.set_exception(WriterClosed("the writer has ended"))
        return done

    def keep_snapshots(self, count: int) -> None:
        """Keep at most ``count`` snapshots of each trigger from now on; the oldest go."""
        with self._changed:
            self._keep_snapshots = count
            self._prune_due = True
            self._changed.notify()

    def statistics(self) -> TelemetryState:
        """Tell what became of the rows, without touching the disk; sizes are those after the last batch.

        ``last_error`` is why the database cannot be written now, else the last row that could never be written.
        """
        with self._changed:
            return TelemetryState(
                queued=self._waiting() + len(self._batch),
                written=self._written,
                dropped=self._dropped,
                db_bytes=self._sizes[0],
                wal_bytes=self._sizes[1],
                last_error=self._trouble or self._rejected,
            )

    def close(self, timeout_s: float = 5.0) -> bool:
        """Write what is queued, fold the WAL into the file and close; rows left after ``timeout_s`` are dropped.

        Gives whether nothing was left. Safe to call again, and when `start` failed or was never called.
        """
        with self._changed:
            if self._close_by is None:
                self._close_by = self._clock() + timeout_s
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s + _JOIN_GRACE_S)
        self._give_up()
        return self._left == 0

    def _ends(self) -> bool:
        return self._ended or self._close_by is not None

    def _waiting(self) -> int:
        return len(self._kept) + len(self._loose)

    # From here on, the writer's own thread.

    def _work(self) -> None:
        try:
            self._connection = self._open()
            found = last_ids(self._connection)
        except Exception as error:  # noqa: BLE001 - whatever it is, `start` waits for it and raises it
            self._end()
            self._started.set_exception(self._explained(error))
            return
        self._measure()
        self._started.set_result(found)
        failures = 0
        while self._next_batch():
            trouble = self._write_batch()
            failures = failures + 1 if trouble else 0
            if trouble and not self._pause(trouble, _PAUSES_S[min(failures, len(_PAUSES_S)) - 1]):
                break
        self._end()

    def _open(self) -> sqlite3.Connection:
        connection = self._connect(self._path)
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        return connection

    def _next_batch(self) -> bool:
        """Wait for something to do and take it; ``False`` when closing and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting() > 0 or self._prune_due or self._ends())
            if self._waiting():
                self._changed.wait_for(self._due, self._linger_s)
            kept = [self._kept.popleft() for _ in range(min(len(self._kept), self._batch_rows))]
            loose = [self._loose.popleft() for _ in range(min(len(self._loose), self._batch_rows - len(kept)))]
            self._batch = (*kept, *loose)
            self._batch_loose = len(loose)
            return bool(self._batch) or self._prune_due

    def _due(self) -> bool:
        return self._urgent > 0 or self._ends() or self._waiting() >= self._batch_rows

    def _write_batch(self) -> str | None:
        """Write the batch taken; give what went wrong, with its rows back in their lanes."""
        items = self._batch
        prune = self._prune_due or any(isinstance(item.record, OomSnapshot) for item in items)
        keep = self._keep_snapshots if prune else None
        try:
            if self._connection is not None and not self._path.exists():
                self._disconnect()  # deleted under us: rows written now would go nowhere
            if self._connection is None:
                self._connection = self._open()
            rejected = batch.write(self._connection, [item.record for item in items], keep_snapshots=keep)
        except Exception as error:  # noqa: BLE001 - whatever it is, the thread lives on and the rows are tried again
            explained = self._explained(error)
            if not _is_lock(error):
                self._disconnect()  # a connection may be left broken by anything but a lock
            self._put_back(items)
            return str(explained)
        self._measure()
        self._settle(items, rejected, keep)
        return None

    def _settle(self, items: Sequence[_Item], rejected: Mapping[int, Exception], keep: int | None) -> None:
        with self._changed:
            if self._ended:
                return  # `close` ran out of time and has counted these already
            self._batch, self._batch_loose = (), 0
            self._written += len(items) - len(rejected)
            self._dropped += len(rejected)
            self._urgent -= sum(item.done is not None for item in items)
            self._trouble = None
            if keep == self._keep_snapshots:
                self._prune_due = False
            for place, misfit in rejected.items():
                self._rejected = f"a row of {TABLES[type(items[place].record)].name} cannot be written: {misfit}"
        for place, item in enumerate(items):
            if item.done is None:
                continue
            if place in rejected:
                item.done.set_exception(RowRejected(str(rejected[place])))
            else:
                item.done.set_result(None)

    def _put_back(self, items: Sequence[_Item]) -> None:
        with self._changed:
            if self._ended:
                return
            self._batch, self._batch_loose = (), 0
            for item in reversed(items):
                (self._loose if item.loose else self._kept).appendleft(item)

    def _pause(self, trouble: str, pause_s: float) -> bool:
        """Wait before the next try; ``False`` when the time to close has run out."""
        with self._changed:
            self._trouble = trouble
            if self._close_by is None:
                self._changed.wait_for(self._ends, pause_s)
                return True
            left_s = self._close_by - self._clock()
            self._changed.wait_for(lambda: self._ended, max(0.0, min(pause_s, left_s)))
            return self._clock() < self._close_by

    def _explained(self, error: Exception) -> Exception:
        return explain(self._path, error) if isinstance(error, sqlite3.Error) else error

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _measure(self) -> None:
        sizes = (_size(self._path), _size(self._path.with_name(self._path.name + "-wal")))
        with self._changed:
            self._sizes = sizes

    def _end(self) -> None:
        self._give_up()
        if self._connection is not None:
            try:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:  # the rows are safe in the WAL; the next start folds it in
                with self._changed:
                    self._trouble = str(self._explained(error))
            self._disconnect()
        self._measure()

    def _give_up(self) -> None:
        """End, and count what is still queued as dropped."""
        with self._changed:
            left = [*self._batch, *self._kept, *self._loose]
            self._ended = True
            self._dropped += len(left)
            self._left += len(left)
            self._batch, self._batch_loose, self._urgent = (), 0, 0
            self._kept.clear()
            self._loose.clear()
        for item in left:
            if item.done is not None:
                item.done.set_exception(WriterClosed("the writer ended before it could write this row"))


def _is_lock(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
