"""The service's state as one screen of lines, for a shell: pure, from `State` to text."""

from collections.abc import Iterable

from gpuwatch.cli.text import (
    ABSENT,
    ago,
    change_pairs,
    counts,
    duration,
    elapsed,
    milliseconds,
    pairs,
    safe,
    share,
    size,
    table,
)
from gpuwatch.storage.records import KnobChange
from gpuwatch.storage.state import GpuState, GpuStatus, LaneState, SnapshotHead, State, Status


def status_lines(state: State, *, now: float) -> list[str]:
    """Give the screen of ``gpuwatch status``: mode, verdict, cards, lanes, last change, last snapshot."""
    lines = [*_head(state, now=now), ""]
    for gpu in state.gpus:
        lines += [*_gpu(gpu, now=now), ""]
    if state.lanes:
        lines += [*_lanes(state.lanes), ""]
    lines += pairs(_tail(state, now=now), indent=0)
    return lines


def _head(state: State, *, now: float) -> list[str]:
    service = state.service
    words = [
        f"gpuwatch {safe(service.version)}",
        safe(service.name),
        service.mode.upper() if service.mode != "enforce" else "enforce",
        service.status.value.upper() if service.status is not Status.READY else "ready",
    ]
    if service.simulated:
        words.append("SIMULATED card")
    lines = ["  ".join(w for w in words if w) + f"  up {duration(service.uptime_s)}  pid {service.pid}"]
    if service.reason:
        lines.append(f"{safe(service.reason)} (for {elapsed(service.since, now)})")
    if state.verdict:
        lines.append(safe(state.verdict))
    return lines


def _gpu(gpu: GpuState, *, now: float) -> list[str]:
    marks = [] if gpu.status is GpuStatus.OK else [gpu.status.value.upper()]
    if gpu.stale_since is not None:
        marks.append(f"for {elapsed(gpu.stale_since, now)}")
    if gpu.read_age_s is not None:
        marks.append(f"read {duration(gpu.read_age_s)} ago")
    label = safe(gpu.name) + (" SIMULATED" if gpu.simulated and "SIMULATED" not in gpu.name.upper() else "")
    mine = [f"weights {size(gpu.weights_bytes)}", f"context {size(gpu.context_bytes)}"]
    mine += [f"allocated {size(gpu.allocated_bytes)}", f"own cache {size(gpu.reclaimable_bytes)}"]
    neighbours = [
        f"{safe(p.name)} ({p.pid}) {size(p.used_bytes)}" for p in gpu.processes if not p.own and p.used_bytes != 0
    ]
    items = [
        ("used", f"{size(gpu.used_bytes)} of {size(gpu.total_bytes)} ({share(gpu.used_bytes, gpu.total_bytes)})"),
        ("ours", ", ".join(mine)),
        ("others", size(gpu.foreign_bytes) + (f": {', '.join(neighbours)}" if neighbours else "")),
        (
            "promised",
            f"{size(gpu.promised_bytes)} of capacity {size(gpu.capacity_bytes)}, {size(gpu.available_bytes)} available",
        ),
        ("pressure", _pressure(gpu, now=now)),
    ]
    return [f"GPU {gpu.index}  {label}  {'  '.join(marks)}".rstrip(), *pairs(items)]


def _pressure(gpu: GpuState, *, now: float) -> str:
    text = f"{gpu.pressure.value} at {100 * gpu.pressure_ratio:.0f} %"
    if gpu.pressure_since is not None:
        text += f" (for {elapsed(gpu.pressure_since, now)})"
    return f"{text}, breaker {gpu.breaker.value}"


def _lanes(lanes: Iterable[LaneState]) -> list[str]:
    head = ("lane", "run/limit", "wait/cap", "oldest", "blocked by", "fits", "p50", "p99", "ok/60s", "refused/60s")
    return table(
        head,
        (
            (
                safe(lane.name) + (" (draining)" if lane.draining else ""),
                f"{lane.running}/{lane.limit}" + (f" +{lane.orphans} orphaned" if lane.orphans else ""),
                f"{lane.waiting}/{lane.queue_limit}",
                milliseconds(lane.oldest_wait_ms),
                lane.blocked_by.value if lane.blocked_by else ABSENT,
                ABSENT if lane.fits_now is None else str(lane.fits_now),
                milliseconds(lane.p50_60s_ms),
                milliseconds(lane.p99_60s_ms),
                str(lane.ok_60s),
                counts(lane.refused_60s),
            )
            for lane in lanes
        ),
        right=(1, 2, 3, 5, 6, 7, 8),
    )


def _tail(state: State, *, now: float) -> list[tuple[str, str]]:
    telemetry = state.telemetry
    recorded = f"{telemetry.written} rows written, {telemetry.queued} queued, {telemetry.dropped} LOST"
    if not telemetry.dropped:
        recorded = f"{telemetry.written} rows written, none lost"
    if telemetry.last_error:
        recorded += f"; last error: {safe(telemetry.last_error)}"
    return [
        ("last change", change_text(state.last_change, now=now) if state.last_change else "none"),
        ("last snapshot", snapshot_text(state.last_snapshot, now=now) if state.last_snapshot else "none"),
        ("telemetry", recorded),
    ]


def change_text(change: KnobChange, *, now: float) -> str:
    """Write one knob change on a line."""
    note = f' "{safe(change.note)}"' if change.note else ""
    return f"v{change.version} {ago(change.at, now)} by {safe(change.actor)}: {change_pairs(change.changes)}{note}"


def snapshot_text(head: SnapshotHead, *, now: float) -> str:
    """Write one snapshot's head on a line."""
    return f"#{head.id} {ago(head.at, now)}, {head.trigger.value}, {head.cause.value}: {safe(head.headline)}"
