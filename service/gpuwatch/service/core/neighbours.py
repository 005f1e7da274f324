"""How the processes on a card changed within the last 60 seconds. Sizes are bytes.

A change is the larger of the rise from the lowest and the fall from the highest value of the window: a neighbour that
comes and goes every minute would show no change against the value of 60 seconds ago.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from gpuwatch.storage.records import ProcessUse

WINDOW_S: Final = 60.0
_STEP_S: Final = 1.0


def swing(before: Iterable[int], now: int) -> int | None:
    """Give the change to ``now`` from the values before: a rise is positive. ``None`` where there are none."""
    values = tuple(before)
    if not values:
        return None
    rise, fall = max(0, now - min(values)), max(0, max(values) - now)
    return rise if rise >= fall else -fall


class ProcessHistory:
    """Remembers one look a second and tells each process's change within the window."""

    __slots__ = ("_looks",)

    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[int, int | None]]] = deque()

    def observe(self, now_s: float, processes: tuple[ProcessUse, ...]) -> tuple[ProcessUse, ...]:
        """Give the processes with ``change_60s_bytes``; one that was not there in an earlier look had 0 then.

        ``None`` until there is an earlier look, or where the driver does not tell.
        """
        while self._looks and self._looks[0][0] < now_s - WINDOW_S:
            self._looks.popleft()
        looks = [uses for _, uses in self._looks]
        if not self._looks or now_s - self._looks[-1][0] >= _STEP_S:
            self._looks.append((now_s, {p.pid: p.used_bytes for p in processes}))
        return tuple(
            p if p.used_bytes is None else replace(p, change_60s_bytes=swing(_told(p.pid, looks), p.used_bytes))
            for p in processes
        )


def _told(pid: int, looks: list[dict[int, int | None]]) -> Iterator[int]:
    """Walk what the driver told of a process; a look in which it kept silent is none."""
    return (used for uses in looks if (used := uses.get(pid, 0)) is not None)
