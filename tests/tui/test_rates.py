"""Rates come from counters that only grow, within one life of the service."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.storage.state import LaneState, ServiceState, State
from gpuwatch.tui.rates import WINDOW_S, Rates, Tally, follow, rates, tally


def over(*states: State) -> Rates | None:
    window: tuple[Tally, ...] = ()
    for state in states:
        window = follow(window, tally(state))
    return rates(window)


def state(at: float, outcomes: Mapping[str, int], *, inside: int = 0, began: float = 0.0) -> State:
    return State(
        at=at, service=ServiceState(started_at=began), lanes=(LaneState(name="a", outcomes=outcomes, waiting=inside),)
    )


def test_answers_refusals_and_arrivals_a_second() -> None:
    found = over(
        state(0, {"ok": 0}), state(4, {"ok": 8, "queue-full": 4, "queue-timeout": 2, "client-gone": 2}, inside=4)
    )
    assert found is not None
    assert (found.ok, found.gone, found.arrived) == (2.0, 0.5, 5.0)
    assert found.refused == (("queue-full", 1.0), ("queue-timeout", 0.5))
    assert found.refused_all == 1.5


def test_requests_that_still_wait_have_arrived() -> None:
    found = over(state(0, {}), state(2, {}, inside=10))
    assert found is not None
    assert found.arrived == 5.0


@pytest.mark.parametrize(
    "after",
    [state(9, {"ok": 1}, began=8), state(9, {"ok": 4}), state(-1, {"ok": 9})],
    ids=["restart", "fewer", "clock"],
)
def test_another_life_of_the_service_gives_no_rate_rather_than_a_wrong_one(after: State) -> None:
    assert over(state(0, {"ok": 5}), after) is None


def test_the_same_state_told_twice_costs_no_rate() -> None:
    found = over(state(0, {"ok": 0}), state(4, {"ok": 8}), state(4, {"ok": 8}))
    assert found is not None
    assert found.ok == 2.0


@given(st.lists(st.tuples(st.floats(-5, 30), st.integers(-3, 50), st.integers(0, 9)), max_size=40))
def test_whatever_the_counters_do_rates_are_no_less_than_nothing_and_the_window_is_bounded(
    steps: list[tuple[float, int, int]],
) -> None:
    window: tuple[Tally, ...] = ()
    at, ok = 0.0, 0
    for step_s, more, inside in steps:
        at, ok = at + step_s, max(0, ok + more)
        window = follow(window, tally(state(at, {"ok": ok}, inside=inside)))
        assert all(one.at >= at - WINDOW_S for one in window[1:-1])
        found = rates(window)
        if found is not None:
            assert min(found.arrived, found.ok, found.gone, found.refused_all) >= 0


def test_the_window_slides() -> None:
    found = over(*(state(n, {"ok": 100 if n > 20 else 0}) for n in range(60)))
    assert found is not None
    assert found.ok == 0
