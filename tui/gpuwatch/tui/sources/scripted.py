"""A source that plays the scripted scene: for tests and pictures. Turning a knob works on it, too.

With ``live`` the scene goes on at the pace of ``sleep``; without, it is told once and stands still.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from gpuwatch.storage.errors import KnobsInvalid
from gpuwatch.storage.records import KnobChange, KnobValue, OomSnapshot
from gpuwatch.storage.state import SnapshotHead
from gpuwatch.tui.sources import scene
from gpuwatch.tui.sources.base import SourceUnavailable, Turned
from gpuwatch.tui.view import ChangeNews, KnobsNews, Link, LinkNews, News, PastNews, StateNews

PERIOD_S: Final = 0.25


class ScriptedSource:
    """Plays the scene for the console of ``actor``. ``conflict`` makes every change come too late."""

    def __init__(
        self,
        *,
        live: bool = False,
        conflict: bool = False,
        actor: str = "you",
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._live = live
        self._conflict = conflict
        self._actor = actor
        self._sleep = sleep
        self._knobs = scene.KNOBS
        self._version = scene.CHANGE.version
        self._at = scene.NOW
        self._news: asyncio.Queue[News] = asyncio.Queue()
        self._closed = False

    async def news(self) -> AsyncIterator[News]:
        """Give the scene, then what changes."""
        yield LinkNews(Link.CONNECTING, "connecting", "scripted")
        yield KnobsNews(self._knobs.values, self._version)
        yield PastNews(points={0: scene.points()}, snapshots=scene.HEADS, changes=(scene.CHANGE,), events=scene.EVENTS)
        yield LinkNews(Link.LIVE, where="scripted")
        yield StateNews(scene.state(self._at - 8 * PERIOD_S, self._knobs))
        yield StateNews(scene.state(self._at, self._knobs))
        while not self._closed:
            if self._live:
                while not self._news.empty():
                    yield self._news.get_nowait()
                await self._sleep(PERIOD_S)
                self._at += PERIOD_S
                yield StateNews(scene.state(self._at, self._knobs))
            else:
                yield await self._news.get()
                yield StateNews(scene.state(self._at, self._knobs))

    async def turn(self, changes: Mapping[str, KnobValue], if_version: int) -> Turned:
        """Turn knobs of the scene."""
        if self._conflict or if_version != self._version:
            return Turned(problem=f"changed meanwhile by somebody: now v{self._version}")
        try:
            after = self._knobs.turned(changes)
        except KnobsInvalid as bad:
            return Turned(problem=str(bad))
        change = KnobChange(
            version=self._version + 1, at=self._at, actor=self._actor, changes=after.changes_from(self._knobs)
        )
        self._knobs, self._version = after, change.version
        self._news.put_nowait(ChangeNews(change))
        return Turned(change=change)

    async def snapshots(self) -> tuple[SnapshotHead, ...]:
        """List the scene's snapshots."""
        return scene.HEADS

    async def snapshot(self, number: int) -> OomSnapshot:
        """Give one of them. Raises `SourceUnavailable`."""
        for snapshot in scene.SNAPSHOTS:
            if snapshot.id == number:
                return snapshot
        raise SourceUnavailable(f"there is no snapshot {number}")

    async def close(self) -> None:
        """End the scene."""
        self._closed = True
