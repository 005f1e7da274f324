import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from storage_faults import Faults
from storage_strategies import event, request, sample, snapshot

from gpuwatch.storage.errors import RowRejected, WriterClosed
from gpuwatch.storage.reader import Reader
from gpuwatch.storage.records import KnobChange, Run, Trigger
from gpuwatch.storage.schema import LastIds
from gpuwatch.storage.writer import Writer

NEVER_S = 3600.0
LONG_S = 30.0  # a bound for what must happen, not a measure of how fast


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "telemetry.db"


def test_rows_of_every_kind_are_in_the_database_after_closing(path: Path) -> None:
    writer = Writer(path)
    assert writer.start() == LastIds()
    change = KnobChange(version=1, at=1.0, actor="a", changes={"watermark.high": (0.85, 0.9)})
    run = Run(id=1, started_at=1.0, pid=1, version="v", host="h")
    for record in (run, request(1), sample(1.0), snapshot(1), event(1), change):
        writer.put(record)
    assert writer.close()
    reader = Reader(path)
    assert reader.requests() == (request(1),)
    assert reader.snapshot(1) == snapshot(1)
    assert reader.events() == (event(1),)
    assert reader.knob_changes() == (change,)
    assert reader.runs() == (run,)
    assert len(reader.samples(0.0, 2.0, points=1)) == 1
    assert (writer.statistics().written, writer.statistics().queued, writer.statistics().dropped) == (6, 0, 0)


def test_the_next_start_goes_on_from_the_highest_ids(path: Path) -> None:
    first = Writer(path)
    first.start()
    first.put(request(41))
    first.put(event(6))
    assert first.close()
    second = Writer(path)
    assert second.start() == LastIds(request=41, event=6)
    assert second.close()


def test_a_row_put_soon_is_committed_when_its_future_is_done(path: Path) -> None:
    writer = Writer(path, linger_s=NEVER_S)
    writer.start()
    writer.put_soon(snapshot(1)).result(LONG_S)
    assert Reader(path).snapshot(1) == snapshot(1)
    assert writer.close()


def test_whoever_gives_up_waiting_does_not_take_the_row_back(path: Path) -> None:
    gate = threading.Event()

    def wait(sql: str) -> None:
        if sql.startswith("BEGIN"):
            gate.wait(LONG_S)

    writer = Writer(path, connect=Faults(wait))
    writer.start()
    done = writer.put_soon(snapshot(1))
    assert not done.cancel()
    gate.set()
    done.result(LONG_S)
    assert writer.close()
    assert Reader(path).snapshot(1) is not None


def test_a_full_batch_is_written_without_waiting_for_more(path: Path) -> None:
    faults = Faults()
    writer = Writer(path, connect=faults, batch_rows=10, linger_s=NEVER_S)
    writer.start()
    for seq in range(1, 11):
        writer.put(request(seq))
    assert faults.committed.wait(LONG_S)
    assert len(Reader(path).requests()) == 10
    assert writer.close()


def test_a_single_row_is_written_after_lingering_for_others(path: Path) -> None:
    faults = Faults()
    writer = Writer(path, connect=faults)
    writer.start()
    writer.put(request(1))
    assert faults.committed.wait(LONG_S)
    assert writer.close()


def test_a_batch_is_one_transaction(path: Path) -> None:
    faults = Faults()
    writer = Writer(path, connect=faults, batch_rows=50)
    for seq in range(1, 101):
        writer.put(request(seq))
    writer.start()
    assert writer.close()
    assert faults.commits == 2


def test_kept_rows_go_first(path: Path) -> None:
    written: list[str] = []
    faults = Faults(lambda sql: written.append(sql.split('"')[1]) if sql.startswith("INSERT") else None)
    writer = Writer(path, connect=faults, batch_rows=5)
    for number in range(1, 11):
        writer.put(sample(float(number)))
    for number in range(1, 6):
        writer.put(event(number))
    writer.start()
    assert writer.close()
    assert written == ["events", "samples", "samples"]


def test_a_row_that_can_never_be_written_is_counted_and_holds_up_no_other(path: Path) -> None:
    writer = Writer(path)
    bad = event(1, data={"a": object()})
    lost = writer.put_soon(bad)
    kept = writer.put_soon(event(2))
    writer.start()
    kept.result(LONG_S)
    with pytest.raises(RowRejected):
        lost.result(LONG_S)
    assert writer.close()
    seen = writer.statistics()
    assert (seen.written, seen.dropped, seen.queued) == (1, 1, 0)
    assert "events" in str(seen.last_error)


def test_snapshots_are_kept_up_to_a_number_per_trigger_and_lowering_it_takes_effect_by_itself(path: Path) -> None:
    faults = Faults()
    writer = Writer(path, connect=faults)
    writer.start()
    writer.keep_snapshots(3)
    for number in range(1, 11):
        writer.put(snapshot(number, trigger=Trigger.MANUAL if number % 2 else Trigger.BREAKER))
    writer.put_soon(event(1)).result(LONG_S)
    assert [head.id for head in Reader(path).snapshots()] == [10, 9, 8, 7, 6, 5]
    faults.committed.clear()
    writer.keep_snapshots(1)
    assert faults.committed.wait(LONG_S)
    assert [head.id for head in Reader(path).snapshots()] == [10, 9]
    assert writer.close()


def test_rows_after_closing_are_counted_as_dropped_and_closing_again_is_safe(path: Path) -> None:
    writer = Writer(path)
    writer.start()
    assert writer.close()
    writer.put(event(1))
    assert isinstance(writer.put_soon(event(2)).exception(LONG_S), WriterClosed)
    assert writer.statistics().dropped == 2
    assert writer.close()


def test_closing_folds_the_log_into_the_file(path: Path) -> None:
    writer = Writer(path)
    writer.start()
    for seq in range(1, 500):
        writer.put(request(seq))
    assert writer.close()
    assert not path.with_name("telemetry.db-wal").exists()
    assert writer.statistics().db_bytes == path.stat().st_size
    assert writer.statistics().wal_bytes == 0


def test_a_writer_that_never_started_counts_its_rows_as_dropped(path: Path) -> None:
    writer = Writer(path)
    writer.put(event(1))
    assert not writer.close()
    assert writer.statistics().dropped == 1


def test_many_threads_may_put_at_once(path: Path) -> None:
    writer = Writer(path)
    writer.start()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda seq: writer.put(request(seq)), range(1, 2001)))
    assert writer.close(LONG_S)
    assert writer.statistics().written == 2000
    assert len(Reader(path).requests(limit=5000)) == 2000
