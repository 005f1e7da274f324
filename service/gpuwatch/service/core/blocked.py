"""How long a lane's head waited for what, over the last 60 seconds: one bucket a second, nothing per request."""

from collections import deque
from typing import Final

from gpuwatch.storage.records import BlockedBy

WINDOW_S: Final = 60


class BlockedTime:
    """Seconds blocked, by cause. Time that goes by between two notes counts for the cause of the earlier one."""

    __slots__ = ("_buckets", "_cause", "_noted_s")

    def __init__(self) -> None:
        self._buckets: deque[tuple[int, BlockedBy, float]] = deque()
        self._cause: BlockedBy | None = None
        self._noted_s: float | None = None

    def note(self, now_s: float, cause: BlockedBy | None) -> None:
        """Note what the head waits for from now on; ``None``: nobody waits."""
        before, since_s = self._cause, self._noted_s
        self._cause, self._noted_s = cause, now_s
        if before is not None and since_s is not None and now_s > since_s:
            second = int(now_s)
            if self._buckets and self._buckets[-1][:2] == (second, before):
                self._buckets[-1] = (second, before, self._buckets[-1][2] + now_s - since_s)
            else:
                self._buckets.append((second, before, now_s - since_s))
        while self._buckets and self._buckets[0][0] < int(now_s) - WINDOW_S:
            self._buckets.popleft()

    def seconds(self) -> dict[BlockedBy, float]:
        """Sum the window by cause; every cause is named."""
        sums = dict.fromkeys(BlockedBy, 0.0)
        for _, cause, seconds in self._buckets:
            sums[cause] += seconds
        return sums
