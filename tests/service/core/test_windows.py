"""The last 60 seconds of a lane: what is in them, what has left them, and nearest-rank percentiles."""

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.core.windows import KEEP, WINDOW_S, Window, percentile
from gpuwatch.storage.records import Outcome

LATENCIES = st.lists(st.floats(0, 1e6), min_size=1, max_size=200)


def test_nothing_seen_is_none_and_not_zero() -> None:
    facts = Window().facts(100.0)
    assert (facts.ok, facts.refused, facts.p50_ms, facts.p99_ms, facts.run_p99_ms) == (0, {}, None, None, None)
    assert facts.span_s == 0.0


def test_answers_and_refusals_are_told_apart_and_percentiles_are_of_answers_alone() -> None:
    window = Window()
    for total_ms in (10.0, 20.0, 30.0):
        window.add(0.0, Outcome.OK, total_ms, total_ms / 2)
    window.add(1.0, Outcome.QUEUE_FULL, 100_000.0, None)
    window.add(1.0, Outcome.CLIENT_GONE, 100_000.0, 99_999.0)
    facts = window.facts(10.0)
    assert (facts.ok, facts.refused) == (3, {"queue-full": 1})
    assert (facts.p50_ms, facts.p99_ms, facts.run_p99_ms) == (20.0, 30.0, 15.0)
    assert facts.span_s == 10.0


def test_what_is_older_than_the_window_leaves_it_but_stays_counted_since_the_start() -> None:
    window = Window()
    window.add(0.0, Outcome.OK, 1.0, None)
    window.add(30.0, Outcome.OK, 2.0, None)
    assert window.facts(WINDOW_S).ok == 2
    facts = window.facts(WINDOW_S + 0.001)
    assert (facts.ok, facts.p50_ms, facts.run_p99_ms) == (1, 2.0, None)
    assert facts.outcomes == {"ok": 2}


def test_a_busy_lane_keeps_the_newest_and_says_how_far_back_they_reach() -> None:
    window = Window()
    for number in range(KEEP + 100):
        window.add(number / 1000, Outcome.OK, float(number), None)
    facts = window.facts((KEEP + 99) / 1000)
    assert facts.ok == KEEP
    assert facts.outcomes == {"ok": KEEP + 100}
    assert facts.span_s == pytest.approx((KEEP - 1) / 1000)


@given(LATENCIES, st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_the_smallest_that_enough_do_not_exceed(values: list[float], share: float) -> None:
    ordered = sorted(values)
    found = percentile(ordered, share)
    assert found in ordered
    assert found is not None
    needed = ceil(share * len(ordered))
    assert sum(value <= found for value in ordered) >= needed
    assert sum(value < found for value in ordered) < needed


def test_no_values_have_no_percentile() -> None:
    assert percentile([], 0.5) is None
