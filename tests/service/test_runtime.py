"""How the parts work together: a driver that hangs, a card that goes and comes back, near-misses, and the end."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest
from service_fakes import GIB, MIB, PATIENCE_S, FakeDevice, FakeModel, Held, until
from service_rigs import Service, service

from gpuwatch.service.gpu.base import DeviceLost
from gpuwatch.storage.reader import Reader
from gpuwatch.storage.records import Trigger

pytestmark = pytest.mark.anyio
QUICK = {"sampling.stale_after_s": 0.1}


async def posted(one: Service, status: int, reason: str | None = None) -> None:
    answer = await one.inference.post("/predict", content=b"x")
    assert (answer.status_code, answer.json().get("reason")) == (status, reason), answer.text


async def test_a_driver_that_hangs_shuts_the_door_and_the_service_goes_on(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        await posted(one, 200)
        one.card.may_read.clear()
        await one.turn(QUICK | {"lanes.default.queue_timeout_s": 0.02})
        await until(lambda: one.runtime.state().gpus[0].status == "stale")
        state = one.runtime.state()
        assert state.service.status == "degraded"
        assert state.gpus[0].stale_since is not None
        assert "no readings" in state.verdict
        await posted(one, 503, "gpu-stale")
        assert (await one.admin.get("/admin/state")).status_code == 200
        await one.turn({"watermark.on_stale": "open"})
        await posted(one, 200)
        await one.turn(
            {"watermark.on_stale": "closed", "sampling.stale_after_s": 2.0, "lanes.default.queue_timeout_s": 10}
        )
        one.card.may_read.set()
        await until(lambda: one.runtime.state().gpus[0].status == "ok")
        await posted(one, 200)


async def test_who_waits_for_a_reading_is_let_in_by_the_first_one(tmp_path: Path) -> None:
    async with service(tmp_path, knobs=QUICK) as one:
        one.card.may_read.clear()
        await until(lambda: one.runtime.state().gpus[0].status == "stale")
        call = asyncio.ensure_future(posted(one, 200))
        await until(lambda: one.runtime.state().lanes[0].waiting == 1)
        assert one.runtime.state().lanes[0].blocked_by == "stale"
        one.card.may_read.set()
        await call


async def test_a_card_that_goes_is_told_once_and_its_return_too(tmp_path: Path) -> None:
    async with service(tmp_path, knobs={"lanes.default.concurrency": 0}) as one:
        waiter = asyncio.ensure_future(posted(one, 503, "gpu-lost"))
        await until(lambda: one.runtime.state().lanes[0].waiting == 1)
        one.card.trouble = DeviceLost("off the bus")
        await waiter
        one.card.tried = 0
        await until(lambda: one.card.tried > 3)
        assert "lost" in one.runtime.state().verdict
        await posted(one, 503, "gpu-lost")
        one.card.trouble = None
        await until(lambda: one.runtime.state().gpus[0].status == "ok")
        await one.turn({"lanes.default.concurrency": 1})
        await posted(one, 200)
        kinds = [event.kind for event in one.runtime.events.recent]
        assert kinds.count("gpu-lost") == kinds.count("gpu-back") == 1


async def test_the_marks_are_events_and_near_misses_with_their_neighbour(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        await until(lambda: len(one.runtime._seen[0].history()) > 1)  # a past to compare with
        one.card.used_bytes = int(0.9 * GIB)
        await until(lambda: one.runtime.state().gpus[0].pressure == "high")
        one.card.used_bytes = int(0.96 * GIB)
        await until(lambda: one.runtime.state().gpus[0].breaker == "open")
        one.card.used_bytes = 0
        await until(lambda: one.runtime.state().gpus[0].pressure == "normal")
        one.card.used_bytes = int(0.9 * GIB)
        await until(lambda: one.runtime.state().gpus[0].pressure == "high")
        one.card.used_bytes = 0
        await until(lambda: one.runtime.state().gpus[0].pressure == "normal")
        await one.rows()
        heads = one.runtime.reader.snapshots()
        assert [head.trigger for head in heads] == [Trigger.BREAKER, Trigger.WATERMARK], "the third came too soon"
        assert heads[1].cause == "other-process"
        messages = [event.message for event in one.runtime.events.recent if event.kind in {"watermark", "breaker"}]
        assert sum("above its high mark" in message for message in messages) == 2
        assert sum("below its low mark" in message for message in messages) == 2
        assert sum("breaker is open" in message for message in messages) == 1


async def test_a_turned_interval_takes_effect_before_the_old_one_has_passed(tmp_path: Path) -> None:
    async with service(tmp_path, knobs={"sampling.interval_ms": 10_000}) as one:
        reads = one.card.reads
        await one.turn({"watermark.low": 0.1})
        assert one.runtime._sampler is not None
        assert one.runtime._sampler._hurried == 0
        await one.turn({"sampling.interval_ms": 10})
        assert one.runtime._sampler._hurried == 1
        await until(lambda: one.card.reads > reads + 3)


async def test_snapshots_beyond_those_to_keep_go(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        model = one.runtime.answering.served["echo"].any_replica
        assert isinstance(model, FakeModel)
        model.does = lambda _payload: one.card.run_out()
        await one.turn({"snapshots.keep": 2})
        for _ in range(4):
            await posted(one, 503, "out-of-memory")
        await one.rows()
        assert [head.id for head in one.runtime.reader.snapshots()] == [4, 3]


async def test_the_end_writes_what_is_left_and_names_what_was_still_running(tmp_path: Path) -> None:
    held = Held()
    async with service(tmp_path, FakeModel(does=held)) as one:
        calls = [asyncio.ensure_future(posted(one, 503, "shutdown")) for _ in range(2)]
        await held.has_begun(2)
        assert not await one.runtime.drain(0)
        await asyncio.gather(*calls)
    reader = Reader(tmp_path / "telemetry.db")
    assert [record.outcome for record in reader.requests()] == ["shutdown"] * 2
    assert any("2 runs were still under way" in event.message for event in reader.events())
    (run,) = reader.runs()
    assert run.clean
    held.go.set()  # an orphan that ends after its service has: nobody may fall over it
    await until(lambda: one.card.running == 0)
    assert one.runtime.state().telemetry.dropped >= 0


async def test_the_end_comes_though_every_thread_for_reading_is_held(tmp_path: Path) -> None:
    hang = threading.Event()
    async with service(tmp_path) as one:
        calls = [asyncio.ensure_future(one.runtime.aux.call(hang.wait)) for _ in range(6)]
        await asyncio.sleep(0)
    hang.set()
    await asyncio.gather(*calls)
    assert Reader(tmp_path / "telemetry.db").runs()[0].ended_at is not None


async def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    async with service(tmp_path) as one:
        await posted(one, 200)
        await one.rows()
        names = {thread.name for thread in threading.enumerate() if thread not in before}
        assert {"gpuwatch-run", "gpuwatch-front", "gpuwatch-aux", "gpuwatch-sampler-0", "gpuwatch-writer"} <= names
    await until(lambda: set(threading.enumerate()) <= before)


async def test_a_draining_that_is_cut_short_still_answers_everyone(tmp_path: Path) -> None:
    held = Held()
    async with service(tmp_path, FakeModel(does=held), knobs={"lanes.default.concurrency": 1}) as one:
        calls = [asyncio.ensure_future(posted(one, 503, "shutdown")) for _ in range(2)]
        await held.has_begun()
        await until(lambda: one.runtime.state().lanes[0].waiting == 1)
        draining = asyncio.ensure_future(one.runtime.drain(1000))
        await until(lambda: one.runtime.state().service.status == "draining")
        draining.cancel()
        await asyncio.gather(*calls)
        held.go.set()


async def test_ids_go_on_where_the_last_life_ended(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        await posted(one, 200)
    async with service(tmp_path) as two:
        await posted(two, 200)
        await two.rows()
        rows = two.runtime.reader.requests()
        assert [(row.seq, row.run_id) for row in rows] == [(2, 2), (1, 1)]
        ids = [event.id for event in two.runtime.reader.events()]
        assert len(ids) == len(set(ids))
        assert [run.clean for run in two.runtime.reader.runs()] == [None, True]


async def test_each_of_several_cards_is_read_and_used(tmp_path: Path) -> None:
    cards = {0: FakeDevice(0), 1: FakeDevice(1)}
    held = Held()
    model = FakeModel(does=held, price_bytes=400 * MIB)
    async with service(tmp_path, model, cards=cards) as one:
        calls = [asyncio.ensure_future(posted(one, 200)) for _ in range(2)]
        await held.has_begun(2)
        assert [card.running for card in cards.values()] == [1, 1]
        cards[0].trouble = DeviceLost("gone")
        await until(lambda: one.runtime.state().gpus[0].status == "lost")
        assert one.runtime.state().gpus[1].status == "ok"
        held.go.set()
        await asyncio.gather(*calls)
        await posted(one, 200)
        assert cards[1].most_running == 1


async def test_rows_that_cannot_be_written_are_told_once_and_again_when_they_can(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        await one.rows()
        other = sqlite3.connect(one.home.database, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")

        def told() -> list[str]:
            return [event.message for event in one.runtime.events.recent if event.kind == "telemetry"]

        await until(lambda: len(told()) == 1)
        assert "rows wait" in told()[0]
        other.execute("ROLLBACK")
        other.close()
        await until(lambda: len(told()) == 2)
        assert told()[1] == "the database is written again"


async def test_draining_does_not_wait_for_a_lane_that_is_paused(tmp_path: Path) -> None:
    async with service(tmp_path, knobs={"lanes.default.concurrency": 0}) as one:
        waiter = asyncio.ensure_future(posted(one, 503, "shutdown"))
        await until(lambda: one.runtime.state().lanes[0].waiting == 1)
        async with asyncio.timeout(PATIENCE_S):
            assert await one.runtime.drain(1000)
        await waiter
