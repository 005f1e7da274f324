"""Read the database in records, while a service writes it or with none running.

Rules: connections are read-only (``mode=ro``) and live for one question, one statement each, because a reader that
stays in a transaction pins the write-ahead log; every call blocks (never on an event loop); callers see records and
`StorageError`, never SQLite's own errors.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from gpuwatch.storage import codec
from gpuwatch.storage.errors import DatabaseDamaged, explain
from gpuwatch.storage.records import Cause, Event, KnobChange, OomSnapshot, Outcome, RequestRecord, Run, Trigger
from gpuwatch.storage.state import SnapshotHead

T = TypeVar("T")

WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One figure within one bucket: smallest, mean, largest."""

    min: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBucket:
    """Samples of one card from ``at`` to ``at + width_s``; bytes but for the two counts of requests.

    A figure that no sample of the bucket knew is ``None``; a bucket without samples is left out, so a gap stays one.
    """

    at: float
    width_s: float
    gpu: int
    samples: int
    total_bytes: int
    used_bytes: Spread
    reserved_bytes: Spread | None
    allocated_bytes: Spread | None
    pressure_bytes: Spread
    promised_bytes: Spread
    foreign_bytes: Spread
    in_flight: Spread
    waiting: Spread


_FIGURES: Final = tuple(
    name for name in codec.fields(SampleBucket) if name not in {"at", "width_s", "gpu", "samples", "total_bytes"}
)
_SPREADS: Final = ", ".join(f"min({name}), avg({name}), max({name})" for name in _FIGURES)
_BUCKETS: Final = f"""
SELECT min(CAST((at - :since) / :width AS INTEGER), :points - 1) AS place, count(*), max(total_bytes), {_SPREADS}
FROM samples WHERE gpu = :gpu AND at >= :since AND at < :until GROUP BY place ORDER BY place
"""  # noqa: S608 - names are our own fields
_HEAD: Final = ", ".join(f'"{name}"' for name in codec.fields(SnapshotHead))


class Reader:
    """Answers questions about the database at ``path``; may be shared between threads.

    Every method raises a `DatabaseUnavailable`: `DatabaseMissing`, `DatabaseLocked` (after ``wait_s``) or
    `DatabaseDamaged`.
    """

    def __init__(self, path: str | PathLike[str], *, wait_s: float = WAIT_S) -> None:
        self._path = Path(path)
        self._wait_s = wait_s

    def requests(
        self,
        *,
        lane: str | None = None,
        outcome: Outcome | None = None,
        since: float | None = None,
        limit: int = 100,
    ) -> tuple[RequestRecord, ...]:
        """Give recorded requests, newest first; ``since`` is Unix seconds."""
        where = {"lane = ?": lane, "outcome = ?": outcome, "at >= ?": since}
        return self._records(RequestRecord, "SELECT * FROM requests", where, "ORDER BY at DESC, seq DESC", limit)

    def samples(self, since: float, until: float, *, points: int = 600, gpu: int = 0) -> tuple[SampleBucket, ...]:
        """Give one card's samples from ``since`` to before ``until`` (Unix seconds) in at most ``points`` buckets."""
        if points < 1:
            raise ValueError("points must be at least 1")
        width_s = (until - since) / points
        if width_s <= 0:
            return ()
        given = {"since": since, "until": until, "width": width_s, "points": points, "gpu": gpu}
        return tuple(_bucket(row, since, width_s, gpu) for row in self._rows(_BUCKETS, given))

    def snapshots(
        self, *, limit: int = 100, cause: Cause | None = None, trigger: Trigger | None = None
    ) -> tuple[SnapshotHead, ...]:
        """Give snapshots as a list shows them, newest first."""
        where = {"cause = ?": cause, '"trigger" = ?': trigger}
        return self._records(SnapshotHead, f"SELECT {_HEAD} FROM snapshots", where, "ORDER BY id DESC", limit)  # noqa: S608 - our own fields

    def snapshot(self, id: int) -> OomSnapshot | None:  # noqa: A002 - the record's own name for it
        """Give one snapshot whole."""
        found = self._records(OomSnapshot, "SELECT * FROM snapshots", {"id = ?": id}, "", 1)
        return found[0] if found else None

    def events(self, *, since: float | None = None, limit: int = 100) -> tuple[Event, ...]:
        """Give events, newest first; ``since`` is Unix seconds."""
        return self._records(Event, "SELECT * FROM events", {"at >= ?": since}, "ORDER BY at DESC, id DESC", limit)

    def knob_changes(self, *, limit: int = 100) -> tuple[KnobChange, ...]:
        """Give knob changes, newest version first."""
        return self._records(KnobChange, "SELECT * FROM knob_changes", {}, "ORDER BY version DESC", limit)

    def runs(self, *, limit: int = 100) -> tuple[Run, ...]:
        """Give the service's lives, newest first."""
        return self._records(Run, "SELECT * FROM runs", {}, "ORDER BY id DESC", limit)

    def outcome_counts(self, *, run_id: int | None = None, since: float | None = None) -> dict[str, dict[Outcome, int]]:
        """Count requests by lane and outcome."""
        clause, given = _where({"run_id = ?": run_id, "at >= ?": since})
        counts: dict[str, dict[Outcome, int]] = {}
        sql = f"SELECT lane, outcome, count(*) FROM requests {clause} GROUP BY lane, outcome ORDER BY lane, outcome"  # noqa: S608 - clauses are our own
        for lane, outcome, count in self._rows(sql, given):
            counts.setdefault(lane, {})[self._word(outcome)] = count
        return counts

    def _word(self, outcome: str) -> Outcome:
        try:
            return Outcome(outcome)
        except ValueError as unknown:
            raise self._foreign(unknown) from unknown

    def _records(
        self, kind: type[T], select: str, where: Mapping[str, object], order: str, limit: int
    ) -> tuple[T, ...]:
        clause, given = _where(where)
        found = self._rows(f"{select} {clause} {order} LIMIT ?", (*given, max(0, limit)))
        try:
            return tuple(codec.unrow(kind, dict(row)) for row in found)
        except msgspec.DecodeError as error:
            raise self._foreign(error) from error

    def _rows(self, sql: str, given: Sequence[object] | Mapping[str, object]) -> list[sqlite3.Row]:
        try:
            with closing(self._open()) as connection:
                connection.row_factory = sqlite3.Row
                return connection.execute(sql, given).fetchall()
        except sqlite3.Error as error:
            raise explain(self._path, error) from error

    def _open(self) -> sqlite3.Connection:
        uri = self._path.absolute().as_uri() + "?mode=ro"
        return sqlite3.connect(uri, uri=True, timeout=self._wait_s, isolation_level=None)

    def _foreign(self, error: Exception) -> DatabaseDamaged:
        return DatabaseDamaged(f"{self._path} holds a row that this gpuwatch does not understand: {error}")


def _where(conditions: Mapping[str, object]) -> tuple[str, tuple[object, ...]]:
    """Join the conditions whose value is given."""
    given = {clause: value for clause, value in conditions.items() if value is not None}
    return ("WHERE " + " AND ".join(given) if given else ""), tuple(given.values())


def _bucket(row: Sequence[Any], since: float, width_s: float, gpu: int) -> SampleBucket:
    place, samples, total_bytes, *figures = row
    spreads = {
        name: None if low is None else Spread(min=low, mean=mean, max=high)
        for name, low, mean, high in zip(_FIGURES, figures[::3], figures[1::3], figures[2::3], strict=True)
    }
    figured: dict[str, Any] = spreads  # NOT NULL columns always have a spread
    return SampleBucket(
        at=since + place * width_s, width_s=width_s, gpu=gpu, samples=samples, total_bytes=total_bytes, **figured
    )
