"""The live stream: state at a steady rate, news with ids, a gap that says how much is missing, and an end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from httpx_sse import ServerSentEvent, aconnect_sse
from service_fakes import PATIENCE_S, FakeModel
from service_rigs import Service, listening, service

from gpuwatch.service.http.admin import admin_app
from gpuwatch.service.http.stream import stream
from gpuwatch.service.hub import QUEUE

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def watching(
    one: Service, address: tuple[str, int], *, hz: float = 4.0, last_id: str | None = None
) -> AsyncIterator[AsyncIterator[ServerSentEvent]]:
    headers = {} if last_id is None else {"Last-Event-ID": last_id}
    async with (
        httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}", headers=one.admin.headers) as client,
        aconnect_sse(client, "GET", "/admin/stream", params={"hz": hz}, headers=headers, timeout=PATIENCE_S) as source,
    ):
        assert source.response.status_code == 200
        yield source.aiter_sse()


async def the_next(events: AsyncIterator[ServerSentEvent], *kinds: str) -> ServerSentEvent:
    async for event in events:
        if event.event in kinds:
            return event
    raise AssertionError(f"the stream ended without {kinds}")


async def test_state_and_news_arrive_and_a_second_visit_resumes(tmp_path: Path) -> None:
    model = FakeModel()
    async with service(tmp_path, model) as one, listening(admin_app(one.runtime)) as address:
        async with watching(one, address, hz=20) as events:
            states = [await the_next(events, "state") for _ in range(3)]
            times = [json.loads(event.data)["at"] for event in states]
            assert times == sorted(set(times))
            assert states[0].id == ""
            await one.inference.post("/predict", content=b"x")
            request = await the_next(events, "request")
            assert json.loads(request.data)["outcome"] == "ok"
            await one.turn({"lanes.default.concurrency": 9})
            knobs = await the_next(events, "knobs")
            assert json.loads(knobs.data)["changes"] == {"lanes.default.concurrency": [4, 9]}
            happened = await the_next(events, "event")
            assert json.loads(happened.data)["kind"] == "knobs"
            model.does = lambda _payload: one.card.run_out()
            await one.inference.post("/predict", content=b"x")
            snapshot = await the_next(events, "snapshot")
            assert json.loads(snapshot.data)["trigger"] == "out-of-memory"
            ids = [int(event.id) for event in (request, knobs, happened, snapshot)]
            assert ids == sorted(set(ids))
        await one.turn({"lanes.default.concurrency": 3})
        async with watching(one, address, last_id=str(ids[1])) as events:
            missed = [await the_next(events, "event", "request", "knobs", "snapshot", "gap") for _ in range(4)]
            assert [event.event for event in missed] == ["event", "snapshot", "request", "knobs"]
            assert int(missed[0].id) == ids[1] + 1


async def test_an_id_that_is_gone_or_none_is_told_as_a_gap_or_passed_over(tmp_path: Path) -> None:
    async with service(tmp_path) as one, listening(admin_app(one.runtime)) as address:
        for number in range(2000):
            one.runtime.hub.publish("event", {"number": number})
        async with watching(one, address, last_id="1") as events:
            gap = await the_next(events, "gap")
            assert json.loads(gap.data)["left_out"] >= 999
        for nonsense in ("x", "-1", "9" * 5000):
            async with watching(one, address, last_id=nonsense) as events:
                await the_next(events, "state")


async def test_a_reader_that_is_slow_gets_a_gap_and_no_old_states(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        events = stream(one.runtime, 20.0, None)
        assert (await anext(events)).event == "state"
        for number in range(QUEUE + 50):
            one.runtime.hub.publish("event", {"number": number})
        seen = [await anext(events) for _ in range(QUEUE + 1)]
        kinds = [event.event for event in seen if event.event != "state"]
        assert kinds[0] == "gap"
        assert json.loads(seen[[event.event for event in seen].index("gap")].raw_data or "")["left_out"] == 50
        assert len(kinds) >= QUEUE
        await events.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert one.runtime.hub.watchers == 0


async def test_the_stream_ends_when_the_service_stops_however_slow_its_rate(tmp_path: Path) -> None:
    async with (
        service(tmp_path) as one,
        listening(admin_app(one.runtime)) as address,
        watching(one, address, hz=0.001) as events,
    ):
        await the_next(events, "state")
        one.runtime.stopping.set()
        async with asyncio.timeout(PATIENCE_S):
            assert [event.event async for event in events if event.event == "state"] == []


async def test_a_reader_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async with service(tmp_path) as one, listening(admin_app(one.runtime)) as address:
        async with watching(one, address) as events:
            await the_next(events, "state")
            assert one.runtime.hub.watchers == 1
        async with asyncio.timeout(PATIENCE_S):
            while one.runtime.hub.watchers:  # noqa: ASYNC110 - the server sees it when it sees it
                await asyncio.sleep(0.002)
