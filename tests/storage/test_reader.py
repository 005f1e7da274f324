import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_strategies import event, request, sample, snapshot

from gpuwatch.storage import batch, codec
from gpuwatch.storage.errors import DatabaseDamaged, DatabaseLocked, DatabaseMissing, DatabaseUnavailable
from gpuwatch.storage.reader import Reader, SampleBucket, Spread
from gpuwatch.storage.records import Cause, KnobChange, Outcome, Run, Sample, Trigger
from gpuwatch.storage.schema import open_database
from gpuwatch.storage.tables import Row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "telemetry.db"


def holding(path: Path, *rows: Row) -> Reader:
    with closing(open_database(path)) as connection:
        assert batch.write(connection, rows) == {}
    return Reader(path)


def test_a_new_database_answers_with_nothing(path: Path) -> None:
    reader = holding(path)
    assert (reader.requests(), reader.snapshots(), reader.events()) == ((), (), ())
    assert (reader.knob_changes(), reader.runs(), reader.samples(0.0, 1.0)) == ((), (), ())
    assert reader.snapshot(1) is None
    assert reader.outcome_counts() == {}


def test_requests_come_newest_first_and_no_more_than_asked_for(path: Path) -> None:
    reader = holding(path, request(1, at=5.0), request(2, at=7.0), request(3, at=6.0), request(4, at=7.0))
    assert [row.seq for row in reader.requests()] == [4, 2, 3, 1]
    assert [row.seq for row in reader.requests(limit=2)] == [4, 2]
    assert reader.requests(limit=0) == ()
    assert reader.requests(limit=-1) == ()


def test_requests_are_found_by_lane_outcome_and_time_together(path: Path) -> None:
    reader = holding(
        path,
        request(1, lane="image"),
        request(2, lane="image", outcome=Outcome.QUEUE_FULL, status=429),
        request(3, lane="text", outcome=Outcome.QUEUE_FULL, status=429),
        request(4, lane="image", outcome=Outcome.QUEUE_FULL, status=429),
    )
    assert [row.seq for row in reader.requests(lane="image")] == [4, 2, 1]
    assert [row.seq for row in reader.requests(outcome=Outcome.QUEUE_FULL)] == [4, 3, 2]
    assert [row.seq for row in reader.requests(since=3.0)] == [4, 3]
    assert [row.seq for row in reader.requests(lane="image", outcome=Outcome.QUEUE_FULL, since=3.0)] == [4]
    assert reader.requests(lane="'; DROP TABLE requests; --") == ()


def test_outcomes_are_counted_by_lane(path: Path) -> None:
    reader = holding(
        path,
        request(1, lane="image"),
        request(2, lane="image"),
        request(3, lane="image", outcome=Outcome.NO_ROOM),
        request(4, lane="text", run_id=2),
    )
    assert reader.outcome_counts() == {"image": {Outcome.OK: 2, Outcome.NO_ROOM: 1}, "text": {Outcome.OK: 1}}
    assert reader.outcome_counts(run_id=2) == {"text": {Outcome.OK: 1}}
    assert reader.outcome_counts(run_id=1, since=2.0) == {"image": {Outcome.OK: 1, Outcome.NO_ROOM: 1}}


def test_snapshots_are_listed_without_their_weight_and_given_whole_one_by_one(path: Path) -> None:
    heavy = snapshot(1, payload={"why": [1, None]}, segments=b"\0\xff", trigger=Trigger.MANUAL, cause=Cause.MANUAL)
    reader = holding(path, heavy, snapshot(2), snapshot(3))
    assert [head.id for head in reader.snapshots()] == [3, 2, 1]
    assert [head.id for head in reader.snapshots(limit=1)] == [3]
    assert [head.id for head in reader.snapshots(trigger=Trigger.MANUAL)] == [1]
    assert [head.id for head in reader.snapshots(cause=Cause.UNKNOWN)] == [3, 2]
    assert reader.snapshots(cause=Cause.UNKNOWN, trigger=Trigger.MANUAL) == ()
    assert reader.snapshot(1) == heavy
    assert reader.snapshot(99) is None


def test_events_changes_and_runs_come_newest_first(path: Path) -> None:
    runs = [Run(id=n, started_at=float(n), pid=n, version="v", host="h") for n in (1, 2)]
    changes = [KnobChange(version=n, at=1.0, actor="a", changes={}) for n in (1, 2, 3)]
    reader = holding(path, *runs, *changes, event(1), event(2, at=1.0), event(3, at=0.5))
    assert [row.id for row in reader.events()] == [2, 1, 3]
    assert [row.id for row in reader.events(since=1.0, limit=1)] == [2]
    assert reader.knob_changes(limit=2) == (changes[2], changes[1])
    assert reader.runs() == (runs[1], runs[0])


def expected(rows: list[Sample], since: float, until: float, points: int) -> dict[int, list[int]]:
    """Give the used bytes of each bucket's samples, by the bucket's place."""
    width = (until - since) / points
    places: dict[int, list[int]] = {}
    for row in rows:
        if since <= row.at < until and row.gpu == 0:
            places.setdefault(min(int((row.at - since) / width), points - 1), []).append(row.used_bytes)
    return places


@settings(max_examples=25)
@given(
    seen=st.lists(st.tuples(st.floats(0, 100), st.integers(0, 1 << 40), st.integers(0, 1)), max_size=30),
    since=st.floats(0, 50),
    span=st.floats(0.001, 100),
    points=st.integers(1, 20),
)
def test_buckets_hold_what_their_samples_say(
    seen: list[tuple[float, int, int]], since: float, span: float, points: int
) -> None:
    rows = [sample(at, used_bytes=used, gpu=gpu) for at, used, gpu in seen]
    with tempfile.TemporaryDirectory() as directory:
        reader = holding(Path(directory) / "t.db", *rows)
        buckets = reader.samples(since, since + span, points=points)
    width = (since + span - since) / points
    places = expected(rows, since, since + span, points)
    assert len(buckets) <= points
    assert [round((bucket.at - since) / width) for bucket in buckets] == sorted(places)
    for bucket, (_, used) in zip(buckets, sorted(places.items()), strict=True):
        assert (bucket.gpu, bucket.samples) == (0, len(used))
        assert (bucket.used_bytes.min, bucket.used_bytes.max) == (min(used), max(used))
        assert bucket.used_bytes.mean == pytest.approx(sum(used) / len(used))


def test_a_bucket_spreads_every_figure_and_says_none_for_what_nobody_knew(path: Path) -> None:
    reader = holding(
        path,
        sample(1.0, reserved_bytes=100, promised_bytes=10, in_flight=1, waiting=5, foreign_bytes=7, pressure_bytes=3),
        sample(2.0, reserved_bytes=300, promised_bytes=30, in_flight=2, waiting=0, foreign_bytes=9, pressure_bytes=5),
        sample(3.0),
    )
    (bucket,) = reader.samples(0.0, 3.0, points=1)
    assert bucket == SampleBucket(
        at=0.0,
        width_s=3.0,
        gpu=0,
        samples=2,
        total_bytes=1000,
        used_bytes=Spread(min=500, mean=500.0, max=500),
        reserved_bytes=Spread(min=100, mean=200.0, max=300),
        allocated_bytes=None,
        pressure_bytes=Spread(min=3, mean=4.0, max=5),
        promised_bytes=Spread(min=10, mean=20.0, max=30),
        foreign_bytes=Spread(min=7, mean=8.0, max=9),
        in_flight=Spread(min=1, mean=1.5, max=2),
        waiting=Spread(min=0, mean=2.5, max=5),
    )
    assert codec.build(SampleBucket, codec.plain(bucket)) == bucket


def test_a_sample_just_before_the_end_falls_in_the_last_bucket_however_the_division_rounds(path: Path) -> None:
    since, until, at = 2.4, 6.699999999999999, 6.699999999999998
    assert int((at - since) / ((until - since) / 8)) == 8, "the case that this test is about"
    (bucket,) = holding(path, sample(at)).samples(since, until, points=8)
    assert bucket.at < at


def test_a_gap_stays_a_gap(path: Path) -> None:
    reader = holding(path, sample(0.5), sample(9.5))
    assert [bucket.at for bucket in reader.samples(0.0, 10.0, points=10)] == [0.0, 9.0]


def test_a_span_that_is_none_has_no_buckets_and_no_points_is_a_mistake(path: Path) -> None:
    reader = holding(path, sample(1.0))
    assert reader.samples(1.0, 1.0) == ()
    assert reader.samples(2.0, 1.0) == ()
    with pytest.raises(ValueError, match="points"):
        reader.samples(0.0, 1.0, points=0)


ASKS = {
    "requests": lambda reader: reader.requests(),
    "samples": lambda reader: reader.samples(0.0, 1.0),
    "snapshots": lambda reader: reader.snapshots(),
    "snapshot": lambda reader: reader.snapshot(1),
    "events": lambda reader: reader.events(),
    "knob_changes": lambda reader: reader.knob_changes(),
    "runs": lambda reader: reader.runs(),
    "outcome_counts": lambda reader: reader.outcome_counts(),
}
EACH_QUESTION = pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)


@EACH_QUESTION
def test_a_missing_database_is_said_to_be_missing_and_is_not_made(path: Path, ask: object) -> None:
    assert callable(ask)
    with pytest.raises(DatabaseMissing, match=r"telemetry\.db"):
        ask(Reader(path))
    assert not path.exists()


@EACH_QUESTION
def test_a_damaged_or_foreign_file_is_said_to_be_so(tmp_path: Path, ask: object) -> None:
    assert callable(ask)
    garbage, empty, foreign = tmp_path / "garbage", tmp_path / "empty", tmp_path / "foreign"
    garbage.write_bytes(b"this is no database, but long enough to be taken for one" * 20)
    empty.touch()
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE t (a)")
    for path in (garbage, empty, foreign):
        with pytest.raises(DatabaseDamaged, match=path.name):
            ask(Reader(path))


def test_a_torn_page_is_said_to_be_damage(path: Path) -> None:
    reader = holding(path, *(event(n, message="x" * 900) for n in range(1, 200)))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + b"\xa5" * (len(whole) - len(whole) // 2))
    with pytest.raises(DatabaseDamaged):
        reader.events(limit=1000)


def test_a_directory_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable):
        Reader(tmp_path).events()


def test_a_database_that_another_process_keeps_to_itself_is_said_to_be_locked(path: Path) -> None:
    reader = holding(path, event(1))
    with closing(sqlite3.connect(path, isolation_level=None)) as greedy:
        greedy.execute("PRAGMA locking_mode = EXCLUSIVE")
        greedy.execute("BEGIN EXCLUSIVE")
        greedy.execute("DELETE FROM events")
        with pytest.raises(DatabaseLocked):
            Reader(path, wait_s=0.0).events()
        greedy.execute("ROLLBACK")
    assert len(reader.events()) == 1


def test_a_row_that_this_version_does_not_understand_is_said_to_be_so(path: Path) -> None:
    reader = holding(path, request(1))
    with closing(open_database(path)) as connection:
        connection.execute("UPDATE requests SET outcome = 'abducted'")
    for ask in (reader.requests, reader.outcome_counts):
        with pytest.raises(DatabaseDamaged, match="abducted"):
            ask()


def test_columns_of_a_later_version_are_passed_over(path: Path) -> None:
    reader = holding(path, request(1))
    with closing(open_database(path)) as connection:
        connection.execute("ALTER TABLE requests ADD COLUMN mood TEXT")
    assert reader.requests() == (request(1),)


def test_a_reader_neither_waits_for_the_writer_nor_pins_its_log(path: Path) -> None:
    reader = holding(path, event(1))
    with closing(open_database(path)) as writing:
        writing.execute("BEGIN IMMEDIATE")
        writing.execute("DELETE FROM events")
        assert len(reader.events()) == 1
        writing.execute("COMMIT")
        assert reader.events() == ()
        busy, *_ = writing.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0


def test_a_reader_cannot_write(path: Path) -> None:
    reader = holding(path, event(1))
    with closing(reader._open()) as connection, pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM events")


@pytest.mark.parametrize("name", ["a b.db", "100%?.db", "#1.db", "ключ.db", "x?mode=rwc"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    assert holding(tmp_path / name, event(1)).events() == (event(1),)
