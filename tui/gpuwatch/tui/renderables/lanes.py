"""The lanes' table and the lines below it: what blocks each lane, the last change, the last snapshot, advice. Pure."""

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.text import Text

from gpuwatch.storage.knobs import spec_of
from gpuwatch.storage.records import BlockedBy, KnobChange, KnobValue, Trigger
from gpuwatch.storage.state import GpuState, LaneState, SnapshotHead
from gpuwatch.tui import format as fmt
from gpuwatch.tui.effect import Effect
from gpuwatch.tui.renderables import palette
from gpuwatch.tui.view import View

_COLUMNS: Final = (
    ("LANE", 9, False),
    ("RUN/LIM", 8, True),
    ("WAIT/CAP", 10, True),
    ("OLD/DEADL", 12, True),
    (" BLOCKED BY", 15, False),
    ("P50", 6, True),
    ("P99", 6, True),
    ("RUN99", 6, True),
    ("REF/min", 8, True),
)
_WIDE: Final = (("  REASONS", 36, False),)
_WIDE_FROM: Final = 110
_BRIEF: Final = 5
_MANY: Final = 10_000
_ACTOR: Final = 16
_HERE: Final = ">"


def table(lanes: Sequence[LaneState], chosen: str | None, width: int, most: int | None = None) -> list[Text]:
    """Draw a heading and one line a lane; the chosen one is marked, and not by colour alone.

    Of more than ``most`` lanes those around the chosen one are drawn, and the heading says how many of how many.
    """
    columns = _COLUMNS + _WIDE if width >= _WIDE_FROM else _COLUMNS
    shown = lanes if most is None else _around(lanes, chosen, most)
    first = "LANE" if len(shown) == len(lanes) else f"{len(shown)} of {len(lanes)}"
    names = (first, *(name for name, _, _ in columns[1:]))
    heading = "".join(fmt.fit(name, size, right=right) for name, (_, size, right) in zip(names, columns, strict=True))
    return [Text(fmt.fit(heading, width), palette.DIM), *(_row(lane, columns, chosen, width) for lane in shown)]


def _around(lanes: Sequence[LaneState], chosen: str | None, most: int) -> Sequence[LaneState]:
    place = next((n for n, lane in enumerate(lanes) if lane.name == chosen), 0)
    start = max(0, min(place - most // 2, len(lanes) - most))
    return lanes[start : start + max(0, most)]


def _row(lane: LaneState, columns: Sequence[tuple[str, int, bool]], chosen: str | None, width: int) -> Text:
    mark = _HERE if lane.name == chosen else " "
    draining = ">" if lane.draining else "/"
    cells = (
        fmt.fit(lane.name, columns[0][1] - 2) + f"{mark} ",
        f"{lane.running}{draining}{lane.limit}",
        f"{_count(lane.waiting)}/{_count(lane.queue_limit)}",
        "-" if lane.oldest_wait_ms is None else f"{_brief(lane.oldest_wait_ms)}/{_brief(lane.queue_timeout_s * 1000)}",
        f" {blocked(lane)}",
        _brief(lane.p50_60s_ms),
        _brief(lane.p99_60s_ms),
        _brief(lane.run_p99_60s_ms),
        str(sum(lane.refused_60s.values())),
        "  " + ", ".join(f"{count} {reason}" for reason, count in lane.refused_60s.items()),
    )
    line = "".join(fmt.fit(cell, size, right=right) for cell, (_, size, right) in zip(cells, columns, strict=False))
    style = palette.WARN if lane.waiting or lane.orphans else palette.PLAIN
    return Text(fmt.fit(line, width), palette.CHOSEN + style if lane.name == chosen else style)


def _brief(value_ms: float | None) -> str:
    """Give a duration at most five cells, so that columns never touch: ``10m`` for ``10m00s``."""
    text = fmt.milliseconds(value_ms)
    for unit in "hm":
        whole, found, rest = text.partition(unit)
        if found and rest and len(text) > _BRIEF:
            return whole + unit
    return text


def _count(number: int) -> str:
    return str(number) if number < _MANY else f"{number // 1000}k"


def blocked(lane: LaneState) -> str:
    """Tell what the lane's head waits for, and for how much of the last minute it did."""
    if lane.limit == 0:
        return "PAUSED"
    if lane.blocked_by is None:
        return f"{lane.orphans} orphans" if lane.orphans else "-"
    share = lane.blocked_60s.get(lane.blocked_by.value, 0.0) / 60
    return f"{lane.blocked_by.upper()} {fmt.percent(min(1.0, share))}"


def last_change(view: View, width: int) -> Text:
    """Draw the last knob change: version, when, who, what, and what it did."""
    change = view.changes[0] if view.changes else view.state.last_change if view.state else None
    if change is None:
        return Text(fmt.fit("CHANGE none yet", width))
    effect = view.effect
    if effect is not None and (effect.version != change.version or not effect.after):
        effect = None
    left = f"CHANGE {change_text(change)}"
    if effect is None:
        return Text(fmt.fit(left, width))
    right = f" | {effect_text(effect)}"
    if cell_len(left) + cell_len(right) > width:
        right = f" | {effect_text(effect, brief=True)}"
    return Text(fmt.sides(left, right, width))


def effect_text(effect: Effect, *, brief: bool = False) -> str:
    """Put on one line what a change did to the lane that it touched: the minute before against the minute after."""
    told = []
    for lane in effect.lanes[:1]:
        before, after = effect.before.get(lane), effect.after.get(lane)
        if before is not None and after is not None:
            p99 = f"p99 {fmt.milliseconds(before.p99_ms)}>{fmt.milliseconds(after.p99_ms)}"
            if brief:
                return f"ref {before.refused}>{after.refused} {p99}"
            told.append(f"ok {before.ok}>{after.ok}, refused {before.refused}>{after.refused}, {p99}")
    return "effect/min: " + ", ".join(told)


def change_text(change: KnobChange) -> str:
    """Put a change on one line: version, when, who, what."""
    what = ", ".join(
        f"{key.removeprefix('lanes.')} {value_text(key, before)}>{value_text(key, after)}"
        for key, (before, after) in change.changes.items()
    )
    return f"v{change.version} {fmt.clock(change.at)[:5]} {fmt.cut(change.actor.partition(' (')[0], _ACTOR)} {what}"


def value_text(key: str, value: KnobValue) -> str:
    """Put a knob's value in its own unit: sizes as sizes."""
    spec = spec_of(key)
    if spec is not None and spec.unit == "bytes" and isinstance(value, int | float):
        return fmt.size(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def last_snapshot(view: View, now: float, width: int) -> Text:
    """Draw the last snapshot: id, when, what it says; and how long ago the last out-of-memory was."""
    head = view.snapshots[0] if view.snapshots else view.state.last_snapshot if view.state else None
    if head is None:
        return Text(fmt.fit("SNAP   none yet", width))
    oom = next((one for one in view.snapshots if one.trigger is Trigger.OUT_OF_MEMORY), None)
    age = "" if oom is None else f" | last OOM {fmt.seconds(view.service_now(now) - oom.at)} ago (#{oom.id})"
    style = palette.BAD if head.trigger is Trigger.OUT_OF_MEMORY else palette.PLAIN
    return Text(fmt.sides(f"SNAP   {snapshot_text(head)}", age, width), style)


def snapshot_text(head: SnapshotHead) -> str:
    """Put a snapshot on one line."""
    return f"#{head.id} {fmt.clock(head.at)} {head.trigger}, {head.cause}: {head.headline}"


def advice(view: View, width: int) -> Text:
    """Draw what to try, and what will not help."""
    if view.state is None:
        return Text(fmt.fit("TRY    gpuwatch serve TARGET starts a service; this console connects by itself", width))
    waiting = [lane for lane in view.state.lanes if lane.waiting and lane.blocked_by is not None]
    if not waiting:
        return Text(fmt.fit("TRY    nothing to do", width), palette.DIM)
    lane = max(waiting, key=lambda one: one.oldest_wait_ms or 0.0)
    return Text(fmt.fit("TRY    " + _advice(lane, view.state.gpus), width))


def _advice(lane: LaneState, gpus: Sequence[GpuState]) -> str:
    foreign = max((gpu.foreign_bytes for gpu in gpus), default=0)
    others = f"free others' {fmt.size(foreign)}, or " if foreign else ""
    match lane.blocked_by:
        case BlockedBy.SLOTS if lane.limit == 0:
            return f"{lane.name} is paused: + starts it"
        case BlockedBy.SLOTS:
            return f"raise {lane.name} with +: slots are what it waits for"
        case BlockedBy.BYTES:
            return f"raising {lane.name}'s limit will NOT help; {others}send it smaller requests"
        case BlockedBy.WATERMARK | BlockedBy.BREAKER:
            return f"raising limits will NOT help; {others}wait for runs to end"
        case _:
            return "look at the card: its readings do not come (gpuwatch doctor)"


def neighbours(gpu: GpuState, width: int, most: int) -> list[Text]:
    """Draw the processes on the card, the largest first, with their change."""
    rows = sorted(gpu.processes, key=lambda p: -(p.used_bytes or 0))[:most]
    lines = [Text(fmt.fit("PROCESSES          BYTES    60 s  PID", width), palette.DIM)]
    for process in rows:
        name = f"{process.unit or process.name}{' (us)' if process.own else ''}"
        moved = fmt.change(process.change_60s_bytes)
        figures = (
            f"{fmt.fit(fmt.size(process.used_bytes), 7, right=True)} {fmt.fit(moved, 7, right=True)}  {process.pid}"
        )
        lines.append(Text(fmt.fit(f"{fmt.fit(name, 17)} {figures}", width)))
    return lines


def events(view: View, width: int, most: int) -> list[Text]:
    """Draw the last events, newest first."""
    lines = [Text(fmt.fit("EVENTS", width), palette.DIM)]
    styles = {"warning": palette.WARN, "error": palette.BAD}
    for event in view.events[:most]:
        text = f"{fmt.clock(event.at)} {event.kind}: {event.message}"
        lines.append(Text(fmt.fit(text, width), styles.get(event.severity.value, palette.PLAIN)))
    return lines


def running(view: View, now: float, width: int, most: int) -> list[Text]:
    """Draw the runs that have been under way for longest."""
    lines = [Text(fmt.fit("RUNNING      LANE     PRICE   FOR", width), palette.DIM)]
    runs = sorted(view.state.in_flight if view.state else (), key=lambda run: run.started_at)
    for run in runs[:most]:
        age = fmt.fit(fmt.seconds(now - run.started_at), 5, right=True)
        figures = f"{fmt.fit(fmt.size(run.price_bytes), 6, right=True)} {age}"
        orphan = " ORPHAN" if run.orphan else ""
        lines.append(Text(fmt.fit(f"{fmt.fit(run.request_id, 12)} {fmt.fit(run.lane, 7)} {figures}{orphan}", width)))
    return lines
