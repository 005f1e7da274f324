"""How long a lane's head waited for what, over the last 60 seconds: one bucket a second, nothing per request."""

from collections import deque
from math import floor
from typing import Final

from gpuwatch.storage.records import BlockedBy

WINDOW_S: Final = 60


class BlockedTime:
    """Seconds blocked, by cause. Time that goes by between two notes counts for the cause of the earlier one."""

    __slots__ = ("_buckets", "_cause", "_noted_s")

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, dict[BlockedBy, float]]] = deque()
        self._cause: BlockedBy | None = None
        self._noted_s: float | None = None

    def note(self, now_s: float, cause: BlockedBy | None) -> None:
        """Note what the head waits for from now on; ``None``: nobody waits."""
        if self._cause is not None and self._noted_s is not None:
            self._add(self._cause, max(self._noted_s, now_s - WINDOW_S), now_s)
        self._cause, self._noted_s = cause, now_s
        while self._buckets and self._buckets[0][0] <= floor(now_s) - WINDOW_S:
            self._buckets.popleft()

    def _add(self, cause: BlockedBy, start_s: float, end_s: float) -> None:
        """Share the time among the seconds it fell into: each leaves the window at its own time."""
        while start_s < end_s:
            second = floor(start_s)
            if not self._buckets or self._buckets[-1][0] < second:
                self._buckets.append((second, {}))
            sums = self._buckets[-1][1]
            until_s = min(end_s, second + 1)
            sums[cause] = sums.get(cause, 0.0) + until_s - start_s
            start_s = until_s

    def seconds(self) -> dict[BlockedBy, float]:
        """Sum the window up to the last note by cause; every cause is named."""
        sums = dict.fromkeys(BlockedBy, 0.0)
        for _, bucket in self._buckets:
            for cause, seconds in bucket.items():
                sums[cause] += seconds
        return sums
