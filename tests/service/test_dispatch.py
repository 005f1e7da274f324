"""Every way out of a run gives exactly one outcome, and what was held comes back when the work has really ended."""

import asyncio
import random
import threading
import time
import weakref
from collections.abc import Callable

import pytest
from service_fakes import GIB, MIB, Held, until
from service_rigs import bench, the_refusal

from gpuwatch.service.dispatch import text_of
from gpuwatch.service.errors import Refused
from gpuwatch.service.models.base import BadInput
from gpuwatch.storage.records import BlockedBy, Outcome

pytestmark = pytest.mark.anyio


def raising(error: BaseException) -> Callable[[int], None]:
    def work(_gpu: int) -> None:
        raise error

    return work


async def test_an_answer_is_ok_once_with_its_figures() -> None:
    rig = bench()
    assert await rig.dispatcher.run(rig.entry(), lambda gpu: ("done", gpu)) == ("done", 0)
    await rig.at_rest()
    (record,) = rig.records
    assert (record.outcome, record.status, record.gpu) == (Outcome.OK, 200, 0)
    assert record.price_bytes == MIB
    assert record.peak_bytes == 7 * MIB
    assert record.peak_source == "sim"
    assert record.run_ms is not None
    assert record.total_ms >= record.run_ms


class Evil(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error_text", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret"),
        KeyboardInterrupt(),
        SystemExit(1),
        asyncio.CancelledError(),
        StopIteration(),
        TimeoutError(),
        Evil(),
        Refused(Outcome.QUEUE_FULL, "a model that mimics us"),
    ],
    ids=lambda error: type(error).__name__ if isinstance(error, BaseException) else str(error),
)
async def test_anything_a_model_raises_is_a_model_error_and_its_text_stays_here(
    error: BaseException, *, error_text: bool
) -> None:
    rig = bench(error_text=error_text)
    refusal, record = await the_refusal(rig, raising(error))
    assert (refusal.reason, refusal.status, refusal.retry_after_header) == (Outcome.MODEL_ERROR, 500, None)
    assert (record.outcome, record.status) == (Outcome.MODEL_ERROR, 500)
    assert type(error).__name__ in refusal.detail
    assert "secret" not in refusal.detail
    assert record.error is not None
    assert record.error.startswith(type(error).__name__)
    assert ("secret" in record.error) == (error_text and isinstance(error, ValueError))


async def test_a_body_that_does_not_decode_is_the_clients_fault() -> None:
    refusal, record = await the_refusal(bench(), raising(BadInput("an image of 0 pixels", status=422)))
    assert (refusal.reason, refusal.status, refusal.detail) == (Outcome.BAD_INPUT, 422, "an image of 0 pixels")
    assert (record.outcome, record.status, record.error) == (Outcome.BAD_INPUT, 422, "BadInput")


async def test_a_run_past_its_limit_is_answered_and_holds_its_slot_until_it_really_ends() -> None:
    rig = bench({"lanes.default.run_timeout_s": 0.01, "lanes.default.concurrency": 1})
    held = Held()
    entry = rig.entry()
    with pytest.raises(Refused) as refused:
        await rig.dispatcher.run(entry, held)
    assert (refused.value.reason, refused.value.status) == (Outcome.RUN_TIMEOUT, 504)
    (facts,) = rig.admission.statistics(time.monotonic())
    assert (facts.in_flight, facts.orphans) == (1, 1)
    assert rig.requests.running_entries == (entry,)
    assert rig.admission.runs()[0].orphan
    assert rig.admission.cards[0].ledger.promised_bytes == MIB
    (early,) = rig.records
    assert (early.outcome, early.status, early.run_ms, early.peak_bytes) == (Outcome.RUN_TIMEOUT, 504, None, None)
    held.go.set()
    await rig.at_rest()
    late = rig.final[entry.seq]
    assert (late.outcome, late.status, late.total_ms) == (Outcome.RUN_TIMEOUT, 504, early.total_ms)
    assert late.peak_bytes == 7 * MIB
    assert late.run_ms is not None


class Payload:
    """A body whose life can be followed."""


async def test_a_client_that_leaves_the_queue_is_gone_with_its_payload() -> None:
    rig = bench({"lanes.default.concurrency": 1})
    held = Held()
    holder = asyncio.ensure_future(rig.dispatcher.run(rig.entry(), held))
    await held.has_begun()
    entry = rig.entry()
    payload = Payload()
    alive = weakref.ref(payload)

    def work(_gpu: int, payload: Payload = payload) -> None:
        del payload

    waiter = asyncio.ensure_future(rig.dispatcher.run(entry, work))
    del payload, work
    await until(lambda: rig.admission.waiting == 1)
    assert alive() is not None
    waiter.cancel()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    del waiter
    await asyncio.sleep(0)
    assert alive() is None
    record = rig.final[entry.seq]
    assert (record.outcome, record.status, record.gpu, record.run_ms) == (Outcome.CLIENT_GONE, 499, None, None)
    assert record.queue_ms is not None
    held.go.set()
    await holder
    await rig.at_rest()


async def test_a_client_that_leaves_a_run_leaves_an_orphan_whose_row_is_completed() -> None:
    rig = bench()
    held = Held()
    entry = rig.entry()
    run = asyncio.ensure_future(rig.dispatcher.run(entry, held))
    await held.has_begun()
    run.cancel()
    await asyncio.wait([run])
    assert run.cancelled()
    assert rig.admission.statistics(time.monotonic())[0].orphans == 1
    assert [record.outcome for record in rig.records] == [Outcome.CLIENT_GONE]
    held.go.set()
    await rig.at_rest()
    assert [record.outcome for record in rig.records] == [Outcome.CLIENT_GONE] * 2
    assert rig.final[entry.seq].peak_bytes == 7 * MIB


async def test_the_end_of_the_grace_answers_those_who_run_and_leaves_orphans() -> None:
    rig = bench()
    held = Held()
    runs = [asyncio.ensure_future(rig.dispatcher.run(rig.entry(), held)) for _ in range(3)]
    await held.has_begun(3)
    rig.dispatcher.abandon()
    for run in runs:
        with pytest.raises(Refused) as refused:
            await run
        assert (refused.value.reason, refused.value.status) == (Outcome.SHUTDOWN, 503)
    assert rig.admission.statistics(time.monotonic())[0].orphans == 3
    held.go.set()
    await rig.at_rest()
    assert {record.outcome for record in rig.records} == {Outcome.SHUTDOWN}
    assert len(rig.final) == 3


async def test_work_that_finds_no_thread_gives_everything_back() -> None:
    rig = bench()
    rig.engine.close()
    refusal, record = await the_refusal(rig, lambda _gpu: None)
    assert (refusal.reason, refusal.status) == (Outcome.MODEL_UNAVAILABLE, 503)
    assert record.outcome is Outcome.MODEL_UNAVAILABLE


async def test_a_refusal_at_the_gate_is_recorded_with_what_was_waited_for() -> None:
    rig = bench({"lanes.default.concurrency": 0, "lanes.default.queue_timeout_s": 0.01})
    refusal, record = await the_refusal(rig, lambda _gpu: None)
    assert refusal.reason is Outcome.QUEUE_TIMEOUT
    assert (record.outcome, record.status, record.blocked_by) == (Outcome.QUEUE_TIMEOUT, 503, BlockedBy.SLOTS)
    assert record.queue_ms is not None
    refusal, record = await the_refusal(rig, lambda _gpu: None, price_bytes=2 * GIB)
    assert (refusal.reason, refusal.status) == (Outcome.TOO_LARGE, 413)
    assert record.price_bytes == 2 * GIB


async def test_draining_waits_for_orphans_too_and_gives_up_when_its_time_is_over() -> None:
    rig = bench()
    held = Held()
    run = asyncio.ensure_future(rig.dispatcher.run(rig.entry(), held))
    await held.has_begun()
    run.cancel()
    await asyncio.wait([run])
    assert not await rig.dispatcher.drained(0.0)
    draining = asyncio.ensure_future(rig.dispatcher.drained(1000.0))
    held.go.set()
    assert await draining


async def test_what_really_runs_never_exceeds_the_limit_whatever_arrives_leaves_and_turns() -> None:
    dice = random.Random(11)
    rig = bench({"lanes.default.queue_limit": 100_000, "lanes.default.queue_timeout_s": 3600})
    lock = threading.Lock()
    limit = 4
    running = 0
    excess: list[tuple[int, int]] = []

    def work(_gpu: int, seconds: float) -> None:
        nonlocal running
        with lock:
            running += 1
            if running > limit:
                excess.append((running, limit))
        threading.Event().wait(seconds)
        with lock:
            running -= 1

    tasks: list[asyncio.Task[None]] = []
    entries = []
    for step in range(600):
        entry = rig.entry()
        entries.append(entry)
        seconds = dice.choice((0.0, 0.0, 0.001, 0.003))
        tasks.append(asyncio.ensure_future(rig.dispatcher.run(entry, lambda gpu, s=seconds: work(gpu, s))))  # type: ignore[misc]  # a default binds it now
        await asyncio.sleep(0)  # let it begin: what never began has no outcome to give
        if dice.random() < 0.3:
            dice.choice(tasks).cancel()
        if dice.random() < 0.1:
            await asyncio.sleep(0.001)
        if step % 100 == 99:
            # Let it come to rest with the old limit, so that the new one is the bound from here on.
            await asyncio.wait(tasks)
            await rig.at_rest()
            limit = dice.choice((1, 2, 6))
            rig.turn({"lanes.default.concurrency": limit})
    await asyncio.wait(tasks)
    await rig.at_rest()
    assert excess == []
    assert rig.device.most_running <= 6
    assert len(rig.final) == len(entries)
    first = {record.seq: record.outcome for record in reversed(rig.records)}
    assert first == {seq: record.outcome for seq, record in rig.final.items()}, "an amended row keeps its outcome"
    assert set(first.values()) <= {Outcome.OK, Outcome.CLIENT_GONE}
    assert rig.admission.lanes["default"].orphans == 0


async def test_knobs_that_turn_under_load_cancel_nothing_and_lose_nothing() -> None:
    rig = bench({"lanes.default.queue_limit": 100_000, "lanes.default.queue_timeout_s": 3600})
    dice = random.Random(5)
    tasks = [
        asyncio.ensure_future(rig.dispatcher.run(rig.entry(), lambda _gpu: time.sleep(0.0005))) for _ in range(300)
    ]
    for _ in range(40):
        rig.turn({"lanes.default.concurrency": dice.choice((0, 1, 2, 8))})
        await asyncio.sleep(0.001)
    rig.turn({"lanes.default.concurrency": 8})
    await asyncio.gather(*tasks)
    await rig.at_rest()
    assert rig.device.most_running <= 8
    assert {record.outcome for record in rig.records} == {Outcome.OK}


def test_an_exception_without_a_text_has_one_for_us() -> None:
    assert text_of(ValueError("x")) == "x"
    assert text_of(Evil())
