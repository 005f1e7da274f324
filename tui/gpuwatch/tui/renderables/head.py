"""The top of the dashboard: who, how, since when, how old; why requests wait; what comes in and goes out. Pure."""

from typing import Final

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from gpuwatch.storage.records import Trigger
from gpuwatch.storage.state import GpuState, GpuStatus, State, Status
from gpuwatch.tui import format as fmt
from gpuwatch.tui.renderables import palette
from gpuwatch.tui.view import Link, View

_NAME: Final = 12
"""Cells that the service's name is worth."""
_DAY_S: Final = 86_400.0
_READYZ: Final = {Status.READY: 200, Status.DEGRADED: 200, Status.DRAINING: 503, Status.FATAL: 503}


def header(view: View, now: float, width: int, *, read_only: bool = False) -> Text:
    """Draw the first line: name, mode, status with its age, the clock and the age of what is shown."""
    state = view.state
    age = view.age_s(now)
    right = f"{fmt.clock(now)}  data {fmt.seconds(age)}"
    if state is None:
        return Text(fmt.sides("gpuwatch", right, width), palette.STRONG)
    service = state.service
    flags = "".join(f" {word}" for word in _flags(state, read_only=read_only))
    since = fmt.seconds(view.service_now(now) - service.since)
    mark = "" if service.status is Status.READY else "! "
    status = f"{mark}{service.status.upper()} {since}"
    mode = {"enforce": "ENFORCING", "observe": "OBSERVE", "bypass": "BYPASS"}.get(service.mode, service.mode.upper())
    style = palette.STRONG if service.status is Status.READY else palette.WARN
    room = width - cell_len(right) - 2
    # How the service is matters more than its name, which gives way; and more than what follows from it.
    for rest in (f"  {mode}{flags}  {status} (readyz {readyz(state)})", f"  {mode}{flags}  {status}"):
        if cell_len(fmt.cut(service.name, _NAME)) + cell_len(rest) <= room:
            break
    return Text(fmt.sides(fmt.cut(service.name, max(0, room - cell_len(rest))) + rest, right, width), style)


def _flags(state: State, *, read_only: bool) -> list[str]:
    words = ["SIMULATED"] if state.service.simulated else []
    return [*words, "READ-ONLY"] if read_only else words


def readyz(state: State) -> int:
    """Give the status that ``/readyz`` answers with, as far as the state tells."""
    unusable = bool(state.gpus) and all(gpu.status is GpuStatus.LOST for gpu in state.gpus)
    return 503 if unusable else _READYZ[state.service.status]


def why(view: View, now: float, width: int) -> Text:
    """Draw the second line: the verdict, or what is wrong with the data itself."""
    text, style = _why(view, now)
    return Text(fmt.fit(f"WHY  {text}", width), style)


def _why(view: View, now: float) -> tuple[str, Style]:
    since = fmt.seconds(now - view.link_since)
    if view.state is None:
        if view.link is Link.CONNECTING and not view.link_why:
            return "looking for a service", palette.WARN
        return f"no service for {since}: {view.link_why or 'none found'}; start one with gpuwatch serve", palette.ALARM
    if view.link is not Link.LIVE:
        age = fmt.seconds(view.age_s(now))
        return f"DISCONNECTED, figures are {age} old: {view.link_why}; trying again", palette.ALARM
    if view.is_stale(now):
        return f"NO NEWS from the service for {fmt.seconds(view.age_s(now))}: figures are old", palette.ALARM
    lost = [gpu for gpu in view.state.gpus if gpu.status is not GpuStatus.OK]
    if lost:
        gpu = lost[0]
        age = "" if gpu.stale_since is None else f" since {fmt.clock(gpu.stale_since)}"
        return f"GPU{gpu.index} {gpu.status.upper()}{age}; {view.state.verdict}", palette.ALARM
    waiting = any(lane.waiting for lane in view.state.lanes)
    return view.state.verdict, palette.WARN if waiting else palette.GOOD


def flow(view: View, now: float, width: int) -> Text:
    """Draw the third line: requests a second, refusals by reason, out-of-memories, and what telemetry lost."""
    rates = view.rates
    lost = view.left_out + (view.state.telemetry.dropped if view.state else 0)
    ooms = out_of_memories(view, view.service_now(now) - _DAY_S)
    right = f" | OOM 24h {ooms} | lost {lost}"
    if rates is None:
        return Text(fmt.sides("IN -/s  OK -  REFUSED -/s", right, width), palette.DIM)
    by_reason = ", ".join(f"{reason} {fmt.rate(per_s)}" for reason, per_s in rates.refused)
    left = f"IN {fmt.rate(rates.arrived)}/s  OK {fmt.rate(rates.ok)}  REFUSED {fmt.rate(rates.refused_all)}/s"
    left += f": {by_reason}" if by_reason else ""
    return Text(fmt.sides(left, right, width), palette.WARN if rates.refused or lost or ooms else palette.PLAIN)


def out_of_memories(view: View, since: float) -> int:
    """Count the out-of-memory snapshots since a time of the service's clock."""
    return sum(head.trigger is Trigger.OUT_OF_MEMORY and head.at >= since for head in view.snapshots)


def card(gpu: GpuState, width: int) -> Text:
    """Draw the card's own line."""
    figures = [f"GPU{gpu.index} {fmt.size(gpu.total_bytes)}", f"pressure {gpu.pressure}", f"breaker {gpu.breaker}"]
    if gpu.util_pct is not None:
        figures.append(f"util {gpu.util_pct:.0f}%")
    if gpu.temperature_c is not None:
        figures.append(f"{gpu.temperature_c:.0f}C")
    figures.append(fmt.clean(gpu.name))
    right = f"read {fmt.seconds(gpu.read_age_s)} ago"
    calm = gpu.pressure == "normal" and gpu.breaker == "closed" and gpu.status is GpuStatus.OK
    return Text(fmt.sides("  ".join(figures), right, width), palette.STRONG if calm else palette.WARN)


def promised(view: View, gpu: GpuState, width: int) -> Text:
    """Draw what is promised of the capacity, and how many more of each lane's head would fit now."""
    text = f"PROMISED {fmt.size(gpu.promised_bytes)} of {fmt.size(gpu.capacity_bytes)}"
    text += f" ({fmt.size(gpu.available_bytes)} left)"
    lanes = view.state.lanes if view.state else ()
    fits = [
        f"{fmt.clean(lane.name)} +{lane.fits_now} ({fmt.size(lane.head_price_bytes)})"
        for lane in lanes
        if lane.fits_now is not None
    ]
    text += "   FITS NOW " + "  ".join(fits) if fits else ""
    return Text(fmt.fit(text, width))
