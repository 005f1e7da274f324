"""How many requests came, were answered and were refused a second, from successive states' counters.

Rules: pure. The window is `WINDOW_S` of the service's clock. Counters that went back mean another life of the service:
the window starts anew, and for its first `LEAST_S` there is no rate rather than a wrong one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpuwatch.storage.records import Outcome
from gpuwatch.storage.state import State

WINDOW_S: Final = 10.0
LEAST_S: Final = 1.0
NOT_REFUSED: Final = frozenset({Outcome.OK, Outcome.CLIENT_GONE, Outcome.CRASHED})
"""Outcomes that the service did not choose as a refusal."""


class Tally(NamedTuple):
    """The counters at one moment: outcomes since the service's start, and the requests inside it."""

    at: float
    started_at: float
    outcomes: Mapping[str, int]
    inside: int


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests a second; ``refused`` by reason, the largest first."""

    arrived: float
    ok: float
    gone: float
    refused: tuple[tuple[str, float], ...]

    @property
    def refused_all(self) -> float:
        """All refusals a second."""
        return sum(rate for _, rate in self.refused)


def tally(state: State) -> Tally:
    """Add the lanes' counters up."""
    outcomes: dict[str, int] = {}
    for lane in state.lanes:
        for name, count in lane.outcomes.items():
            outcomes[name] = outcomes.get(name, 0) + count
    inside = sum(lane.waiting + lane.in_flight for lane in state.lanes)
    return Tally(state.at, state.service.started_at, outcomes, inside)


def follow(window: tuple[Tally, ...], new: Tally) -> tuple[Tally, ...]:
    """Add a tally to the window; the first one before the window's start is kept, so that it spans all of it."""
    if window and _broken(window[-1], new):
        return (new,)
    start = 0
    while start + 1 < len(window) and window[start + 1].at <= new.at - WINDOW_S:
        start += 1
    return (*window[start:], new)


def rates(window: tuple[Tally, ...]) -> Rates | None:
    """Give the rates over the window; ``None`` while it is too short."""
    if len(window) < 2 or window[-1].at - window[0].at < LEAST_S:  # noqa: PLR2004 - a rate needs two counts
        return None
    first, last = window[0], window[-1]
    span_s = last.at - first.at
    by_outcome = {name: (count - first.outcomes.get(name, 0)) / span_s for name, count in last.outcomes.items()}
    arrived = sum(by_outcome.values()) + (last.inside - first.inside) / span_s
    refused = sorted(
        ((name, rate) for name, rate in by_outcome.items() if name not in NOT_REFUSED and rate > 0),
        key=lambda pair: (-pair[1], pair[0]),
    )
    return Rates(
        arrived=max(0.0, arrived),
        ok=by_outcome.get(Outcome.OK, 0.0),
        gone=by_outcome.get(Outcome.CLIENT_GONE, 0.0),
        refused=tuple(refused),
    )


def _broken(before: Tally, after: Tally) -> bool:
    return (
        after.started_at != before.started_at
        or after.at < before.at
        or any(after.outcomes.get(name, 0) < count for name, count in before.outcomes.items())
    )
