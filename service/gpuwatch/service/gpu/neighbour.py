"""A scripted neighbour: another process on the card, played by a schedule, and labelled as such.

Rules: `Schedule` is pure: elapsed seconds in, bytes out. `ScriptedNeighbour` is the thin edge: a daemon thread that
applies it to a card and gives everything back when it is closed. A real process does not take its memory in one go, it
loads in a few large allocations within a fraction of a second, and gives all of it back at once when it ends.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

RISE_S = 0.3
RISE_STEPS = 4
SOON_S = 0.001


class SharedCard(Protocol):
    """A card on which a neighbour can be played."""

    def set_neighbour(self, name: str, used_bytes: int) -> int:
        """Let the neighbour hold ``used_bytes``; says what it got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Visits of ``for_s`` seconds, the first after ``first_s``, then one in each ``every_s``.

    At the start of a visit the neighbour takes ``peak_bytes`` in `RISE_STEPS` equal steps within `RISE_S` seconds.
    Raises `ValueError` unless 0 < ``for_s`` <= ``every_s`` and nothing is negative.
    """

    peak_bytes: int
    every_s: float
    for_s: float
    first_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.for_s <= self.every_s or self.first_s < 0 or self.peak_bytes < 0:
            raise ValueError(
                f"a visit must be longer than 0 s, end before the next, and take no negative bytes: {self}"
            )

    def held_bytes(self, elapsed_s: float) -> int:
        """Bytes that the neighbour wants to hold ``elapsed_s`` seconds after the beginning."""
        into_s = self._into_visit_s(elapsed_s)
        if into_s is None:
            return 0
        steps = 1 + sum(into_s >= at_s for at_s in self._rises_s())
        return self.peak_bytes * steps // RISE_STEPS

    def next_change_s(self, elapsed_s: float) -> float:
        """Seconds from ``elapsed_s`` to the next moment at which `held_bytes` may differ.

        At least a millisecond: the last bit of a float must not make the caller ask for ever at the same moment.
        """
        if elapsed_s < self.first_s:
            return max(SOON_S, self.first_s - elapsed_s)
        into_s = (elapsed_s - self.first_s) % self.every_s
        at_s = next(at_s for at_s in (*self._rises_s(), self.for_s, self.every_s) if at_s > into_s)
        return max(SOON_S, at_s - into_s)

    def _into_visit_s(self, elapsed_s: float) -> float | None:
        """Seconds since the visit began, ``None`` between visits."""
        if elapsed_s < self.first_s:
            return None
        into_s = (elapsed_s - self.first_s) % self.every_s
        return into_s if into_s < self.for_s else None

    def _rises_s(self) -> list[float]:
        """Seconds into a visit at which it takes more."""
        return [min(RISE_S, self.for_s) * step / RISE_STEPS for step in range(1, RISE_STEPS)]


class ScriptedNeighbour:
    """Plays ``schedule`` on ``card``: `start` begins it on a daemon thread, `close` ends it.

    ``clock`` gives seconds that never run backwards. A card that is full gives less; the neighbour asks again after
    ``retry_s``, as one that loads in a loop would.
    """

    def __init__(
        self,
        card: SharedCard,
        schedule: Schedule,
        *,
        name: str = "neighbour",
        clock: Callable[[], float] = time.monotonic,
        retry_s: float = RISE_S,
    ) -> None:
        self._card = card
        self._schedule = schedule
        self._name = name
        self._clock = clock
        self._retry_s = retry_s
        self._began_s: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self) -> float:
        """Apply the schedule as it is now; gives the seconds after which it wants to be called again."""
        now_s = self._clock()
        if self._began_s is None:
            self._began_s = now_s
        elapsed_s = now_s - self._began_s
        wanted_bytes = self._schedule.held_bytes(elapsed_s)
        got_bytes = self._card.set_neighbour(self._name, wanted_bytes)
        wait_s = self._schedule.next_change_s(elapsed_s)
        return min(wait_s, self._retry_s) if got_bytes < wanted_bytes else wait_s

    def start(self) -> None:
        """Begin; raises `RuntimeError` when it has begun already."""
        if self._thread is not None:
            raise RuntimeError("the neighbour has been started already")
        self._thread = threading.Thread(target=self._play, name=f"gpuwatch-{self._name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; everything has been given back when this returns."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._card.set_neighbour(self._name, 0)

    def _play(self) -> None:
        while not self._stop.wait(self.step()):
            pass
