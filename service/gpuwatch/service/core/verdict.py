"""Why requests wait, in one sentence for a person, from the state alone. Sizes are shown in binary units."""

from typing import Final

from gpuwatch.storage.records import BlockedBy, Breaker, Pressure
from gpuwatch.storage.state import GpuState, GpuStatus, LaneState, State, Status

NEIGHBOUR_SHARE: Final = 0.05
"""Share of a card by which a neighbour must change to be named."""
_UNITS: Final = ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def verdict(state: State) -> str:
    """Name what requests wait for, and what will not help."""
    if state.service.status is Status.DRAINING:
        return f"draining: {sum(lane.in_flight for lane in state.lanes)} runs under way, nothing new is taken"
    for gpu in state.gpus:
        if gpu.status is GpuStatus.LOST:
            return f"GPU{gpu.index} is lost: the driver no longer answers for it"
    waiting = [lane for lane in state.lanes if lane.waiting]
    if not waiting:
        return _nothing_waits(state)
    worst = max(waiting, key=lambda lane: (lane.oldest_wait_ms or 0.0, lane.waiting))
    return _why(worst, state.gpus)


def _nothing_waits(state: State) -> str:
    for gpu in state.gpus:
        if gpu.status is GpuStatus.STALE:
            return f"GPU{gpu.index} gives no readings: new requests will wait"
        if gpu.breaker is not Breaker.CLOSED:
            return f"GPU{gpu.index}'s breaker is {gpu.breaker}: the card was nearly full"
        if gpu.pressure is Pressure.HIGH:
            return f"GPU{gpu.index} is above its high mark: new requests will wait{_neighbour(gpu)}"
    running = sum(lane.in_flight for lane in state.lanes)
    return f"nothing waits; {running} running" if running else "nothing waits; idle"


def _why(lane: LaneState, gpus: tuple[GpuState, ...]) -> str:  # noqa: PLR0911 - one sentence a cause
    gpu = max(gpus, key=lambda g: g.available_bytes, default=None)
    grown = "" if gpu is None else _neighbour(gpu)
    match lane.blocked_by:
        case BlockedBy.SLOTS if lane.limit == 0:
            return f"{lane.name} is paused: its concurrency is 0"
        case BlockedBy.SLOTS:
            more = f"; {lane.fits_now} more would fit in bytes" if lane.fits_now else ""
            return f"{lane.name} waits for SLOTS: {lane.running} of {lane.limit} runs under way{more}"
        case BlockedBy.BYTES:
            return f"{lane.name} waits for BYTES, not slots{grown}{_need(lane, gpu)}"
        case BlockedBy.WATERMARK:
            return f"{lane.name} waits for the WATERMARK: the card is too full; a higher limit will not help{grown}"
        case BlockedBy.BREAKER:
            return f"{lane.name} waits for the BREAKER: the card was nearly full{grown}"
        case BlockedBy.STALE:
            return f"{lane.name} waits for a READING: the card's figures are too old to be believed"
        case _:
            return f"{lane.name} waits behind an older request of another lane"


def _need(lane: LaneState, gpu: GpuState | None) -> str:
    if gpu is None:
        return ""
    if lane.head_price_bytes is None:
        return "; its price is unknown: it runs alone"
    return (
        f"; needs {size(lane.head_price_bytes)}, {size(max(0, gpu.available_bytes))} of {size(gpu.capacity_bytes)} left"
    )


def _neighbour(gpu: GpuState) -> str:
    """Name the neighbour that grew most in the last 60 s, where it matters."""
    others = [p for p in gpu.processes if not p.own and p.change_60s_bytes]
    grown = max(others, key=lambda p: p.change_60s_bytes or 0, default=None)
    if grown is None or (grown.change_60s_bytes or 0) < NEIGHBOUR_SHARE * gpu.total_bytes:
        return ""
    return f"; {grown.unit or grown.name} +{size(grown.change_60s_bytes or 0)} in 60 s"


def size(value: int) -> str:
    """Bytes as a short text: ``2.4G``, ``87M``."""
    for unit, letter in _UNITS:
        if value >= unit:
            return f"{value / unit:.1f}{letter}" if value < 10 * unit else f"{value / unit:.0f}{letter}"
    return f"{value}B"
