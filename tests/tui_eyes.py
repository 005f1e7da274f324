"""A console's eyes without a screen, for tests of what a live source tells."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gpuwatch.storage.discovery import Found
from gpuwatch.tui.sources.live import LiveSource
from gpuwatch.tui.view import Link, News, View, fold


@dataclass
class Watching:
    """A console's eyes: what the source has told so far."""

    source: LiveSource
    view: View = field(default_factory=View)
    seen: list[News] = field(default_factory=list)

    async def follow(self) -> None:
        async for item in self.source.news():
            self.seen.append(item)
            self.view = fold(self.view, item, 0.0)

    def linked(self, link: Link) -> bool:
        return self.view.link is link


@asynccontextmanager
async def watching(
    find: Callable[[], Found | None], *, actor: str = "dana@box", silence_s: float = 20.0
) -> AsyncIterator[Watching]:
    eyes = Watching(LiveSource(find, actor=actor, clock=lambda: 5.0, silence_s=silence_s))
    task = asyncio.ensure_future(eyes.follow())
    try:
        yield eyes
    finally:
        await eyes.source.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def at(address: tuple[str, int], token: str | None) -> Found:
    return Found(admin_url=f"http://{address[0]}:{address[1]}", token=token, info=None, where="test")
