"""News for those who watch: each watcher has a bounded queue, and what did not fit is counted for it.

Rules: on the event loop's thread. News have ids that only grow; the last `KEEP` are kept, so that a watcher who comes
back with the last id it saw gets what it missed, or is told how much is gone. The state is no news: it is made when it
is asked for, so only the latest is ever sent.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from gpuwatch.storage import codec

KEEP: Final = 1000
QUEUE: Final = 256


@dataclass(frozen=True, slots=True)
class News:
    """One thing that happened: its kind (``event``, ``request``, ``snapshot``, ``knobs``) and its JSON text."""

    id: int
    kind: str
    text: str


class Watcher:
    """One subscription. ``left_out`` counts what it was not given since the last `take`."""

    def __init__(self) -> None:
        self._queue: deque[News] = deque()
        self._arrived = asyncio.Event()
        self._left_out = 0

    def offer(self, news: News) -> None:
        """Give it news, or count them where it reads too slowly."""
        if len(self._queue) >= QUEUE:
            self._left_out += 1
        else:
            self._queue.append(news)
        self._arrived.set()

    def miss(self, count: int) -> None:
        """Count news that are gone."""
        self._left_out += count

    def take(self) -> tuple[tuple[News, ...], int]:
        """Take what is there and the count of what was left out."""
        news, left_out = tuple(self._queue), self._left_out
        self._queue.clear()
        self._left_out = 0
        self._arrived.clear()
        return news, left_out

    async def wait(self, timeout_s: float) -> None:
        """Wait for news, at most ``timeout_s`` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return


class Hub:
    """Hands news to every watcher."""

    def __init__(self) -> None:
        self._next = 1
        self._kept: deque[News] = deque(maxlen=KEEP)
        self._watchers: set[Watcher] = set()

    @property
    def watchers(self) -> int:
        """Count those who watch."""
        return len(self._watchers)

    def publish(self, kind: str, data: Any) -> None:  # noqa: ANN401 - any record
        """Tell all watchers."""
        news = News(self._next, kind, codec.dumps(data))
        self._next += 1
        self._kept.append(news)
        for watcher in self._watchers:
            watcher.offer(news)

    def join(self, last_id: int | None = None) -> Watcher:
        """Begin to watch, with what came after ``last_id`` where that is given."""
        watcher = Watcher()
        if last_id is not None:
            if last_id >= self._next:
                last_id = 0  # an id of an earlier life: all of this one's are news
            oldest = self._kept[0].id if self._kept else self._next
            watcher.miss(max(0, min(oldest, self._next) - last_id - 1))
            for news in self._kept:
                if news.id > last_id:
                    watcher.offer(news)
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Watch no more."""
        self._watchers.discard(watcher)
