"""However many lanes there are, what an operator needs stays on the dashboard."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from tui_pilot import SIZES, console, pressed, screen_text

from gpuwatch.tui.sources.scripted import ScriptedSource
from gpuwatch.tui.view import News, StateNews

pytestmark = pytest.mark.anyio


class Lanes(ScriptedSource):
    """A service of many lanes."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    async def news(self) -> AsyncIterator[News]:
        async for item in super().news():
            if isinstance(item, StateNews):
                lane = item.state.lanes[0]
                lanes = tuple(replace(lane, name=f"lane{n}") for n in range(self._count))
                item = StateNews(replace(item.state, lanes=lanes))  # noqa: PLW2901 - twisted
            yield item


@pytest.mark.parametrize(("count", "size"), [(0, SIZES[0]), (8, SIZES[0]), (40, SIZES[0]), (40, SIZES[1])])
async def test_many_lanes_push_nothing_off_the_screen(count: int, size: tuple[int, int]) -> None:
    async with console(size, source=Lanes(count)) as (app, pilot):
        for key, chosen in (("up", count - 1), ("down", 0), ("down", 1 % max(1, count))):
            await pressed(pilot, key)
            text = screen_text(app)
            assert not count or f"lane{chosen} " in text
            for said in ("WHY", "PROMISED", "B95", "RUN/LIM", "CHANGE", "SNAP", "TRY", "q quit"):
                assert said in text, said
        assert (" of 40" in text) is (count == 40)
