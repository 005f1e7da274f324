"""What the console knows, and how news change it: pure.

`fold` gives a new `View`; nothing is drawn and nothing is asked here. Times are Unix seconds: ``now`` and what is named
``state_at`` or ``link_since`` on the console's clock, all else on the service's own. History is kept in slots of
`SLOT_S`, each with the largest value that fell into it: a peak is never thinned away, a slot without news is a gap.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from gpuwatch.storage.records import Event, KnobChange, KnobValue, RequestRecord, Trigger
from gpuwatch.storage.state import SnapshotHead, State
from gpuwatch.tui.effect import Effect, begin, go_on
from gpuwatch.tui.rates import Rates, Tally, follow, rates, tally

SLOT_S: Final = 0.5
HISTORY_S: Final = 900.0
STALE_S: Final = 1.0
_KEEP: Final = 200


class Link(StrEnum):
    """How the console stands to the service."""

    CONNECTING = "connecting"
    LIVE = "live"
    RETRYING = "retrying"


class MarkKind(StrEnum):
    """What a mark on the time axis stands for: its sign."""

    KNOB = "^"
    SNAPSHOT = "*"
    OOM = "!"


@dataclass(frozen=True, slots=True)
class Point:
    """One slot of one card's history, in bytes; ``None`` where it is not known."""

    at: float
    used: float | None = None
    reserved: float | None = None
    allocated: float | None = None
    promised: float | None = None
    foreign: float | None = None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something to see on the time axis."""

    at: float
    kind: MarkKind


@dataclass(frozen=True, slots=True)
class StateNews:
    """The service's state."""

    state: State


@dataclass(frozen=True, slots=True)
class EventNews:
    """Something that happened."""

    event: Event


@dataclass(frozen=True, slots=True)
class RequestNews:
    """A request that ended."""

    record: RequestRecord


@dataclass(frozen=True, slots=True)
class SnapshotNews:
    """A snapshot that was taken."""

    head: SnapshotHead


@dataclass(frozen=True, slots=True)
class ChangeNews:
    """Knobs that were turned."""

    change: KnobChange


@dataclass(frozen=True, slots=True)
class KnobsNews:
    """All knobs' values, as asked for when connecting."""

    values: Mapping[str, KnobValue]
    version: int


@dataclass(frozen=True, slots=True)
class PastNews:
    """What the database knows of the time before: points by card, snapshots, knob changes and events, newest first."""

    points: Mapping[int, tuple[Point, ...]] = field(default_factory=dict)
    snapshots: tuple[SnapshotHead, ...] = ()
    changes: tuple[KnobChange, ...] = ()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkNews:
    """The connection has changed; ``why`` says what is wrong, ``where`` what was found."""

    link: Link
    why: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class GapNews:
    """News that this console was too slow for."""

    left_out: int


News = StateNews | EventNews | RequestNews | SnapshotNews | ChangeNews | KnobsNews | PastNews | LinkNews | GapNews


@dataclass(frozen=True, slots=True)
class View:
    """Everything the screens draw from."""

    link: Link = Link.CONNECTING
    link_since: float = 0.0
    link_why: str = ""
    where: str = ""
    state: State | None = None
    state_at: float | None = None
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)
    knobs_version: int = 0
    points: Mapping[int, tuple[Point, ...]] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    snapshots: tuple[SnapshotHead, ...] = ()
    changes: tuple[KnobChange, ...] = ()
    events: tuple[Event, ...] = ()
    left_out: int = 0
    tallies: tuple[Tally, ...] = ()
    rates: Rates | None = None
    effect: Effect | None = None

    def ratio(self, key: str, default: float) -> float:
        """Give a knob that is a share of the card, ``default`` before it is known."""
        value = self.knobs.get(key)
        return float(value) if isinstance(value, int | float) else default

    def age_s(self, now: float) -> float | None:
        """Seconds since the last state."""
        return None if self.state_at is None else max(0.0, now - self.state_at)

    def service_now(self, now: float) -> float:
        """Give the service's clock at the console's ``now``: the two need not agree."""
        return now if self.state is None or self.state_at is None else self.state.at + (now - self.state_at)

    def is_stale(self, now: float) -> bool:
        """Whether what is shown is too old to be taken for now."""
        age = self.age_s(now)
        return self.link is not Link.LIVE or age is None or age > STALE_S


def fold(view: View, news: News, now: float) -> View:  # noqa: PLR0911 - one way out a kind of news
    """Give the view after the news."""
    match news:
        case StateNews(state):
            return _with_state(view, state, now)
        case EventNews(event):
            return replace(view, events=(event, *view.events)[:_KEEP])
        case RequestNews():
            return view  # the state counts it; the requests' own screen comes with a later version
        case SnapshotNews(head):
            return _with_snapshot(view, head)
        case ChangeNews(turned):
            return _with_change(view, turned)
        case KnobsNews(values, version):
            changes = tuple(one for one in view.changes if one.version <= version)  # none of another life's
            return replace(view, knobs=dict(values), knobs_version=version, changes=changes)
        case PastNews():
            return _with_past(view, news)
        case LinkNews(link, why, where):
            # Each try goes from retrying to connecting and back: what lasts is being without a service.
            same = (link is Link.LIVE) is (view.link is Link.LIVE)
            since = view.link_since if same and view.link_since else now
            return replace(view, link=link, link_since=since, link_why=why, where=where or view.where)
        case GapNews(left_out):
            return replace(view, left_out=view.left_out + left_out)


def _with_state(view: View, state: State, now: float) -> View:
    """Take a state over, and with it the last change and snapshot where their own news were lost."""
    if state.last_change is not None and state.last_change.version > view.knobs_version:
        view = _with_change(view, state.last_change)
    if state.last_snapshot is not None:
        view = _with_snapshot(view, state.last_snapshot)
    points = {
        gpu.index: _add(
            view.points.get(gpu.index, ()),
            Point(
                at=state.at,
                used=gpu.used_bytes,
                reserved=gpu.reserved_bytes,
                allocated=gpu.allocated_bytes,
                promised=gpu.promised_bytes,
                foreign=gpu.foreign_bytes,
            ),
        )
        for gpu in state.gpus
    }
    tallies = follow(view.tallies, tally(state))
    return replace(
        view,
        state=state,
        state_at=now,
        points={**view.points, **points},
        tallies=tallies,
        rates=rates(tallies),
        effect=go_on(view.effect, state),
    )


def _with_snapshot(view: View, head: SnapshotHead) -> View:
    if any(known.id == head.id for known in view.snapshots):
        return view
    snapshots = sorted((head, *view.snapshots), key=lambda one: -one.id)[:_KEEP]
    return replace(view, snapshots=tuple(snapshots), marks=(*view.marks, _snapshot_mark(head))[-_KEEP:])


def _with_change(view: View, turned: KnobChange) -> View:
    if any(known.version == turned.version for known in view.changes):
        return view
    changes = sorted((turned, *view.changes), key=lambda one: -one.version)[:_KEEP]
    values, version = dict(view.knobs), view.knobs_version
    for one in reversed(changes):
        if one.version > view.knobs_version:
            values |= {key: after for key, (_, after) in one.changes.items()}
            # Never over a change that was not seen: a turn on top of it must be refused as too late, not undo it.
            version += one.version == version + 1
    return replace(
        view,
        knobs=values,
        knobs_version=version,
        changes=tuple(changes),
        marks=(*view.marks, Mark(turned.at, MarkKind.KNOB))[-_KEEP:],
        effect=begin(turned, view.state),
    )


def _with_past(view: View, past: PastNews) -> View:
    points = {gpu: _filled(view.points.get(gpu, ()), old) for gpu, old in past.points.items()}
    marks = [_snapshot_mark(head) for head in past.snapshots] + [Mark(c.at, MarkKind.KNOB) for c in past.changes]
    return replace(
        view,
        points={**view.points, **points},
        snapshots=past.snapshots,
        changes=past.changes,
        events=past.events,
        marks=tuple(sorted(marks, key=lambda mark: mark.at))[-_KEEP:],
    )


def _filled(seen: tuple[Point, ...], old: tuple[Point, ...]) -> tuple[Point, ...]:
    """Put points of the database where nothing was seen: before the first, and while there was no connection."""
    slots = {int(p.at / SLOT_S) for p in seen}
    missed = (p for p in old if int(p.at / SLOT_S) not in slots)
    return tuple(sorted((*missed, *seen), key=lambda p: p.at))


def _snapshot_mark(head: SnapshotHead) -> Mark:
    return Mark(head.at, MarkKind.OOM if head.trigger is Trigger.OUT_OF_MEMORY else MarkKind.SNAPSHOT)


def _add(points: tuple[Point, ...], new: Point) -> tuple[Point, ...]:
    """Put a point into its slot, keeping the largest values, and let go of what is too old."""
    points = (
        tuple(p for p in points if p.at <= new.at) if points and points[-1].at > new.at else points
    )  # clock set back
    last = points[-1] if points else None
    if last is not None and int(last.at / SLOT_S) == int(new.at / SLOT_S):
        merged = Point(last.at, *(_most(getattr(last, n), getattr(new, n)) for n in Point.__slots__[1:]))
        return (*points[:-1], merged)
    first = next((i for i, p in enumerate(points) if p.at >= new.at - HISTORY_S), len(points))
    return (*points[first:], new)


def _most(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else max(one, other)
