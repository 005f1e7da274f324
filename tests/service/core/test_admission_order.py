"""Who of those who wait starts next, and who may pass whom."""

import pytest
from core_cases import Desk, tickets
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.service.core.decisions import Ask, Grant, Refuse, Wait
from gpuwatch.storage.knobs import GIB, MIB
from gpuwatch.storage.records import BlockedBy

MANY: dict[str, object] = {"lanes.a.concurrency": 1024, "lanes.b.concurrency": 1024}
ONE: dict[str, object] = {"lanes.a.concurrency": 1, "lanes.b.concurrency": 1}
LARGE = 4 * GIB
SCAN = 32
ARRIVALS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 0.5, 1.0, 3.0])), max_size=40)


@given(arrivals=ARRIVALS, priorities=st.tuples(*[st.integers(0, 9)] * 3), leaving=st.sets(st.integers(1, 40)))
def test_waiters_start_in_the_order_of_arrival_plus_priority_times_ageing(
    arrivals: list[tuple[str, float]], priorities: tuple[int, int, int], leaving: set[int]
) -> None:
    paused: dict[str, object] = {f"lanes.{lane}.concurrency": 0 for lane in "abc"}
    desk = Desk(paused, lanes="abc")
    due: list[tuple[float, int]] = []
    for lane, gap_s in arrivals:
        desk.now_s += gap_s
        due.append((desk.now_s + 2.0 * priorities["abc".index(lane)], desk.waits(1, lane)))
    for ticket in leaving:
        desk.admission.leave(desk.now_s, ticket)
    desk.observe()
    opened: dict[str, object] = {f"lanes.{lane}.concurrency": 1024 for lane in "abc"}
    opened |= {f"lanes.{lane}.priority": priority for lane, priority in zip("abc", priorities, strict=True)}
    assert desk.turn(opened) == [ticket for _, ticket in sorted(due) if ticket not in leaving]


def test_inside_a_lane_the_order_is_that_of_arrival_though_the_clock_stands_still() -> None:
    desk = Desk(ONE)
    running = desk.granted()
    for ticket in (30, 20, 10):
        desk.admission.ask(desk.now_s, Ask(ticket=ticket, lane="a", price_bytes=1))
    assert desk.settle(running) == [30]
    assert desk.settle(30) == [20]


def test_small_requests_pass_a_large_one_until_it_has_aged() -> None:
    desk = Desk(MANY)
    running = desk.granted(3 * GIB)
    large = desk.waits(LARGE)
    desk.now_s += 2.0
    small = desk.granted(MIB)
    desk.now_s += 0.001
    late = desk.waits(MIB)
    other = desk.waits(MIB, lane="b")
    assert desk.settle(small) == []
    desk.observe()
    assert desk.settle(running) == [large, late, other]


def test_one_that_stands_behind_an_elder_waits_for_bytes_too() -> None:
    desk = Desk(MANY)
    desk.granted(3 * GIB)
    desk.waits(LARGE)
    desk.now_s += 3.0
    desk.observe()
    own = desk.ask(MIB, lane="b")
    assert isinstance(own, Wait)
    assert own.blocked_by is BlockedBy.BYTES
    by_name = {facts.name: facts for facts in desk.admission.statistics(desk.now_s)}
    assert by_name["b"].blocked_by is BlockedBy.BYTES


@pytest.mark.parametrize("price", [LARGE, None])
def test_those_behind_an_elder_start_in_the_call_that_takes_it_away(price: int | None) -> None:
    desk = Desk(MANY)
    running = desk.granted(3 * GIB)
    leaving, expiring = desk.waits(price), desk.waits(price, lane="b")
    desk.now_s += 3.0
    desk.observe()
    behind_both = desk.waits(MIB)
    assert desk.admission.leave(desk.now_s, leaving) == ()
    refusal, *grants = desk.admission.expire(desk.now_s, expiring)
    assert isinstance(refusal, Refuse)
    assert tickets(grants) == [behind_both]
    leaving = desk.waits(price)
    desk.now_s += 3.0
    desk.observe()
    behind_one = desk.waits(MIB)
    assert tickets(desk.admission.leave(desk.now_s, leaving)) == [behind_one]
    assert desk.settle(running) == []


def test_an_elder_that_waits_for_a_neighbours_memory_stops_nobody() -> None:
    desk = Desk(MANY)
    desk.observe(4 * GIB)
    desk.waits(LARGE)
    desk.now_s += 100.0
    desk.observe(4 * GIB)
    desk.granted(MIB)


def test_an_elder_whose_lane_has_no_slot_stops_nobody() -> None:
    desk = Desk(MANY | {"lanes.b.concurrency": 1})
    desk.granted(2 * GIB)
    desk.granted(2 * GIB, lane="b")
    desk.waits(LARGE, lane="b")
    desk.now_s += 100.0
    desk.observe()
    desk.granted(MIB)


def test_a_lane_full_of_what_cannot_start_hides_nobody_in_another() -> None:
    desk = Desk(MANY)
    desk.observe(4 * GIB)
    for _ in range(2 * SCAN):
        desk.waits(LARGE)
    desk.granted(MIB, lane="b")


def test_a_lane_is_searched_to_the_end_of_its_first_waiters_and_no_further() -> None:
    desk = Desk(MANY)
    desk.observe(4 * GIB)
    for _ in range(SCAN - 1):
        desk.waits(LARGE)
    desk.granted(MIB)
    desk.waits(LARGE)
    desk.waits(MIB)


def test_a_smaller_price_is_tried_after_one_that_did_not_fit_and_an_unknown_one() -> None:
    desk = Desk(MANY | {"lanes.a.concurrency": 1})
    running, _ = desk.granted(1), desk.granted(GIB, lane="b")
    room = desk.capacity_bytes - GIB
    for price in (LARGE, None, room + 1):
        desk.waits(price)
    fitting = desk.waits(room)
    assert desk.settle(running) == [fitting]


SMALL = st.tuples(st.sampled_from("ab"), st.integers(1, 2 * GIB), st.floats(0.05, 1.0), st.floats(0.1, 2.0))


@settings(max_examples=40)
@given(pattern=st.lists(SMALL, min_size=1, max_size=12), lane=st.sampled_from("ab"), priority=st.integers(0, 9))
def test_a_large_request_is_not_starved_by_small_ones_whatever_their_lane_and_its_priority(
    pattern: list[tuple[str, int, float, float]], lane: str, priority: int
) -> None:
    """It comes to the front of the order in time, stops the overtaking there, and the longest run then ends."""
    desk = Desk(MANY | {f"lanes.{name}.queue_limit": 1000 for name in "ab"} | {f"lanes.{lane}.priority": priority})
    ends = [(desk.now_s + 2.0, desk.granted(GIB)) for _ in range(4)]
    large, came_s = desk.waits(desk.capacity_bytes, lane), desk.now_s
    bound_s = 2.0 * (max(0, priority - 5) + 1) + 2.0 + 1.0  # its place in the order, the longest run, one gap
    for step in range(10_000):
        small_lane, price, gap_s, run_s = pattern[step % len(pattern)]
        desk.now_s += gap_s
        started = desk.observe()
        for end in sorted(end for end in ends if end[0] <= desk.now_s):
            ends.remove(end)
            started += desk.settle(end[1])
        small = desk.ask(price, small_lane)
        started += [small.ticket] if isinstance(small, Grant) else []
        if large in started:
            break
        assert desk.now_s - came_s <= bound_s + gap_s
        ends += [(desk.now_s + run_s, ticket) for ticket in started]
    assert large in started
