"""What readings, breakers, lost cards and the way down do to those who ask and wait."""

import pytest
from core_cases import TOTAL_BYTES, Desk, tickets

from gpuwatch.service.core.decisions import Refuse
from gpuwatch.storage.knobs import GIB, MIB
from gpuwatch.storage.records import BlockedBy, Breaker, Outcome

HIGH = int(0.86 * TOTAL_BYTES)
FULL = TOTAL_BYTES
QUICK: dict[str, object] = {"breaker.cooldown_s": 1.0, "lanes.a.concurrency": 100}


def expired(desk: Desk, ticket: int) -> Refuse:
    (refusal,) = desk.admission.expire(desk.now_s, ticket)
    assert isinstance(refusal, Refuse)
    return refusal


def half_open() -> tuple[Desk, list[int]]:
    """Trip the breaker with three waiting, and cool it: the first of them is the probe."""
    desk = Desk(QUICK)
    desk.observe(HIGH)
    waiting = [desk.waits() for _ in range(3)]
    desk.observe(FULL)
    desk.now_s += 1.0
    assert desk.observe() == waiting[:1]
    return desk, waiting


def breaker(desk: Desk) -> Breaker:
    return desk.admission.cards[0].breaker.state


# -- readings --------------------------------------------------------------------------------------------------------


def test_before_the_first_reading_all_wait_and_the_reading_starts_them() -> None:
    desk = Desk(read=False)
    waiting = [desk.waits(1), desk.waits(1)]
    assert desk.admission.statistics(desk.now_s)[0].blocked_by is BlockedBy.STALE
    assert desk.observe() == waiting


def test_nothing_starts_on_stale_readings_and_the_deadline_says_so() -> None:
    desk = Desk({"lanes.a.concurrency": 1})
    running = desk.granted()
    first, second = desk.waits(), desk.waits()
    desk.now_s += 3.0
    assert desk.settle(running) == []
    refusal = expired(desk, first)
    assert (refusal.reason, refusal.blocked_by, refusal.waited_s) == (Outcome.GPU_STALE, BlockedBy.STALE, 3.0)
    assert desk.observe() == [second]


def test_stale_readings_are_believed_where_the_operator_says_so_in_the_call_that_says_it() -> None:
    desk = Desk({})
    desk.now_s += 100.0
    waiter = desk.waits()
    assert desk.turn({"watermark.on_stale": "open"}) == [waiter]
    desk.granted()


def test_high_pressure_keeps_newcomers_waiting_until_it_is_below_the_low_mark() -> None:
    desk = Desk()
    desk.observe(HIGH)
    waiter = desk.waits()
    assert expired(desk, desk.waits()).blocked_by is BlockedBy.WATERMARK
    assert desk.observe(int(0.79 * TOTAL_BYTES)) == []
    assert desk.observe(int(0.70 * TOTAL_BYTES)) == [waiter]


def test_high_pressure_refuses_newcomers_where_it_should_and_keeps_those_who_wait() -> None:
    desk = Desk()
    desk.observe(HIGH)
    waiter = desk.waits()
    desk.turn({"watermark.action": "refuse"})
    refusal = desk.refused()
    assert (refusal.reason, refusal.blocked_by) == (Outcome.WATERMARK, BlockedBy.WATERMARK)
    assert refusal.retry_after_s is not None
    assert desk.observe() == [waiter]


def test_a_raised_mark_starts_waiters_in_the_same_call() -> None:
    desk = Desk({"budget.mode": "off"})
    desk.observe(HIGH)
    waiter = desk.waits()
    assert desk.turn({"watermark.high": 0.99, "watermark.low": 0.98}) == [waiter]


def test_a_lowered_mark_keeps_back_what_the_same_call_would_have_started() -> None:
    desk = Desk({"budget.mode": "off", "lanes.a.concurrency": 0})
    desk.observe(5 * GIB)
    desk.waits()
    assert desk.turn({"lanes.a.concurrency": 4, "watermark.high": 0.5, "watermark.low": 0.4}) == []


# -- the breaker -----------------------------------------------------------------------------------------------------


def test_an_open_breaker_refuses_newcomers_and_keeps_those_who_wait() -> None:
    desk = Desk({"lanes.a.concurrency": 0})
    waiter = desk.waits()
    desk.observe(FULL)
    refusal = desk.refused()
    assert (refusal.reason, refusal.blocked_by) == (Outcome.BREAKER_OPEN, BlockedBy.BREAKER)
    assert expired(desk, waiter).blocked_by is BlockedBy.BREAKER


def test_half_open_starts_one_and_refuses_newcomers_while_it_runs() -> None:
    desk, _ = half_open()
    assert desk.admission.in_flight == 1
    assert desk.refused().reason is Outcome.BREAKER_OPEN


def test_a_probe_that_ends_well_closes_the_breaker_and_starts_the_others_in_the_same_call() -> None:
    desk, waiting = half_open()
    assert desk.settle(waiting[0]) == waiting[1:]
    assert breaker(desk) is Breaker.CLOSED


def test_a_probe_that_fails_opens_the_breaker_again() -> None:
    desk, waiting = half_open()
    assert desk.settle(waiting[0], ok=False) == []
    assert breaker(desk) is Breaker.OPEN
    desk.now_s += 1.0
    assert desk.observe() == [waiting[1]]


def test_an_orphaned_probe_opens_the_breaker_and_its_late_end_closes_nothing() -> None:
    desk, waiting = half_open()
    desk.admission.orphan(desk.now_s, waiting[0])
    assert breaker(desk) is Breaker.OPEN
    assert desk.settle(waiting[0], ok=True) == []
    assert breaker(desk) is Breaker.OPEN


def test_an_orphan_from_before_is_no_probe() -> None:
    desk = Desk(QUICK)
    old = desk.granted()
    desk.observe(HIGH)
    waiting = [desk.waits(), desk.waits()]
    desk.observe(FULL)
    desk.now_s += 1.0
    desk.observe()
    desk.admission.orphan(desk.now_s, old)
    assert desk.settle(old) == []
    assert desk.settle(waiting[0]) == waiting[1:]


# -- lost cards ------------------------------------------------------------------------------------------------------


def test_when_the_last_card_is_lost_all_who_wait_and_come_are_refused_at_once() -> None:
    desk = Desk({"lanes.a.concurrency": 1})
    running = desk.granted(GIB)
    waiting = [desk.waits(), desk.waits()]
    refusals = desk.admission.lose(desk.now_s, 0)
    assert [(d.ticket, d.reason) for d in refusals if isinstance(d, Refuse)] == [
        (ticket, Outcome.GPU_LOST) for ticket in waiting
    ]
    refusal = desk.refused()
    assert (refusal.reason, refusal.available_bytes, refusal.capacity_bytes) == (Outcome.GPU_LOST, None, None)
    assert desk.settle(running, ok=False) == []
    assert desk.admission.cards[0].ledger.promised_bytes == 0
    desk.observe()
    desk.granted()


def test_a_service_without_a_card_says_that_there_is_none() -> None:
    assert Desk(gpus=0).refused().reason is Outcome.GPU_LOST


def test_the_other_card_goes_on() -> None:
    desk = Desk(gpus=2)
    assert desk.admission.lose(desk.now_s, 0) == ()
    desk.granted()
    assert [run.gpu for run in desk.admission.runs()] == [1]


def test_those_behind_an_elder_that_waited_for_the_lost_card_start_in_the_call_that_loses_it() -> None:
    desk = Desk({"lanes.a.concurrency": 100}, gpus=2)
    desk.observe(5 * GIB, gpu=1)
    desk.granted(3 * GIB)
    desk.waits(4 * GIB)
    desk.now_s += 3.0
    desk.observe(5 * GIB, gpu=1)
    desk.observe()
    small = desk.waits(MIB)
    assert tickets(desk.admission.lose(desk.now_s, 0)) == [small]


@pytest.mark.parametrize(("foreign", "reason"), [(FULL, Outcome.BREAKER_OPEN), (HIGH, Outcome.WATERMARK)])
def test_a_lost_card_is_no_hope_for_those_whom_the_other_refuses(foreign: int, reason: Outcome) -> None:
    desk = Desk({"watermark.action": "refuse"}, gpus=2)
    desk.observe(foreign, gpu=1)
    desk.admission.lose(desk.now_s, 0)
    assert desk.refused().reason is reason


def test_two_cards_are_filled_by_the_one_with_more_room() -> None:
    desk = Desk({"lanes.a.concurrency": 100}, gpus=2)
    for _ in range(4):
        desk.granted(GIB)
    assert sorted(run.gpu for run in desk.admission.runs()) == [0, 0, 1, 1]


# -- the way down ----------------------------------------------------------------------------------------------------


def test_draining_refuses_newcomers_and_serves_those_who_wait() -> None:
    desk = Desk({"lanes.a.concurrency": 1})
    running, waiting = desk.granted(), desk.waits()
    desk.admission.drain()
    assert desk.refused().reason is Outcome.DRAINING
    assert desk.settle(running) == [waiting]


def test_shutting_refuses_all_who_wait_and_lets_runs_end() -> None:
    desk = Desk({"lanes.a.concurrency": 1})
    running, waiting = desk.granted(), desk.waits()
    (refusal,) = desk.admission.shut(desk.now_s)
    assert isinstance(refusal, Refuse)
    assert (refusal.ticket, refusal.reason) == (waiting, Outcome.SHUTDOWN)
    assert desk.admission.shut(desk.now_s) == ()
    assert desk.settle(running) == []
    assert desk.refused().reason is Outcome.DRAINING


def test_who_waits_no_more_can_neither_leave_nor_expire() -> None:
    desk = Desk({"lanes.a.concurrency": 1})
    running, first, second = desk.granted(), desk.waits(), desk.waits()
    desk.admission.leave(desk.now_s, first)
    expired(desk, second)
    for ticket in (running, first, second, 99):
        assert desk.admission.leave(desk.now_s, ticket) == desk.admission.expire(desk.now_s, ticket) == ()
    assert (desk.admission.in_flight, desk.admission.waiting) == (1, 0)
