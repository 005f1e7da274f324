"""Who waits, and in what order: one queue for the whole service.

Order is ``arrival_s + priority * ageing_s``. All waiters of a lane share its priority, so inside a lane the order is
that of arrival and only what the lanes offer has to be compared: adding, removing and finding the next cost nothing per
waiter, and turning a priority re-orders everything at once. Times are seconds.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True, slots=True)
class Waiter:
    """One request that waits. ``price_bytes`` is ``None`` where it is unknown: it will run alone."""

    ticket: int
    lane: str
    price_bytes: int | None
    arrived_s: float
    deadline_s: float


class Waitlist:
    """The waiters of all lanes."""

    def __init__(self, lanes: Iterable[str]) -> None:
        # OrderedDict and not dict: taking the first of a dict walks over every hole left by those before it.
        self._lanes: dict[str, OrderedDict[int, Waiter]] = {lane: OrderedDict() for lane in lanes}
        self._lane_of: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._lane_of)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._lane_of

    def waiting(self, lane: str) -> int:
        """Count the waiters of one lane."""
        return len(self._lanes[lane])

    def add(self, waiter: Waiter) -> None:
        """Add at the end of its lane. Raises `ValueError` for a ticket that waits already."""
        if waiter.ticket in self._lane_of:
            raise ValueError(f"ticket {waiter.ticket} waits already")
        self._lanes[waiter.lane][waiter.ticket] = waiter
        self._lane_of[waiter.ticket] = waiter.lane

    def remove(self, ticket: int) -> Waiter:
        """Take one out, wherever it stands. Raises `KeyError` for one that does not wait."""
        return self._lanes[self._lane_of.pop(ticket)].pop(ticket)

    def head(self, lane: str) -> Waiter | None:
        """Give the lane's first waiter."""
        line = self._lanes[lane]
        return line[next(iter(line))] if line else None

    def first(self, lane: str, most: int) -> Iterator[Waiter]:
        """Walk the lane's first ``most`` waiters; the list must not change meanwhile."""
        return islice(self._lanes[lane].values(), most)

    def everyone(self) -> tuple[Waiter, ...]:
        """List all waiters, lane by lane."""
        return tuple(w for line in self._lanes.values() for w in line.values())
