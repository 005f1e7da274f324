import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_faults import Faults, error
from storage_strategies import event, request, sample, snapshot

from gpuwatch.storage.errors import DatabaseDamaged, SchemaTooNew, WriterClosed
from gpuwatch.storage.reader import Reader
from gpuwatch.storage.schema import open_database
from gpuwatch.storage.writer import Writer

LONG_S = 30.0  # a bound for what must happen, not a measure of how fast


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "telemetry.db"


def failing(code: int, *, at: str = "BEGIN", times: int = 1 << 30) -> Callable[[str], None]:
    left = [times]

    def before(sql: str) -> None:
        if sql.startswith(at) and left[0] > 0:
            left[0] -= 1
            raise error(code)

    return before


def test_putting_goes_on_while_another_process_locks_the_database_and_nothing_is_lost(path: Path) -> None:
    faults = Faults()
    writer = Writer(path, connect=faults, linger_s=0.0)
    writer.start()
    with closing(open_database(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        for seq in range(1, 1001):
            writer.put(request(seq))
            writer.put(event(seq))
        assert faults.failed.wait(LONG_S)
        locked = writer.statistics()
        other.execute("COMMIT")
    assert (locked.written, locked.queued, locked.dropped) == (0, 2000, 0)
    assert writer.close(LONG_S)
    assert faults.opened == 1
    assert len(Reader(path).requests(limit=5000)) == 1000
    assert len(Reader(path).events(limit=5000)) == 1000
    assert writer.statistics().last_error is None


def test_what_is_wrong_with_the_database_is_told_until_it_is_right_again(path: Path) -> None:
    faults = Faults(failing(sqlite3.SQLITE_FULL))
    writer = Writer(path, connect=faults)
    writer.start()
    done = writer.put_soon(event(1))
    while writer.statistics().last_error is None:
        faults.failed.wait(0.01)
    assert "disk is full" in str(writer.statistics().last_error)
    faults.before = lambda _sql: None
    done.result(LONG_S)
    assert writer.statistics().last_error is None
    assert faults.opened > 1, "after anything but a lock a fresh connection is taken"
    assert writer.close()


def test_kept_rows_are_never_dropped_and_loose_rows_are_bounded(path: Path) -> None:
    faults = Faults(failing(sqlite3.SQLITE_FULL))
    writer = Writer(path, connect=faults, queue_rows=100, batch_rows=10)
    writer.start()
    for number in range(1, 301):
        writer.put(sample(float(number)))
        writer.put(event(number))
    full = writer.statistics()
    assert (full.queued, full.dropped, full.written) == (400, 200, 0)
    faults.before = lambda _sql: None
    assert writer.close(LONG_S)
    assert len(Reader(path).events(limit=1000)) == 300
    assert sum(bucket.samples for bucket in Reader(path).samples(0.0, 301.0, points=1)) == 100


def test_loose_rows_on_their_way_to_the_disk_count_towards_the_bound(path: Path) -> None:
    hangs, released = threading.Event(), threading.Event()

    def hang(sql: str) -> None:
        if sql == "COMMIT":
            hangs.set()
            released.wait(LONG_S)

    writer = Writer(path, connect=Faults(hang), queue_rows=10, batch_rows=10)
    writer.start()
    for number in range(10):
        writer.put(sample(float(number)))
    assert hangs.wait(LONG_S)
    for number in range(10, 15):
        writer.put(sample(float(number)))
    assert (writer.statistics().queued, writer.statistics().dropped) == (10, 5)
    released.set()
    assert writer.close(LONG_S)


def test_closing_drops_and_counts_what_a_broken_database_leaves(path: Path) -> None:
    writer = Writer(path, connect=Faults(failing(sqlite3.SQLITE_FULL)))
    writer.start()
    done = writer.put_soon(snapshot(1))
    for number in range(1, 51):
        writer.put(sample(float(number)))
    assert not writer.close(timeout_s=0.0)
    seen = writer.statistics()
    assert (seen.written, seen.dropped, seen.queued) == (0, 51, 0)
    with pytest.raises(WriterClosed):
        done.result(LONG_S)


def test_closing_does_not_wait_for_a_disk_that_hangs_and_counts_each_row_once(path: Path) -> None:
    hangs, released = threading.Event(), threading.Event()

    def hang(sql: str) -> None:
        if sql == "COMMIT":
            hangs.set()
            released.wait(LONG_S)

    writer = Writer(path, connect=Faults(hang), batch_rows=1)
    writer.start()
    first, second = writer.put_soon(event(1)), writer.put_soon(event(2))
    assert hangs.wait(LONG_S)
    assert not writer.close(timeout_s=0.0)
    assert (writer.statistics().written, writer.statistics().dropped, writer.statistics().queued) == (0, 2, 0)
    released.set()
    writer._thread.join(LONG_S)
    assert not writer._thread.is_alive()
    assert (writer.statistics().written, writer.statistics().dropped) == (0, 2)
    for done in (first, second):
        assert isinstance(done.exception(LONG_S), WriterClosed)


def test_starting_on_a_damaged_or_newer_database_says_so_and_ends_the_writer(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to be looked at" * 20)
    damaged = Writer(path)
    with pytest.raises(DatabaseDamaged):
        damaged.start()
    damaged.put(event(1))
    assert damaged.statistics().dropped == 1
    path.unlink()
    with closing(open_database(path)) as connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('gpuwatch', 'm999', 'then')"
        )
    with pytest.raises(SchemaTooNew):
        Writer(path).start()


def test_a_database_deleted_under_a_running_service_is_made_anew(path: Path) -> None:
    writer = Writer(path)
    writer.start()
    writer.put_soon(event(1)).result(LONG_S)
    for file in path.parent.glob("telemetry.db*"):
        file.unlink()
    writer.put_soon(event(2)).result(LONG_S)
    assert Reader(path).events() == (event(2),)
    assert writer.close()


MOVES = st.lists(st.sampled_from(["event", "sample", "soon", "misfit", "fail", "lock", "heal", "prune"]), max_size=40)


@settings(max_examples=40)
@given(moves=MOVES, heals=st.booleans())
def test_written_dropped_and_queued_add_up_to_what_was_offered_whatever_happens(moves: list[str], heals: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "telemetry.db"
        faults = Faults()
        writer = Writer(path, connect=faults, queue_rows=5, batch_rows=3, linger_s=0.0)
        writer.start()
        offered = 0
        for number, move in enumerate(moves, start=1):
            match move:
                case "event":
                    writer.put(event(number))
                case "sample":
                    writer.put(sample(float(number)))
                case "soon":
                    writer.put_soon(snapshot(number))
                case "misfit":
                    writer.put(event(number, data={"a": object()}))
                case "fail":
                    faults.before = failing(sqlite3.SQLITE_FULL, at="COMMIT")
                case "lock":
                    faults.before = failing(sqlite3.SQLITE_BUSY)
                case "heal":
                    faults.before = lambda _sql: None
                case "prune":
                    writer.keep_snapshots(1 << 20)
            offered += move in {"event", "sample", "soon", "misfit"}
            seen = writer.statistics()
            assert seen.written + seen.dropped + seen.queued == offered
        if heals:
            faults.before = lambda _sql: None
        closed = writer.close(LONG_S if heals else 0.0)
        end = writer.statistics()
        assert (end.queued, end.written + end.dropped) == (0, offered)
        with closing(sqlite3.connect(path)) as connection:
            counts = connection.execute(
                "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM samples), (SELECT count(*) FROM snapshots)"
            ).fetchone()
        assert sum(counts) == end.written
        if heals:
            assert closed
            assert counts[0] == moves.count("event")
            assert counts[2] == moves.count("soon")


KILLED = """
import sys
from storage_strategies import event, request
from gpuwatch.storage.writer import Writer
writer = Writer(sys.argv[1])
number = writer.start().event
while True:
    number += 1
    for seq in range(number * 50, number * 50 + 50):
        writer.put(request(seq, error="x" * 500))
    writer.put_soon(event(number, message="y" * 500)).result()
    print(number, flush=True)
"""


def run(script: str, *arguments: str) -> subprocess.Popen[str]:
    tests = str(Path(__file__).parents[1])
    return subprocess.Popen(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{script}", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_kill_9_leaves_a_whole_database_with_every_row_that_was_committed(path: Path) -> None:
    acknowledged = 0
    for rounds in (3, 17, 40):
        process = run(KILLED, str(path))
        assert process.stdout is not None
        with process:
            for _ in range(rounds):
                acknowledged = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
        reader = Reader(path)
        assert {row.id for row in reader.events(limit=10_000)} >= set(range(1, acknowledged + 1))
        assert all(row.error == "x" * 500 for row in reader.requests(limit=100_000))
        with closing(open_database(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


FULL = """
import json, resource, sys, threading
from storage_strategies import event, sample
from gpuwatch.storage.writer import Writer
writer = Writer(sys.argv[1], queue_rows=500)
writer.start()
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
for number in range(1, 2001):
    writer.put(event(number, message="y" * 500))
    writer.put(sample(float(number)))
while writer.statistics().last_error is None:
    threading.Event().wait(0.01)
full = writer.statistics()
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
closed = writer.close(30.0)
end = writer.statistics()
print(json.dumps([full.last_error, full.written + full.dropped + full.queued, closed, end.written, end.dropped]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_full_disk_stops_nobody_loses_no_kept_row_and_the_counts_add_up(path: Path) -> None:
    process = run(FULL, str(path))
    output, _ = process.communicate(timeout=60)
    last_error, offered, closed, written, dropped = json.loads(output)
    assert "cannot be used" in last_error
    assert offered == 4000
    assert closed
    assert written + dropped == 4000
    reader = Reader(path)
    assert len(reader.events(limit=5000)) == 2000
    assert sum(bucket.samples for bucket in reader.samples(0.0, 3000.0, points=1)) == written - 2000
    with closing(open_database(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
