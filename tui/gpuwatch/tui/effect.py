"""What the last change did: each lane's figures before it and after it.

Rules: pure. The service's windows are 60 s long, so the figures say nothing before `SETTLE_S` have gone by; after
`WATCH_S` they are no longer the change's doing and are kept as they stood. Only a change that was seen as it was made
has an effect here. Times are Unix seconds of the service's clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from gpuwatch.storage.records import KnobChange
from gpuwatch.storage.state import LaneState, State

SETTLE_S: Final = 60.0
WATCH_S: Final = 600.0
FRESH_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """One lane over 60 s: p99 in ms, answers and refusals."""

    p99_ms: float | None
    ok: int
    refused: int


@dataclass(frozen=True, slots=True)
class Effect:
    """The lanes before a change and, once the windows have passed over it, after it."""

    version: int
    at: float
    lanes: tuple[str, ...]
    before: Mapping[str, LaneFigures]
    after: Mapping[str, LaneFigures]
    after_s: float


def begin(change: KnobChange, state: State | None) -> Effect | None:
    """Note how things stood when ``change`` was made; ``None`` where that was not seen."""
    if state is None or not state.at - FRESH_S <= change.at <= state.at + FRESH_S:
        return None
    touched = {key.split(".")[1] for key in change.changes if key.startswith("lanes.") and key.count(".") > 1}
    names = tuple(lane.name for lane in state.lanes if lane.name in touched or not touched)
    before = {lane.name: _figures(lane) for lane in state.lanes}
    return Effect(change.version, change.at, names, before, {}, 0.0)


def go_on(effect: Effect | None, state: State) -> Effect | None:
    """Take the figures of a new state over, while they are still the change's."""
    if effect is None or not SETTLE_S <= state.at - effect.at <= WATCH_S:
        return effect
    after = {lane.name: _figures(lane) for lane in state.lanes}
    return replace(effect, after=after, after_s=state.at - effect.at)


def _figures(lane: LaneState) -> LaneFigures:
    return LaneFigures(lane.p99_60s_ms, lane.ok_60s, sum(lane.refused_60s.values()))
