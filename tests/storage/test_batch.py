import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_faults import Faults, error
from storage_strategies import event, of, request, sample, snapshot

from gpuwatch.storage import batch, codec
from gpuwatch.storage.records import Outcome, Trigger
from gpuwatch.storage.schema import open_database
from gpuwatch.storage.tables import TABLES, Row

EACH_KIND = pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_database(tmp_path / "telemetry.db")) as opened:
        yield opened


def rows(connection: sqlite3.Connection, kind: type[Row]) -> list[Row]:
    cursor = connection.execute(f"SELECT * FROM {TABLES[kind].name} ORDER BY rowid")  # noqa: S608 - our own name
    names = [column for column, *_ in cursor.description]
    return [codec.unrow(kind, dict(zip(names, row, strict=True))) for row in cursor.fetchall()]


@EACH_KIND
@given(data=st.data())
def test_every_record_comes_back_from_the_database_as_it_was(kind: type[Row], data: st.DataObject) -> None:
    record = data.draw(of(kind))
    with closing(open_database(":memory:")) as connection:
        assert batch.write(connection, [record]) == {}
        assert rows(connection, kind) == [record]


@pytest.mark.parametrize("record", [request(1), snapshot(1), event(1)], ids=lambda record: type(record).__name__)
def test_a_row_with_the_same_key_replaces_the_one_before_also_within_a_batch(
    connection: sqlite3.Connection, record: Row
) -> None:
    later: Any = {**codec.plain(record), "at": 99.0}
    last: Any = {**codec.plain(record), "at": 100.0}
    kind = type(record)
    batch.write(connection, [record])
    batch.write(connection, [codec.build(kind, later), codec.build(kind, last)])
    assert rows(connection, kind) == [codec.build(kind, last)]


def test_an_orphans_true_end_updates_its_row(connection: sqlite3.Connection) -> None:
    batch.write(connection, [request(1, outcome=Outcome.RUN_TIMEOUT, status=504)])
    ended = request(1, outcome=Outcome.RUN_TIMEOUT, status=504, run_ms=5000.0, peak_bytes=7)
    batch.write(connection, [ended])
    assert rows(connection, type(ended)) == [ended]


def test_samples_have_no_key_and_all_stay(connection: sqlite3.Connection) -> None:
    batch.write(connection, [sample(1.0), sample(1.0)])
    assert len(rows(connection, type(sample(1.0)))) == 2


@pytest.mark.parametrize(
    "misfit",
    [
        request(2, at=float("nan")),
        request(2, price_bytes=1 << 70),
        request(2, request_id=None),
        request(2, status="ok"),
        event(2, data={"a": object()}),
        event(2, data={"a": {1, 2}, "b": lambda: None}),
    ],
    ids=["nan-time", "beyond-64-bits", "null", "wrong-type", "no-plain-data", "a-function"],
)
def test_a_row_that_does_not_fit_is_named_and_costs_no_other(connection: sqlite3.Connection, misfit: Row) -> None:
    before, after = (request(1), request(3)) if type(misfit) is type(request(1)) else (event(1), event(3))
    rejected = batch.write(connection, [before, misfit, after, sample(1.0)])
    assert list(rejected) == [1]
    assert rows(connection, type(before)) == [before, after]
    assert len(rows(connection, type(sample(1.0)))) == 1


def test_rows_without_a_key_are_not_written_twice_when_one_beside_them_does_not_fit(
    connection: sqlite3.Connection,
) -> None:
    assert list(batch.write(connection, [sample(1.0), sample(float("nan")), sample(2.0)])) == [1]
    assert rows(connection, type(sample(1.0))) == [sample(1.0), sample(2.0)]


@pytest.mark.parametrize("at", ["BEGIN", "INSERT", "RELEASE", "DELETE", "COMMIT"])
def test_a_batch_is_all_or_nothing_wherever_it_fails(tmp_path: Path, at: str) -> None:
    def fail(sql: str) -> None:
        if sql.strip().startswith(at):
            raise error(sqlite3.SQLITE_FULL)

    faults = Faults()
    with closing(faults(tmp_path / "telemetry.db")) as connection:
        batch.write(connection, [event(1)])
        faults.before = fail
        with pytest.raises(sqlite3.OperationalError):
            batch.write(connection, [event(2), request(1), snapshot(1)], keep_snapshots=1)
        assert not connection.in_transaction
        faults.before = lambda _sql: None
        batch.write(connection, [event(3)])
    with closing(open_database(tmp_path / "telemetry.db")) as connection:
        assert rows(connection, type(event(1))) == [event(1), event(3)]
        assert rows(connection, type(request(1))) == []


def test_the_oldest_snapshots_beyond_the_number_go_for_each_trigger_alone(connection: sqlite3.Connection) -> None:
    made = [snapshot(n, trigger=Trigger.MANUAL if n % 3 == 0 else Trigger.WATERMARK) for n in range(1, 13)]
    batch.write(connection, made, keep_snapshots=3)
    left = [record for record in rows(connection, type(made[0])) if isinstance(record, type(made[0]))]
    assert [record.id for record in left if record.trigger is Trigger.MANUAL] == [6, 9, 12]
    assert [record.id for record in left if record.trigger is Trigger.WATERMARK] == [8, 10, 11]


def test_snapshots_stay_when_no_number_is_given(connection: sqlite3.Connection) -> None:
    batch.write(connection, [snapshot(n) for n in range(1, 200)])
    assert len(rows(connection, type(snapshot(1)))) == 199
