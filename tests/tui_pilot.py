"""A console under a test's fingers: opened over a scripted source, its keys pressed, its screen read as text."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from gpuwatch.tui.app import Console
from gpuwatch.tui.screenshots import settled
from gpuwatch.tui.sources import scene
from gpuwatch.tui.sources.scripted import ScriptedSource

SIZES = [(80, 24), (120, 40)]


@asynccontextmanager
async def console(
    size: tuple[int, int] = (80, 24), *, source: ScriptedSource | None = None, read_only: bool = False
) -> AsyncIterator[tuple[Console, Pilot[None]]]:
    app = Console(source or ScriptedSource(), read_only=read_only, clock=lambda: scene.NOW)
    async with app.run_test(size=size) as pilot:
        await settled(app, pilot)
        yield app, pilot


def screen_text(app: Console) -> str:
    width, height = app.size
    return "\n".join(
        "".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips(app.size)[:height]
    )[: (width + 1) * height * 2]


async def pressed(pilot: Pilot[None], *keys: str) -> None:
    await pilot.press(*keys)
    await pilot.pause()
