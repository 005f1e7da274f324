"""Snapshots open, scroll and stay chosen, whatever comes in meanwhile."""

import asyncio
from dataclasses import replace

import pytest
from textual.containers import VerticalScroll
from tui_pilot import console, pressed, screen_text

from gpuwatch.storage.records import OomSnapshot
from gpuwatch.tui.app import TooSmall
from gpuwatch.tui.screens.dashboard import Dashboard
from gpuwatch.tui.screens.snapshots import SnapshotList, SnapshotPage
from gpuwatch.tui.sources import scene
from gpuwatch.tui.sources.base import SourceUnavailable
from gpuwatch.tui.sources.scripted import ScriptedSource
from gpuwatch.tui.view import GapNews, PastNews, SnapshotNews

pytestmark = pytest.mark.anyio


async def test_a_snapshot_opens_and_scrolls() -> None:
    async with console() as (app, pilot):
        await pressed(pilot, "3", "down", "enter")
        assert "SNAPSHOT #117" in screen_text(app)
        await pressed(pilot, *"jjj")
        assert "SNAPSHOT #117" not in screen_text(app)
        app.screen.query_one("#scroll", VerticalScroll).scroll_end(animate=False)
        await pilot.pause()
        assert "snapshots.watermark_interval_s" in screen_text(app)
        app.screen.query_one("#scroll", VerticalScroll).scroll_to(y=1, animate=False)
        await pressed(pilot, "k")
        assert "SNAPSHOT #117" in screen_text(app)


async def test_a_snapshot_that_cannot_be_had_is_told() -> None:
    class Gone(ScriptedSource):
        async def snapshot(self, number: int) -> OomSnapshot:
            raise SourceUnavailable(f"[/] no {number}")

    async with console(source=Gone()) as (app, pilot):
        await pressed(pilot, "3", "enter")
        assert isinstance(app.screen, SnapshotList)
        assert any("[/] no 118" in note.message for note in app._notifications)


class Held(ScriptedSource):
    """A service that answers only when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.answer = asyncio.Event(), asyncio.Event()

    async def snapshot(self, number: int) -> OomSnapshot:
        self.asked.set()
        await self.answer.wait()
        return await super().snapshot(number)


async def test_a_slow_answer_holds_up_neither_keys_nor_news() -> None:
    source = Held()
    async with console(source=source) as (app, pilot):
        await pressed(pilot, "3", "enter")
        assert source.asked.is_set()
        source._news.put_nowait(GapNews(5))
        await pressed(pilot, "1")
        assert isinstance(app.screen, Dashboard)
        assert app.view.left_out == 5
        source.answer.set()
        await pressed(pilot, "down")
        assert isinstance(app.screen, Dashboard)  # it does not jump back to what was left


async def test_an_answer_that_comes_while_the_terminal_is_too_small_strands_nobody() -> None:
    source = Held()
    async with console(source=source) as (app, pilot):
        await pressed(pilot, "3", "enter")
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        source.answer.set()
        await pilot.pause()
        assert isinstance(app.screen, TooSmall)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert isinstance(app.screen, SnapshotList)
        await pressed(pilot, "enter")
        assert isinstance(app.screen, SnapshotPage)


async def test_enter_opens_what_was_chosen_though_a_new_snapshot_came_in_above() -> None:
    source = ScriptedSource()
    async with console(source=source) as (app, pilot):
        await pressed(pilot, "3", "down")
        source._news.put_nowait(SnapshotNews(replace(scene.HEADS[0], id=119)))
        await pilot.pause()
        assert ">   #117" in screen_text(app)
        await pressed(pilot, "enter")
        assert "SNAPSHOT #117" in screen_text(app)


async def test_a_chosen_snapshot_that_is_gone_gives_way_to_the_newest() -> None:
    source = ScriptedSource()
    async with console(source=source) as (app, pilot):
        await pressed(pilot, "3", "down", "down")
        source._news.put_nowait(PastNews(snapshots=scene.HEADS[:2]))
        await pilot.pause()
        assert ">   #118" in screen_text(app)
        source._news.put_nowait(PastNews())
        await pressed(pilot, "up", "enter")
        assert isinstance(app.screen, SnapshotList | SnapshotPage)
