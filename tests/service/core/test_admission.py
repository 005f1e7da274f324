"""Slots and bytes: who starts, who waits, who is refused, and what is told of it."""

import pytest
from core_cases import Desk

from gpuwatch.service.core.admission import SCAN
from gpuwatch.service.core.decisions import Ask, Grant
from gpuwatch.storage.knobs import GIB, MIB
from gpuwatch.storage.records import BlockedBy, Outcome

MANY: dict[str, object] = {"lanes.a.concurrency": 1024, "lanes.b.concurrency": 1024}
ONE: dict[str, object] = {"lanes.a.concurrency": 1, "lanes.b.concurrency": 1}


def test_the_promise_is_made_with_the_answer() -> None:
    desk = Desk()
    first = desk.ask(3 * GIB)
    assert first == Grant(ticket=1, gpu=0, promised_bytes=3 * GIB, waited_s=0.0, blocked_by=None)
    assert desk.admission.cards[0].ledger.available_bytes == desk.capacity_bytes - 3 * GIB
    desk.waits(3 * GIB)


def test_a_lane_that_does_not_exist_raises_and_leaves_no_trace() -> None:
    desk = Desk()
    with pytest.raises(KeyError):
        desk.ask(lane="nowhere")
    assert desk.admission.waiting == desk.admission.in_flight == 0


def test_a_ticket_that_runs_or_waits_cannot_ask_again() -> None:
    desk = Desk(ONE)
    for ticket in (desk.granted(), desk.waits()):
        with pytest.raises(ValueError, match="in use"):
            desk.admission.ask(desk.now_s, Ask(ticket=ticket, lane="b", price_bytes=1))
    assert (desk.admission.in_flight, desk.admission.waiting) == (1, 1)


def test_a_run_ends_once() -> None:
    desk = Desk()
    ticket = desk.granted()
    desk.settle(ticket)
    with pytest.raises(KeyError):
        desk.settle(ticket)
    with pytest.raises(KeyError):
        desk.admission.orphan(desk.now_s, ticket)
    assert desk.admission.lanes["a"].running == 0


def test_an_orphan_holds_slot_and_promise_until_its_work_has_ended() -> None:
    desk = Desk(ONE)
    ticket = desk.granted(GIB)
    desk.admission.orphan(desk.now_s, ticket)
    desk.admission.orphan(desk.now_s, ticket)
    waiter = desk.waits()
    (run,) = desk.admission.runs()
    assert (run.orphan, run.promised_bytes, desk.admission.lanes["a"].orphans) == (True, GIB, 1)
    assert desk.settle(ticket) == [waiter]
    assert desk.admission.lanes["a"].orphans == 0


# -- slots -----------------------------------------------------------------------------------------------------------


def test_a_paused_lane_waits_for_slots_and_starts_in_the_call_that_raises_its_limit() -> None:
    desk = Desk({"lanes.a.concurrency": 0})
    waiting = [desk.waits() for _ in range(3)]
    assert desk.admission.statistics(desk.now_s)[0].blocked_by is BlockedBy.SLOTS
    assert desk.turn({"lanes.a.concurrency": 2}) == waiting[:2]


def test_raising_a_limit_starts_everyone_it_has_room_for_however_many_they_are() -> None:
    desk = Desk({"lanes.a.concurrency": 0, "lanes.a.queue_limit": 1000})
    waiting = [desk.waits(1) for _ in range(5 * SCAN)]
    assert desk.turn({"lanes.a.concurrency": 1000}) == waiting


def test_lowering_a_limit_cancels_nothing_and_starts_nobody_until_it_has_drained() -> None:
    desk = Desk()
    running = [desk.granted() for _ in range(4)]
    waiting = desk.waits()
    assert desk.turn({"lanes.a.concurrency": 2}) == []
    assert desk.admission.statistics(desk.now_s)[0].draining
    assert [desk.settle(ticket) for ticket in running] == [[], [], [waiting], []]


def test_lanes_have_slots_of_their_own() -> None:
    desk = Desk(ONE)
    desk.granted(lane="a")
    desk.granted(lane="b")
    desk.waits(lane="a")


# -- the queue's cap -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_one_more_than_the_queue_takes_is_refused_and_told_how_many_wait(limit: int) -> None:
    desk = Desk(ONE | {"lanes.a.queue_limit": limit})
    desk.granted()
    for _ in range(limit):
        desk.waits()
    refusal = desk.refused()
    assert (refusal.reason, refusal.waiting, refusal.blocked_by) == (Outcome.QUEUE_FULL, limit, BlockedBy.SLOTS)
    assert desk.admission.waiting == limit


def test_a_lowered_queue_limit_sends_nobody_away() -> None:
    desk = Desk(ONE)
    running, waiting = desk.granted(), [desk.waits() for _ in range(3)]
    assert desk.turn({"lanes.a.queue_limit": 0}) == []
    assert desk.settle(running) == waiting[:1]


# -- bytes -----------------------------------------------------------------------------------------------------------


def test_what_no_empty_card_could_hold_is_refused_for_good_with_what_it_could() -> None:
    desk = Desk()
    desk.granted(GIB)
    refusal = desk.refused(desk.capacity_bytes + 1)
    assert refusal.reason is Outcome.TOO_LARGE
    assert (refusal.retry_after_s, refusal.capacity_bytes) == (None, desk.capacity_bytes)


def test_too_large_is_measured_against_the_card_that_could_hold_most() -> None:
    desk = Desk(MANY, gpus=2)
    desk.admission.cards[1].ledger.weigh(2 * GIB)
    most = desk.capacity_bytes
    desk.granted(most)
    refusal = desk.refused(most + 1)
    assert refusal.capacity_bytes == most
    desk.waits(most)


def test_a_neighbour_makes_nothing_too_large() -> None:
    desk = Desk()
    price = desk.capacity_bytes
    desk.observe(4 * GIB)
    desk.waits(price)


def test_no_room_is_refused_where_the_budget_says_so_but_a_slot_is_waited_for() -> None:
    desk = Desk(ONE | {"budget.action": "refuse"})
    running = desk.granted(3 * GIB)
    refusal = desk.refused(3 * GIB, lane="b")
    assert (refusal.reason, refusal.blocked_by) == (Outcome.NO_ROOM, BlockedBy.BYTES)
    assert refusal.available_bytes == desk.capacity_bytes - 3 * GIB
    waiter = desk.waits(MIB)
    assert desk.settle(running) == [waiter]


def test_without_a_budget_only_slots_count() -> None:
    desk = Desk({"budget.mode": "off", "lanes.a.concurrency": 2})
    desk.granted(100 * GIB)
    desk.granted(None)
    assert desk.admission.statistics(desk.now_s)[0].blocked_by is None
    waiter = desk.waits(100 * GIB)
    assert desk.settle(1) == [waiter]


def test_unknown_prices_run_alone_one_after_the_other() -> None:
    desk = Desk()
    first = desk.granted(None)
    second, priced = desk.waits(None), desk.waits(1)
    assert desk.settle(first) == [second]
    assert desk.settle(second) == [priced]


def test_a_run_of_unknown_price_is_alone_even_when_the_budget_was_off_as_it_began() -> None:
    desk = Desk({"budget.mode": "off"})
    first = desk.granted(None)
    desk.turn({"budget.mode": "on"})
    waiting = [desk.waits(None), desk.waits(1)]
    assert desk.settle(first) == waiting[:1]


# -- what is told ----------------------------------------------------------------------------------------------------


def test_a_grant_tells_how_long_it_waited_and_for_what_first() -> None:
    desk = Desk(ONE)
    running = desk.granted(3 * GIB)
    waiting = desk.waits(MIB)
    desk.now_s += 1.5
    (grant,) = desk.admission.settle(desk.now_s, running, ok=True)
    assert grant == Grant(ticket=waiting, gpu=0, promised_bytes=MIB, waited_s=1.5, blocked_by=BlockedBy.SLOTS)


def test_a_lane_is_described_by_its_head() -> None:
    desk = Desk(MANY | {"lanes.a.concurrency": 1})
    desk.granted(MIB)
    desk.waits(GIB)
    desk.waits(MIB)
    desk.now_s += 1.5
    facts = desk.admission.statistics(desk.now_s)[0]
    assert (facts.oldest_wait_s, facts.head_price_bytes, facts.waiting) == (1.5, GIB, 2)
    assert facts.fits_now == (desk.capacity_bytes - MIB) // GIB
    assert facts.blocked_60s[BlockedBy.SLOTS] == pytest.approx(1.5)


def test_an_idle_lane_is_blocked_by_nothing() -> None:
    facts = Desk().admission.statistics(100.0)[0]
    assert (facts.blocked_by, facts.oldest_wait_s, facts.head_price_bytes, facts.fits_now) == (None,) * 4
    assert sum(facts.blocked_60s.values()) == 0
