"""The live source against the service's own admin face, over real connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from service_fakes import until
from service_rigs import Service, listening, service
from tui_eyes import Watching, at, watching

from gpuwatch.service.http.admin import admin_app
from gpuwatch.storage.discovery import Found
from gpuwatch.storage.records import Trigger
from gpuwatch.tui.sources.base import SourceUnavailable
from gpuwatch.tui.sources.live import LiveSource
from gpuwatch.tui.view import Link

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(tmp_path: Path, actor: str = "dana@box") -> AsyncIterator[tuple[Service, Watching]]:
    async with service(tmp_path) as one, listening(admin_app(one.runtime)) as address:
        async with watching(lambda: at(address, one.runtime.tokens.admin), actor=actor) as eyes:
            await until(lambda: eyes.linked(Link.LIVE) and eyes.view.state is not None)
            yield one, eyes
        one.runtime.stopping.set()


async def test_state_and_news_arrive_as_they_happen(tmp_path: Path) -> None:
    async with connected(tmp_path) as (one, eyes):
        assert eyes.view.state is not None
        assert eyes.view.state.gpus[0].name == "fake card"
        assert eyes.view.knobs["watermark.high"] == 0.85
        await one.turn({"lanes.default.concurrency": 3})
        await until(lambda: eyes.view.knobs["lanes.default.concurrency"] == 3)
        one.card.used_bytes = int(0.9 * one.card.info.total_bytes)
        await until(lambda: len(eyes.view.snapshots) == 1)
        assert eyes.view.snapshots[0].trigger is Trigger.WATERMARK
        assert any(event.kind == "watermark" for event in eyes.view.events)
        await one.rows()
        assert [head.id for head in await eyes.source.snapshots()] == [1]
        assert (await eyes.source.snapshot(1)).payload["knobs"]["lanes.default.concurrency"] == 3
        with pytest.raises(SourceUnavailable, match="no snapshot 99"):
            await eyes.source.snapshot(99)


async def test_a_change_is_made_refused_or_too_late(tmp_path: Path) -> None:
    async with connected(tmp_path, actor="josé@box") as (one, eyes):
        made = await eyes.source.turn({"lanes.default.concurrency": 9}, 0)
        assert made.change is not None
        assert (made.change.version, made.change.at) == (1, 5.0)
        assert "jos?@box (claimed; admin token" in one.runtime.desk.history[0].actor
        late = await eyes.source.turn({"lanes.default.concurrency": 8}, 0)
        assert late.change is None
        assert "changed meanwhile by jos?@box" in late.problem
        wrong = await eyes.source.turn({"lanes.default.concurrency": 5000}, 1)
        assert "0 to 1024" in wrong.problem
        assert one.runtime.desk.knobs.by_lane["default"].concurrency == 9


async def test_what_was_before_is_there_at_once(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        await one.turn({"lanes.default.concurrency": 3})
        await one.rows()
        async with listening(admin_app(one.runtime)) as address:
            async with watching(lambda: at(address, one.runtime.tokens.read)) as eyes:
                await until(lambda: eyes.view.state is not None)
                assert [change.version for change in eyes.view.changes] == [1]
                assert len(eyes.view.points[0]) >= 1
                refused = await eyes.source.turn({"lanes.default.concurrency": 4}, 1)
                assert "admin token" in refused.problem
            one.runtime.stopping.set()


async def test_a_wrong_token_is_told_in_words(tmp_path: Path) -> None:
    async with service(tmp_path) as one, listening(admin_app(one.runtime)) as address:
        for token, said in (("wrong", "refuses the token"), (None, "no token")):
            async with watching(lambda token=token: at(address, token)) as eyes:  # type: ignore[misc]  # bound per turn
                await until(lambda: eyes.linked(Link.RETRYING))
                assert said in eyes.view.link_why


async def test_a_service_that_comes_back_on_another_port_is_found(tmp_path: Path) -> None:
    place: list[tuple[str, int]] = []
    async with (
        service(tmp_path) as one,
        watching(lambda: at(place[0], one.runtime.tokens.admin) if place else None) as eyes,
    ):
        await until(lambda: eyes.linked(Link.RETRYING))
        assert eyes.view.link_why == "none found"
        for _ in range(2):
            async with listening(admin_app(one.runtime)) as address:
                place[:] = [address]
                await until(lambda: eyes.linked(Link.LIVE))
                one.runtime.stopping.set()
                await until(lambda: eyes.linked(Link.RETRYING))
            one.runtime.stopping.clear()


async def test_a_search_that_fails_is_told_and_tried_again() -> None:
    tries = 0

    def find() -> Found | None:
        nonlocal tries
        tries += 1
        raise PermissionError("the token file cannot be read")

    async with watching(find) as eyes:
        await until(lambda: tries > 1)
        assert "token file" in eyes.view.link_why


async def test_nothing_can_be_asked_before_there_is_a_connection() -> None:
    source = LiveSource(lambda: None, actor="x")
    assert "not connected" in (await source.turn({"a": 1}, 0)).problem
    with pytest.raises(SourceUnavailable, match="not connected"):
        await source.snapshots()
