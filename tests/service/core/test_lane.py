from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.core.lane import Lane
from gpuwatch.storage.knobs import Knobs

KNOBS = Knobs.defaults().by_lane["default"]


def lane(concurrency: int = 2) -> Lane:
    return Lane("default", replace(KNOBS, concurrency=concurrency))


def state(made: Lane) -> tuple[int, int, float]:
    return made.running, made.orphans, made.retry_after_s(0)


def test_no_more_runs_start_than_the_limit() -> None:
    made = lane(2)
    made.take()
    made.take()
    assert not made.has_slot
    with pytest.raises(ValueError, match="no free slot"):
        made.take()
    assert made.running == 2


def test_a_limit_of_nought_gives_no_slot_and_is_not_draining() -> None:
    made = lane(0)
    assert not made.has_slot
    assert not made.draining


def test_lowering_the_limit_drains_and_takes_nothing_away() -> None:
    made = lane(3)
    for _ in range(3):
        made.take()
    made.knobs = replace(KNOBS, concurrency=1)
    assert (made.running, made.draining, made.has_slot) == (3, True, False)
    made.give(orphan=False, run_s=1.0)
    made.give(orphan=False, run_s=1.0)
    assert (made.running, made.draining, made.has_slot) == (1, False, False)


@pytest.mark.parametrize(("running", "orphan"), [(0, False), (0, True), (1, True)])
def test_a_slot_that_was_never_taken_cannot_come_back(running: int, orphan: bool) -> None:  # noqa: FBT001 - a case's value
    made = lane()
    for _ in range(running):
        made.take()
    before = state(made)
    with pytest.raises(ValueError, match="never taken"):
        made.give(orphan=orphan, run_s=9.0)
    assert state(made) == before


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "orphan", "turn"]), st.integers(0, 4)), max_size=60))
def test_slots_are_conserved_under_any_order(steps: list[tuple[str, int]]) -> None:
    made = lane(2)
    running = 0
    for step, number in steps:
        if step == "turn":
            made.knobs = replace(KNOBS, concurrency=number)
        elif step == "take" and made.has_slot:
            made.take()
            running += 1
        elif step == "orphan" and made.orphans < running:
            made.orphans += 1
        elif step == "give" and running:
            orphan = made.orphans == running
            made.give(orphan=orphan, run_s=float(number))
            running -= 1
        assert made.running == running
        assert 0 <= made.orphans <= made.running
        assert made.has_slot == (running < made.knobs.concurrency)
        assert made.draining == (running > made.knobs.concurrency)


@given(
    runs=st.lists(st.floats(0, 1e6), max_size=20),
    waiting=st.integers(0, 100_000),
    concurrency=st.integers(0, 1024),
)
def test_the_retry_time_is_never_negative_and_at_most_a_minute(
    runs: list[float], waiting: int, concurrency: int
) -> None:
    made = lane(1)
    for run_s in runs:
        made.take()
        made.give(orphan=False, run_s=run_s)
    made.knobs = replace(KNOBS, concurrency=concurrency)
    assert 0 <= made.retry_after_s(waiting) <= 60


def test_the_retry_time_grows_with_those_ahead_and_shrinks_with_the_limit() -> None:
    one, many = lane(1), lane(10)
    assert one.retry_after_s(0) < one.retry_after_s(5)
    assert many.retry_after_s(5) < one.retry_after_s(5)


def test_the_retry_time_follows_the_measured_runs() -> None:
    made = lane(1)
    for _ in range(50):
        made.take()
        made.give(orphan=False, run_s=4.0)
    assert made.retry_after_s(1) == pytest.approx(8.0)
