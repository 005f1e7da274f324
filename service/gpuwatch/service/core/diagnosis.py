"""From a snapshot's figures alone: the cause, and one sentence for a person. Sizes are bytes.

What is told apart so far: a neighbour that grew by at least what was missing, and by enough to matter. Everything else
is ``unknown``: no cause is named on a guess.
"""

from dataclasses import dataclass

from gpuwatch.service.core.verdict import NEIGHBOUR_SHARE, size
from gpuwatch.storage.records import Cause, ProcessUse, Reading, Trigger


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the figures say. ``confidence`` is ``None`` where no cause is named."""

    cause: Cause
    headline: str
    confidence: float | None = None


def diagnose(
    *,
    trigger: Trigger,
    reading: Reading,
    high_ratio: float,
    processes: tuple[ProcessUse, ...],
    foreign_change_bytes: int | None,
    requested_bytes: int | None = None,
    free_bytes: int | None = None,
) -> Diagnosis:
    """Name the cause. ``foreign_change_bytes`` is the neighbours' growth over the 60 s before."""
    short = _missing_bytes(reading, high_ratio, requested_bytes, free_bytes)
    what = _what(trigger, reading, requested_bytes, free_bytes)
    if trigger is Trigger.MANUAL:
        return Diagnosis(cause=Cause.MANUAL, headline=what)
    # Where nothing was missing (the free bytes lay in pieces) or little was, any neighbour's jitter would be enough.
    enough = max(short, NEIGHBOUR_SHARE * reading.total_bytes)
    nothing_short = trigger is Trigger.OUT_OF_MEMORY and short == 0
    if foreign_change_bytes is not None and foreign_change_bytes >= enough and not nothing_short:
        others = [p for p in processes if not p.own and (p.change_60s_bytes or 0) > 0]
        grown = max(others, key=lambda p: p.change_60s_bytes or 0, default=None)
        who = "others" if grown is None else grown.unit or grown.name
        # Half sure at the shortfall itself, surer the further the growth exceeds it.
        confidence = round(min(0.95, 0.5 + 0.25 * (foreign_change_bytes / max(1, short) - 1)), 2)
        headline = f"{what}: {who} +{size(foreign_change_bytes)} in the 60 s before"
        return Diagnosis(cause=Cause.OTHER_PROCESS, headline=headline, confidence=confidence)
    return Diagnosis(cause=Cause.UNKNOWN, headline=what)


def _missing_bytes(reading: Reading, high_ratio: float, requested: int | None, free: int | None) -> int:
    if requested is not None and free is not None:
        return max(0, requested - free)
    return max(0, reading.pressure_bytes - int(high_ratio * reading.total_bytes))


def _what(trigger: Trigger, reading: Reading, requested: int | None, free: int | None) -> str:
    held = f"{size(reading.used_bytes)} of {size(reading.total_bytes)} used"
    match trigger:
        case Trigger.OUT_OF_MEMORY:
            asked = "" if requested is None else f" asking for {size(requested)} with {size(free or 0)} free"
            return f"out of memory{asked}, {held}"
        case Trigger.WATERMARK:
            return f"near-miss: above the high mark, {held}"
        case Trigger.BREAKER:
            return f"breaker opened, {held}"
        case _:
            return f"{trigger} snapshot, {held}"
