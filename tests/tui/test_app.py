"""Every key does what the help says, at both sizes, and nothing from outside or too small breaks a screen."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import pytest
from textual.pilot import Pilot
from tui_pilot import SIZES, console, pressed, screen_text

from gpuwatch.storage.records import KnobValue, OomSnapshot, ProcessUse
from gpuwatch.storage.state import SnapshotHead, State
from gpuwatch.tui import format as fmt
from gpuwatch.tui.app import Console, TooSmall
from gpuwatch.tui.screens.dashboard import Dashboard
from gpuwatch.tui.screens.help import Help
from gpuwatch.tui.screens.snapshots import SnapshotList, SnapshotPage
from gpuwatch.tui.sources import scene
from gpuwatch.tui.sources.base import Turned
from gpuwatch.tui.sources.scripted import ScriptedSource
from gpuwatch.tui.view import Link, LinkNews, News, PastNews, StateNews

pytestmark = pytest.mark.anyio


async def until_version(app: Console, pilot: Pilot[None], version: int) -> None:
    for _ in range(200):
        if app.view.knobs_version == version:
            return
        await pilot.pause()
    raise AssertionError(f"the knobs stayed at {app.view.knobs_version}")


@pytest.mark.parametrize("size", SIZES)
async def test_what_an_operator_needs_is_there_without_a_key(size: tuple[int, int]) -> None:
    async with console(size) as (app, _):
        text = screen_text(app)
    for said in (
        "gpu-a yolo-api", "ENFORCING", "DEGRADED", "readyz 200", "data ", "image waits for BYTES, not slots",
        "whisper.service", "IN ", "REFUSED", "queue-timeout", "OOM 24h 1", "lost 0", "breaker closed",
        "pressure normal",
        "others 10G", "PROMISED", "FITS NOW", "B95", "H85", "2/6", "46/64", "4.9s/5.0s", "BYTES 94%", "5.4s", "126",
        "CHANGE v41", "SNAP   #118", "last OOM", "NOT help",
    ):  # fmt: skip
        assert said in text, said


async def test_the_wide_screen_shows_neighbours_runs_and_events_as_well() -> None:
    async with console((120, 40)) as (app, _):
        text = screen_text(app)
    for said in ("PROCESSES", "+3.2G", "RUNNING", "r-8f1e", "EVENTS", "watermark: GPU0 is above"):
        assert said in text, said


@pytest.mark.parametrize("size", SIZES)
async def test_digits_enter_and_escape_lead_to_each_screen_and_back(size: tuple[int, int]) -> None:
    async with console(size) as (app, pilot):
        for keys, kind in (
            (("3",), SnapshotList), (("down", "enter"), SnapshotPage), (("escape",), SnapshotList),
            (("enter", "1"), Dashboard), (("3", "j", "k", "enter", "3"), SnapshotList), (("escape",), Dashboard),
            (("question_mark",), Help), (("question_mark",), Dashboard), (("question_mark", "escape"), Dashboard),
            (("question_mark", "3"), SnapshotList), (("1", "1"), Dashboard),
        ):  # fmt: skip
            await pressed(pilot, *keys)
            assert isinstance(app.screen, kind), (keys, app.screen)


async def test_plus_and_minus_turn_the_chosen_lane_and_show_who_did_it() -> None:
    async with console(source=ScriptedSource(actor="dana@box")) as (app, pilot):
        await pressed(pilot, "plus")
        await until_version(app, pilot, 42)
        assert app.view.knobs["lanes.image.concurrency"] == 7
        await pressed(pilot, "down", "minus")
        await until_version(app, pilot, 43)
        assert app.view.knobs["lanes.text.concurrency"] == 3
        await pilot.pause()
        assert "CHANGE v43" in screen_text(app)
        assert "dana@box text.concurrency 4>3" in screen_text(app)
        assert "1/3" in screen_text(app)


async def test_the_choice_goes_round() -> None:
    async with console() as (app, pilot):
        assert isinstance(app.screen, Dashboard)
        seen = []
        for key in ("down", "j", "down", "up", "k"):
            await pressed(pilot, key)
            seen.append(app.screen.chosen)
        assert seen == ["text", "long", "image", "long", "text"]


async def test_two_quick_keys_are_two_steps_and_no_conflict() -> None:
    class Slow(ScriptedSource):
        async def turn(self, changes: Mapping[str, KnobValue], if_version: int) -> Turned:
            await asyncio.sleep(0)
            answer = await super().turn(changes, if_version)
            await asyncio.sleep(0)
            return answer

    async with console(source=Slow()) as (app, pilot):
        await pilot.press("plus", "equals_sign", "plus")
        await until_version(app, pilot, 44)
        assert app.view.knobs["lanes.image.concurrency"] == 9


async def test_a_change_that_came_too_late_is_told_and_changes_nothing() -> None:
    async with console(source=ScriptedSource(conflict=True)) as (app, pilot):
        await pressed(pilot, "plus")
        await pilot.pause()
        assert any("changed meanwhile" in note.message for note in app._notifications)
        assert app.view.knobs["lanes.image.concurrency"] == 6


async def test_a_knob_at_its_bound_says_what_it_takes() -> None:
    async with console() as (app, pilot):
        await pressed(pilot, "down", "down", "minus")
        await until_version(app, pilot, 42)
        await pressed(pilot, "minus")
        await pilot.pause()
        assert any("0 to 1024" in note.message for note in app._notifications)
        assert app.view.knobs["lanes.long.concurrency"] == 0


async def test_a_read_only_console_turns_nothing_and_offers_nothing_to_turn() -> None:
    async with console(read_only=True) as (app, pilot):
        await pressed(pilot, "plus", "minus")
        assert app.view.knobs_version == 41
        assert "READ-ONLY" in screen_text(app)
        assert "+/-" not in screen_text(app)
        await pressed(pilot, "question_mark")
        assert "at once in the lane" not in screen_text(app)


@pytest.mark.parametrize("keys", [(), ("3",), ("3", "enter"), ("question_mark",)])
async def test_a_terminal_too_small_says_so_and_comes_back(keys: tuple[str, ...]) -> None:
    async with console() as (app, pilot):
        await pressed(pilot, *keys)
        before = type(app.screen)
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert isinstance(app.screen, TooSmall)
        assert "80x24" in screen_text(app)
        await pressed(pilot, "3", "1", "question_mark")
        assert isinstance(app.screen, TooSmall)
        await pilot.resize_terminal(200, 60)
        await pilot.pause()
        assert type(app.screen) is before


async def test_without_snapshots_the_list_says_so_and_enter_opens_nothing() -> None:
    app = Console(Empty(), clock=lambda: scene.NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await pressed(pilot, "3", "enter", "down")
        assert isinstance(app.screen, SnapshotList)
        assert "none yet" in screen_text(app)


@pytest.mark.parametrize(
    "name",
    ["[0] Tesla T4", "[/", "[/#888888]", "中文模型", "\x1b[31mred", "\u200d👩🏽\u200d🚀", "x" * 10_000],
    ids=["index", "open", "close", "wide", "escape", "joined", "long"],
)
async def test_names_from_outside_are_shown_plainly_on_every_screen(name: str) -> None:
    async with console((120, 40), source=Hostile(name)) as (app, pilot):
        assert fmt.clean(name)[:3] in screen_text(app)
        await pressed(pilot, "down", "plus", "3")
        assert fmt.clean(name)[:3] in screen_text(app)
        await pressed(pilot, "enter", "escape", "question_mark")
        assert isinstance(app.screen, Help)


async def test_q_leaves_from_every_screen() -> None:
    for keys in ((), ("3",), ("3", "enter"), ("question_mark",)):
        async with console() as (app, pilot):
            await pressed(pilot, *keys, "q")
            assert app._exit
        assert app.return_code == 0


class Hostile(ScriptedSource):
    """A service all of whose words are ``name``."""

    def __init__(self, name: str) -> None:
        super().__init__(actor=name)
        self._name = name

    def _twisted(self, state: State) -> State:
        name = self._name
        process = ProcessUse(pid=1, name=name, unit=name, cmdline=name, used_bytes=1)
        return replace(
            state,
            verdict=name,
            service=replace(state.service, name=name, version=name, mode=name, reason=name),
            gpus=(replace(state.gpus[0], name=name, uuid=name, processes=(process,)),),
            lanes=tuple(
                replace(lane, name=f"{name}{n}", refused_60s={name: 1}, outcomes={name: 1})
                for n, lane in enumerate(state.lanes)
            ),
            models=(replace(state.models[0], name=name, version=name, price_formula=name),),
            last_change=replace(scene.CHANGE, actor=name, note=name, changes={name: (name, name)}),
            last_snapshot=replace(scene.HEADS[0], headline=name, request_id=name),
            telemetry=replace(state.telemetry, last_error=name),
            in_flight=tuple(replace(run, request_id=name, lane=name, model=name) for run in state.in_flight),
        )

    async def news(self) -> AsyncIterator[News]:
        name = self._name
        async for item in super().news():
            if isinstance(item, StateNews):
                yield StateNews(self._twisted(item.state))
            elif isinstance(item, PastNews):
                heads = tuple(replace(head, headline=name) for head in item.snapshots)
                events = tuple(replace(event, kind=name, message=name) for event in item.events)
                yield replace(item, snapshots=heads, events=events, changes=())
            elif isinstance(item, LinkNews):
                yield replace(item, why=name, where=name)
            else:
                yield item

    async def snapshot(self, number: int) -> OomSnapshot:
        return replace(await super().snapshot(number), headline=self._name, request_id=self._name)


class Empty(ScriptedSource):
    """A service that has just begun."""

    async def news(self) -> AsyncIterator[News]:
        yield LinkNews(Link.RETRYING, "none found")
        await asyncio.Event().wait()

    async def snapshots(self) -> tuple[SnapshotHead, ...]:
        return ()


async def test_without_a_service_nothing_is_drawn_that_is_not_known() -> None:
    app = Console(Empty(), clock=lambda: scene.NOW)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        text = screen_text(app)
    assert "no service" in text
    assert "B100" not in text
