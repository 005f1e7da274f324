"""The gate's races: grants, cancellations, deadlines and turned knobs that meet in one tick of the loop."""

import asyncio
import time
from collections.abc import Callable

import pytest
from service_fakes import MIB, knobs_of, reading_of, until

from gpuwatch.service.core.admission import Admission
from gpuwatch.service.core.decisions import Ask
from gpuwatch.service.errors import Refused
from gpuwatch.service.gate import Gate, Lease
from gpuwatch.storage.records import BlockedBy, Outcome

pytestmark = pytest.mark.anyio


def gate_of(limit: int = 1, **changes: object) -> Gate:
    knobs = knobs_of(
        {"lanes.default.concurrency": limit, "lanes.default.queue_limit": 100_000}
        | {key.replace("__", "."): value for key, value in changes.items()}
    )
    gate = Gate(Admission(knobs, [0]), time.monotonic)
    gate.observe(reading_of())
    return gate


def entering(gate: Gate, ticket: int, price_bytes: int | None = MIB) -> "asyncio.Task[Lease]":
    return asyncio.ensure_future(gate.enter(Ask(ticket=ticket, lane="default", price_bytes=price_bytes)))


async def queued(gate: Gate, *tickets: int) -> "list[asyncio.Task[Lease]]":
    before = gate.admission.waiting
    tasks = [entering(gate, ticket) for ticket in tickets]
    await until(lambda: gate.admission.waiting == before + len(tickets))
    return tasks


def assert_at_rest(gate: Gate) -> None:
    assert gate.admission.in_flight == 0
    assert gate.admission.waiting == 0
    assert gate.admission.cards[0].ledger.promised_bytes == 0
    assert gate.admission.lanes["default"].running == 0


async def test_a_grant_that_races_with_a_cancellation_gives_its_slot_back() -> None:
    gate = gate_of()
    holder = await entering(gate, 1)
    (waiter,) = await queued(gate, 2)
    holder.end(ok=True)  # grants the waiter: its future is done, its task has not run
    assert gate.admission.in_flight == 1
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert_at_rest(gate)


async def test_a_waiter_that_leaves_is_out_of_the_queue_and_those_behind_it_go_on() -> None:
    gate = gate_of(limit=2)
    holder = await entering(gate, 1, price_bytes=400 * MIB)
    large = entering(gate, 2, price_bytes=500 * MIB)
    await until(lambda: gate.admission.waiting == 1)
    large.cancel()
    await asyncio.wait([large])
    assert gate.admission.waiting == 0
    (await entering(gate, 3)).end(ok=True)
    holder.end(ok=True)
    assert_at_rest(gate)


async def test_a_head_cancelled_in_the_tick_of_a_release_does_not_lose_the_wake_up() -> None:
    gate = gate_of()
    holder = await entering(gate, 1)
    head, following = await queued(gate, 2, 3)
    head.cancel()
    holder.end(ok=True)  # the grant goes to a waiter that will never take it
    lease = await following
    assert lease.grant.ticket == 3
    assert head.cancelled() or head.cancelling()
    lease.end(ok=True)
    await asyncio.wait([head])
    assert_at_rest(gate)


async def test_a_grant_given_back_by_a_cancellation_wakes_the_next() -> None:
    gate = gate_of()
    holder = await entering(gate, 1)
    head, following = await queued(gate, 2, 3)
    holder.end(ok=True)
    head.cancel()
    lease = await following
    lease.end(ok=True)
    assert head.cancelled()
    assert_at_rest(gate)


async def test_thousands_that_leave_in_one_tick_leave_nothing_behind() -> None:
    gate = gate_of()
    holder = await entering(gate, 1)
    waiters = await queued(gate, *range(2, 5002))
    for waiter in waiters:
        waiter.cancel()
    holder.end(ok=True)  # each grant in turn finds a waiter that has left
    assert gate.admission.in_flight == 0
    await asyncio.wait(waiters)
    assert all(waiter.cancelled() for waiter in waiters)
    assert_at_rest(gate)


async def test_the_deadline_refuses_and_says_what_was_waited_for() -> None:
    gate = gate_of(lanes__default__queue_timeout_s=0.01)
    holder = await entering(gate, 1)
    with pytest.raises(Refused) as refused:
        await entering(gate, 2)
    assert refused.value.reason is Outcome.QUEUE_TIMEOUT
    assert refused.value.status == 503
    assert refused.value.figures["blocked_by"] is BlockedBy.SLOTS
    assert "slots" in refused.value.detail
    holder.end(ok=True)
    assert_at_rest(gate)


async def test_the_deadline_on_stale_readings_says_so() -> None:
    gate = gate_of(lanes__default__queue_timeout_s=0.01, sampling__stale_after_s=0.1, sampling__interval_ms=10)
    gate.admission.cards[0].observed_s = time.monotonic() - 1
    with pytest.raises(Refused) as refused:
        await entering(gate, 1)
    assert refused.value.reason is Outcome.GPU_STALE
    assert_at_rest(gate)


async def test_raising_the_limit_wakes_waiters_at_once_and_lowering_it_cancels_nothing() -> None:
    gate = gate_of()
    holder = await entering(gate, 1)
    waiters = await queued(gate, 2, 3)
    gate.turn(gate.admission.knobs.turned({"lanes.default.concurrency": 3}))
    assert gate.admission.waiting == 0
    leases = [holder, *(await asyncio.gather(*waiters))]
    gate.turn(gate.admission.knobs.turned({"lanes.default.concurrency": 1}))
    assert gate.admission.in_flight == 3
    (waiter,) = await queued(gate, 4)
    leases[0].end(ok=True)
    leases[1].end(ok=True)
    assert gate.admission.waiting == 1, "two have ended, but the lane holds as many as it may"
    leases[2].end(ok=True)
    (await waiter).end(ok=True)
    assert_at_rest(gate)


async def test_a_reading_wakes_those_who_waited_for_one() -> None:
    gate = Gate(Admission(knobs_of(), [0]), time.monotonic)
    (waiter,) = await queued(gate, 1)
    gate.observe(reading_of())
    lease = await waiter
    assert lease.grant.blocked_by is BlockedBy.STALE
    lease.end(ok=True)
    assert_at_rest(gate)


async def test_a_lost_card_and_the_end_of_the_grace_refuse_those_who_wait() -> None:
    ends: list[tuple[Callable[[Gate], None], Outcome]] = [
        (lambda gate: gate.lose(0), Outcome.GPU_LOST),
        (lambda gate: gate.shut(), Outcome.SHUTDOWN),
    ]
    for what, reason in ends:
        gate = gate_of()
        holder = await entering(gate, 1)
        (waiter,) = await queued(gate, 2)
        what(gate)
        with pytest.raises(Refused) as refused:
            await waiter
        assert refused.value.reason is reason
        holder.end(ok=True)
        assert_at_rest(gate)


async def test_draining_takes_nothing_new_but_serves_who_waits() -> None:
    gate = gate_of()
    holder = await entering(gate, 1)
    (waiter,) = await queued(gate, 2)
    gate.drain()
    with pytest.raises(Refused) as refused:
        await entering(gate, 3)
    assert refused.value.reason is Outcome.DRAINING
    holder.end(ok=True)
    (await waiter).end(ok=True)
    assert_at_rest(gate)


async def test_a_lease_ends_once_and_an_orphan_holds_until_then() -> None:
    gate = gate_of()
    lease = await entering(gate, 1)
    lease.orphan()
    lease.orphan()
    assert gate.admission.statistics(time.monotonic())[0].orphans == 1
    assert gate.admission.in_flight == 1
    lease.end(ok=False)
    lease.end(ok=True)
    lease.orphan()
    assert_at_rest(gate)
    assert gate.admission.lanes["default"].orphans == 0
