import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.core.blocked import WINDOW_S, BlockedTime
from gpuwatch.storage.records import BlockedBy

CAUSES = st.none() | st.sampled_from(BlockedBy)
NOTES = st.lists(st.tuples(st.floats(0, 30), CAUSES), min_size=1, max_size=60)


def total(made: BlockedTime) -> float:
    return sum(made.seconds().values())


def test_every_cause_is_named_before_anything_was_noted() -> None:
    assert BlockedTime().seconds() == dict.fromkeys(BlockedBy, 0.0)


def test_time_counts_for_the_cause_noted_before_it() -> None:
    made = BlockedTime()
    made.note(10.0, BlockedBy.SLOTS)
    made.note(12.0, BlockedBy.BYTES)
    made.note(12.5, None)
    made.note(20.0, BlockedBy.STALE)
    sums = made.seconds()
    assert sums[BlockedBy.SLOTS] == pytest.approx(2.0)
    assert sums[BlockedBy.BYTES] == pytest.approx(0.5)
    assert total(made) == pytest.approx(2.5)


def test_a_long_silence_counts_for_no_more_than_the_window() -> None:
    made = BlockedTime()
    made.note(0.0, BlockedBy.BYTES)
    made.note(10_000.0, BlockedBy.BYTES)
    assert WINDOW_S - 1 <= total(made) <= WINDOW_S


def test_what_is_older_than_the_window_is_forgotten_second_by_second() -> None:
    made = BlockedTime()
    made.note(0.0, BlockedBy.BYTES)
    made.note(30.0, None)
    for now_s, left_s in ((59.0, 30.0), (70.0, 19.0), (80.0, 9.0), (100.0, 0.0)):
        made.note(now_s, None)
        assert made.seconds()[BlockedBy.BYTES] == pytest.approx(left_s)


def test_nothing_is_kept_per_note() -> None:
    made = BlockedTime()
    for at in range(100_000):
        made.note(at / 1000, BlockedBy.SLOTS if at % 2 else BlockedBy.BYTES)
    assert len(made._buckets) <= WINDOW_S
    assert made.seconds()[BlockedBy.SLOTS] == pytest.approx(made.seconds()[BlockedBy.BYTES], rel=0.01)


def test_a_clock_that_stands_still_adds_nothing() -> None:
    made = BlockedTime()
    for cause in (BlockedBy.SLOTS, BlockedBy.BYTES, BlockedBy.STALE, None):
        made.note(5.0, cause)
    assert total(made) == 0.0


@given(NOTES)
def test_sums_equal_the_time_blocked_within_the_window_to_its_edge_second(
    notes: list[tuple[float, BlockedBy | None]],
) -> None:
    made = BlockedTime()
    now_s = 1000.0
    spans: list[tuple[float, float, BlockedBy]] = []
    before: tuple[float, BlockedBy | None] = (now_s, None)
    for gap_s, cause in notes:
        now_s += gap_s
        if before[1] is not None:
            spans.append((before[0], now_s, before[1]))
        before = (now_s, cause)
        made.note(now_s, cause)
    seconds = made.seconds()
    for cause in BlockedBy:
        exact = sum(max(0.0, end - max(start, now_s - WINDOW_S)) for start, end, of in spans if of is cause)
        assert exact - 1 - 1e-6 <= seconds[cause] <= exact + 1e-6
