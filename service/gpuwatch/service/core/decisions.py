"""What admission is asked and what it answers: plain frozen facts. Times are seconds, sizes bytes."""

from dataclasses import dataclass

from gpuwatch.storage.records import BlockedBy, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request that wants to run. ``price_bytes`` is ``None`` where nothing is known: it runs alone."""

    ticket: int
    lane: str
    price_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The request may run on ``gpu``; slot and ``promised_bytes`` are its own until it is settled.

    ``blocked_by`` is what it had waited for, if it had to.
    """

    ticket: int
    gpu: int
    promised_bytes: int
    waited_s: float
    blocked_by: BlockedBy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The request waits, at most until ``deadline_s``."""

    ticket: int
    deadline_s: float
    blocked_by: BlockedBy


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """The request will not run. ``reason`` is one of the refusals; figures are those of the moment."""

    ticket: int
    reason: Outcome
    retry_after_s: float | None = None
    blocked_by: BlockedBy | None = None
    price_bytes: int | None = None
    available_bytes: int | None = None
    capacity_bytes: int | None = None
    waiting: int | None = None
    waited_s: float = 0.0


Decision = Grant | Wait | Refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFacts:
    """One lane now. ``blocked_60s`` maps what the head waited for to seconds of the last 60."""

    name: str
    limit: int
    in_flight: int
    running: int
    orphans: int
    draining: bool
    waiting: int
    queue_limit: int
    queue_timeout_s: float
    oldest_wait_s: float | None
    head_price_bytes: int | None
    blocked_by: BlockedBy | None
    blocked_60s: dict[BlockedBy, float]
    fits_now: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run that holds a slot and a promise. ``started_s`` is on admission's clock."""

    ticket: int
    lane: str
    gpu: int
    promised_bytes: int
    started_s: float
    orphan: bool
