"""Every refusal with its status, title and whether a client may come back.

In the core a refusal is a value; here it becomes one exception that carries its own status, reason and retry time.
`REFUSALS` is the one table: HTTP, records and documentation read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from gpuwatch.service.core.decisions import Refuse
from gpuwatch.storage.records import Outcome


@dataclass(frozen=True, slots=True)
class RefusalKind:
    """One row: HTTP status, short title, whether `Retry-After` goes with it."""

    status: int
    title: str
    retry: bool = False


REFUSALS: Final[Mapping[Outcome, RefusalKind]] = {
    Outcome.QUEUE_FULL: RefusalKind(429, "The lane's queue is full", retry=True),
    Outcome.NO_ROOM: RefusalKind(429, "The request does not fit the card now", retry=True),
    Outcome.QUEUE_TIMEOUT: RefusalKind(503, "The lane's deadline passed while the request waited", retry=True),
    Outcome.WATERMARK: RefusalKind(503, "The card is above its high watermark", retry=True),
    Outcome.BREAKER_OPEN: RefusalKind(503, "The card's breaker is open", retry=True),
    Outcome.DRAINING: RefusalKind(503, "The service is draining", retry=True),
    Outcome.SHUTDOWN: RefusalKind(503, "The service is shutting down", retry=True),
    Outcome.GPU_STALE: RefusalKind(503, "The card's readings are too old to be believed", retry=True),
    Outcome.GPU_LOST: RefusalKind(503, "The card is gone", retry=True),
    Outcome.TOO_LARGE: RefusalKind(413, "The request exceeds what the card could ever hold"),
    Outcome.BODY_TOO_LARGE: RefusalKind(413, "The body is too large"),
    Outcome.RUN_TIMEOUT: RefusalKind(504, "The run took too long"),
    Outcome.OUT_OF_MEMORY: RefusalKind(503, "The card ran out of memory"),
    Outcome.BAD_INPUT: RefusalKind(400, "The body does not decode"),
    Outcome.UNKNOWN_MODEL: RefusalKind(404, "There is no such model"),
    Outcome.UNKNOWN_LANE: RefusalKind(400, "There is no such lane"),
    Outcome.MODEL_UNAVAILABLE: RefusalKind(503, "The model is not available", retry=True),
    Outcome.MODEL_ERROR: RefusalKind(500, "The model failed"),
}

_FALLBACK_RETRY_S: Final = 1.0


class Refused(Exception):
    """A request that gets no answer of the model. ``figures`` are what the problem body adds, in bytes and counts."""

    def __init__(
        self,
        reason: Outcome,
        detail: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        kind = REFUSALS[reason]
        self.reason = reason
        self.detail = detail
        self.title = kind.title
        self.status = kind.status if status is None else status
        self.retry_after_s = (retry_after_s or _FALLBACK_RETRY_S) if kind.retry else None
        self.figures = {k: v for k, v in (figures or {}).items() if v is not None}

    @property
    def retry_after_header(self) -> str | None:
        """Whole seconds, at least 1, or ``None`` where coming back will not help."""
        return None if self.retry_after_s is None else str(max(1, ceil(self.retry_after_s)))


_DETAILS: Final[Mapping[Outcome, str]] = {
    Outcome.QUEUE_FULL: "{waiting} requests wait in lane {lane} already.",
    Outcome.NO_ROOM: "It needs {price_bytes} bytes; {available_bytes} of {capacity_bytes} are free.",
    Outcome.QUEUE_TIMEOUT: "It waited {waited_s:.1f} s in lane {lane} for {blocked_by}.",
    Outcome.WATERMARK: "Others must finish or free memory first.",
    Outcome.BREAKER_OPEN: "It opens again by itself after its cooldown.",
    Outcome.DRAINING: "Work under way is being finished; no new work is taken.",
    Outcome.SHUTDOWN: "The grace time ended while the request waited.",
    Outcome.GPU_STALE: "It waited {waited_s:.1f} s in lane {lane} for a reading of the card.",
    Outcome.GPU_LOST: "The driver no longer answers for it.",
    Outcome.TOO_LARGE: "It needs {price_bytes} bytes; the card empty of everything else holds {capacity_bytes}.",
}


def refused(decision: Refuse, lane: str) -> Refused:
    """Make the core's refusal an exception, with its figures."""
    figures = {
        "lane": lane,
        "price_bytes": decision.price_bytes,
        "available_bytes": decision.available_bytes,
        "capacity_bytes": decision.capacity_bytes,
        "waiting": decision.waiting,
        "blocked_by": decision.blocked_by,
    }
    detail = _DETAILS[decision.reason].format(**figures, waited_s=decision.waited_s)
    return Refused(decision.reason, detail, retry_after_s=decision.retry_after_s, figures=figures)
