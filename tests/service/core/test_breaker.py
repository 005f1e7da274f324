from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.core.breaker import TABLE, BreakerEvent, CircuitBreaker, IllegalTransition
from gpuwatch.storage.records import Breaker

PROBE = 7


def breaker(state: Breaker = Breaker.CLOSED, probe: int | None = None) -> CircuitBreaker:
    made = CircuitBreaker(trip_ratio=0.95, cooldown_s=5.0)
    made.state, made.since_s, made.probe = state, 10.0, probe
    return made


def facts(made: CircuitBreaker) -> tuple[Breaker, float, int | None]:
    return made.state, made.since_s, made.probe


@pytest.mark.parametrize(("state", "event"), sorted(product(Breaker, BreakerEvent)))
def test_an_event_follows_the_table_or_raises_and_changes_nothing(state: Breaker, event: BreakerEvent) -> None:
    made = breaker(state, probe=PROBE)
    before = facts(made)
    if (state, event) in TABLE:
        made.happen(20.0, event)
        assert facts(made) == (TABLE[state, event], 20.0, None)
    else:
        with pytest.raises(IllegalTransition, match=event):
            made.happen(20.0, event)
        assert facts(made) == before


def test_nothing_leads_out_of_fatal() -> None:
    made = breaker(Breaker.FATAL)
    for ratio in (0.1, 0.99):
        made.observe(1000.0, ratio)
    made.ended(1000.0, PROBE, ok=True)
    assert made.state is Breaker.FATAL
    assert not made.lets_through


def test_it_trips_at_the_mark_itself_and_not_below() -> None:
    made = breaker()
    made.observe(1.0, 0.9499)
    assert made.state is Breaker.CLOSED
    made.observe(2.0, 0.95)
    assert facts(made) == (Breaker.OPEN, 2.0, None)


def test_it_stays_open_until_the_cooldown_has_passed_since_the_card_was_last_too_full() -> None:
    made = breaker()
    made.observe(0.0, 0.99)
    made.observe(4.0, 0.99)
    made.observe(8.9, 0.1)
    assert facts(made) == (Breaker.OPEN, 4.0, None)
    made.observe(9.0, 0.1)
    assert facts(made) == (Breaker.HALF_OPEN, 9.0, None)


def test_half_open_lets_exactly_one_run_through() -> None:
    made = breaker(Breaker.HALF_OPEN)
    assert made.lets_through
    made.start(PROBE)
    assert not made.lets_through


@pytest.mark.parametrize(("ok", "after"), [(True, Breaker.CLOSED), (False, Breaker.OPEN)])
def test_the_probes_end_decides(ok: bool, after: Breaker) -> None:  # noqa: FBT001 - a case's value
    made = breaker(Breaker.HALF_OPEN)
    made.start(PROBE)
    made.ended(20.0, PROBE, ok=ok)
    assert facts(made) == (after, 20.0, None)


def test_the_end_of_a_run_that_is_no_probe_decides_nothing() -> None:
    made = breaker(Breaker.HALF_OPEN, probe=PROBE)
    made.ended(20.0, PROBE + 1, ok=True)
    made.ended(20.0, PROBE + 1, ok=False)
    assert facts(made) == (Breaker.HALF_OPEN, 10.0, PROBE)


def test_an_old_probe_decides_nothing_once_the_breaker_has_tripped_again() -> None:
    made = breaker(Breaker.HALF_OPEN, probe=PROBE)
    made.observe(20.0, 0.99)
    made.observe(30.0, 0.1)
    made.start(PROBE + 1)
    made.ended(31.0, PROBE, ok=True)
    assert facts(made) == (Breaker.HALF_OPEN, 30.0, PROBE + 1)


def test_a_probe_that_ends_twice_decides_once() -> None:
    made = breaker(Breaker.HALF_OPEN, probe=PROBE)
    made.ended(20.0, PROBE, ok=False)
    made.ended(21.0, PROBE, ok=True)
    assert facts(made) == (Breaker.OPEN, 20.0, None)


@given(
    st.lists(
        st.tuples(st.sampled_from(["read", "start", "end"]), st.floats(0, 1), st.booleans(), st.floats(0, 6)),
        max_size=50,
    )
)
def test_no_order_of_readings_and_runs_is_illegal_or_leaves_a_probe_behind(
    steps: list[tuple[str, float, bool, float]],
) -> None:
    made = breaker()
    running: list[int] = []
    now_s = 10.0
    for ticket, (step, ratio, ok, gap_s) in enumerate(steps):
        now_s += gap_s
        if step == "read":
            made.observe(now_s, ratio)
        elif step == "start" and made.lets_through:
            made.start(ticket)
            running.append(ticket)
        elif step == "end" and running:
            made.ended(now_s, running.pop(0), ok=ok)
        assert made.probe is None or (made.state is Breaker.HALF_OPEN and made.probe in running)
