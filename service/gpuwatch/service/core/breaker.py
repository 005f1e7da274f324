"""A card's circuit breaker: a transition table.

Closed lets work through. Open refuses new requests (those waiting keep waiting) until the cooldown has passed and the
card is below the trip mark. Half-open lets one run through: if it ends well the breaker closes; if it fails, is
cancelled or orphaned, it is open again.
"""

from enum import StrEnum
from typing import Final

from gpuwatch.storage.records import Breaker


class BreakerEvent(StrEnum):
    """What can happen to a breaker."""

    TRIP = "trip"
    COOLED = "cooled"
    PROBE_OK = "probe-ok"
    PROBE_FAILED = "probe-failed"


TABLE: Final[dict[tuple[Breaker, BreakerEvent], Breaker]] = {
    (Breaker.CLOSED, BreakerEvent.TRIP): Breaker.OPEN,
    (Breaker.OPEN, BreakerEvent.TRIP): Breaker.OPEN,  # still too full: the cooldown begins anew
    (Breaker.OPEN, BreakerEvent.COOLED): Breaker.HALF_OPEN,
    (Breaker.HALF_OPEN, BreakerEvent.TRIP): Breaker.OPEN,
    (Breaker.HALF_OPEN, BreakerEvent.PROBE_OK): Breaker.CLOSED,
    (Breaker.HALF_OPEN, BreakerEvent.PROBE_FAILED): Breaker.OPEN,
}


class IllegalTransition(ValueError):
    """An event that cannot happen in this state; nothing has changed."""


class CircuitBreaker:
    """The breaker of one card. ``trip_ratio`` is a share of the card's total bytes."""

    __slots__ = ("cooldown_s", "probe", "since_s", "state", "trip_ratio")

    def __init__(self, *, trip_ratio: float, cooldown_s: float) -> None:
        self.state = Breaker.CLOSED
        self.since_s = 0.0
        self.probe: int | None = None
        self.trip_ratio = trip_ratio
        self.cooldown_s = cooldown_s

    def happen(self, now_s: float, event: BreakerEvent) -> None:
        """Follow the table. Raises `IllegalTransition` where it has no row."""
        after = TABLE.get((self.state, event))
        if after is None:
            raise IllegalTransition(f"{event} cannot happen to a breaker that is {self.state}")
        self.state = after
        self.since_s = now_s
        self.probe = None

    def observe(self, now_s: float, pressure_ratio: float) -> None:
        """Take in pressure_bytes / total_bytes."""
        if pressure_ratio >= self.trip_ratio and self.state is not Breaker.FATAL:
            self.happen(now_s, BreakerEvent.TRIP)
        elif self.state is Breaker.OPEN and now_s - self.since_s >= self.cooldown_s:
            self.happen(now_s, BreakerEvent.COOLED)

    @property
    def lets_through(self) -> bool:
        """Whether a run may start now."""
        return self.state is Breaker.CLOSED or (self.state is Breaker.HALF_OPEN and self.probe is None)

    def start(self, ticket: int) -> None:
        """Note a run that starts; in half-open it is the probe."""
        if self.state is Breaker.HALF_OPEN:
            self.probe = ticket

    def ended(self, now_s: float, ticket: int, *, ok: bool) -> None:
        """Note a run's end; only the probe's matters."""
        if self.probe == ticket:
            self.happen(now_s, BreakerEvent.PROBE_OK if ok else BreakerEvent.PROBE_FAILED)
