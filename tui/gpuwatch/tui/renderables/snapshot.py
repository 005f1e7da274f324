"""A snapshot's page: who, what was asked, what held the card before and at that moment, who was in flight. Pure.

Everything in the payload may be absent: what is not there is left out or shown as ``-``, never invented.
"""

from typing import Final

from rich.style import Style
from rich.text import Text

from gpuwatch.storage.records import Cause, OomSnapshot, Trigger
from gpuwatch.tui import format as fmt
from gpuwatch.tui.renderables import palette
from gpuwatch.tui.renderables.chart import Scale, chart
from gpuwatch.tui.renderables.lanes import value_text
from gpuwatch.tui.renderables.payload import Table, number, table, tables, word
from gpuwatch.tui.view import Mark, MarkKind, Point

_WHO: Final = {
    Cause.OTHER_PROCESS: "NEIGHBOUR, not us",
    Cause.UNKNOWN: "cause unknown: no figure here tells it apart",
    Cause.MANUAL: "taken by hand",
}
_LINE: Final = "─"
_CHART_ROWS: Final = 9
_MOST_ROWS: Final = 8
_LAST_S: Final = 60.0


def page(snapshot: OomSnapshot, width: int, name: str = "") -> list[Text]:
    """Draw the whole page, as many lines as it takes."""
    payload = snapshot.payload
    return [
        *_title(snapshot, name, width),
        _rule(width),
        *_asked(snapshot, payload, width),
        *_figures(payload, width),
        _rule(width),
        *_last_minute(snapshot, payload, width),
        _rule(width),
        *_in_flight(snapshot, payload, width),
        *_waiting(payload, width),
        *_processes(payload, width),
        _rule(width),
        *_knobs(payload, snapshot.knobs_version, width),
    ]


def _rule(width: int) -> Text:
    return Text(_LINE * width, palette.DIM)


def _line(text: str, width: int, style: Style = palette.PLAIN) -> Text:
    return Text(fmt.fit(text, width), style)


def _title(snapshot: OomSnapshot, name: str, width: int) -> list[Text]:
    when = fmt.clock(snapshot.at, dated=True)
    left = f"SNAPSHOT #{snapshot.id}  {snapshot.trigger.upper()}  GPU{snapshot.gpu}  {when}  {fmt.clean(name)}"
    style = palette.BAD if snapshot.trigger is Trigger.OUT_OF_MEMORY else palette.WARN
    sure = "" if snapshot.confidence is None else f" ({fmt.percent(snapshot.confidence)} sure)"
    lines = [
        Text(fmt.sides(left, f"knobs v{snapshot.knobs_version}", width), style),
        _line(f"WHO     {_WHO.get(snapshot.cause, snapshot.cause)}{sure}", width, palette.STRONG),
        _line(f"        {snapshot.headline}", width),
    ]
    if snapshot.request_id is not None:
        dims = table(table(snapshot.payload, "victim"), "dims")
        said = "".join(f" {key}={word(dims, key)}" for key in dims)
        text = f"VICTIM  {snapshot.request_id}{said}: its allocation failed; it is not always the cause"
        lines.append(_line(text, width))
    return lines


def _asked(snapshot: OomSnapshot, payload: Table, width: int) -> list[Text]:
    if snapshot.requested_bytes is None:
        return []
    free = number(table(payload, "error"), "free_bytes")
    cache = number(table(payload, "reading"), "reclaimable_bytes")
    text = f"ASKED   {fmt.size(snapshot.requested_bytes)}   free {fmt.size(free)} + own cache {fmt.size(cache)}"
    if free is not None and cache is not None:
        fits = free + cache >= snapshot.requested_bytes
        text += "  => would have fitted in one piece: fragmentation" if fits else "  => really full, not fragmentation"
    return [_line(text, width)]


def _figures(payload: Table, width: int) -> list[Text]:
    reading = table(payload, "reading")
    history = tables(payload, "history")
    before = history[0] if history else {}
    heading = f"{'':12}{'before':>10}{'now':>10}{'change':>10}"
    lines = [_line(heading, width, palette.DIM)]
    rows = (
        ("context", "context_bytes"),
        ("live", "allocated_bytes"),
        ("own reserved", "reserved_bytes"),
        ("others", "foreign_bytes"),
        ("used", "used_bytes"),
        ("pressure", "pressure_bytes"),
        ("promised", "promised_bytes"),
        ("capacity", "capacity_bytes"),
        ("total", "total_bytes"),
    )
    for label, key in rows:
        now, then = number(reading, key), number(before, key)
        moved = None if now is None or then is None else now - then
        text = f"{label:12}{fmt.size(then):>10}{fmt.size(now):>10}{fmt.change(moved):>10}"
        lines.append(_line(text, width, palette.FOREIGN if key == "foreign_bytes" and moved else palette.PLAIN))
    return lines


def _last_minute(snapshot: OomSnapshot, payload: Table, width: int) -> list[Text]:
    points = _points(payload)
    if not points or not snapshot.total_bytes:
        return [_line("LAST 60 s: no samples were kept", width, palette.DIM)]
    knobs = table(payload, "knobs")
    scale = Scale(
        top=float(snapshot.total_bytes),
        now=snapshot.at,
        window_s=_LAST_S,
        high=_share(knobs, "watermark.high"),
        low=_share(knobs, "watermark.low"),
        breaker=_share(knobs, "breaker.trip"),
    )
    kind = MarkKind.OOM if snapshot.trigger is Trigger.OUT_OF_MEMORY else MarkKind.SNAPSHOT
    return [
        Text.assemble(*((segment.text, segment.style or palette.PLAIN) for segment in line))
        for line in chart(points, [Mark(snapshot.at, kind)], scale, width, _CHART_ROWS)
    ]


def _share(knobs: Table, key: str) -> float:
    value = number(knobs, key)
    return 1.0 if value is None else float(value)


def _points(payload: Table) -> tuple[Point, ...]:
    """Give the samples that say when they were taken, oldest first."""
    names = ("used", "reserved", "allocated", "promised", "foreign")
    timed = ((number(sample, "at"), sample) for sample in tables(payload, "history"))
    points = (Point(at, *(number(sample, f"{name}_bytes") for name in names)) for at, sample in timed if at is not None)
    return tuple(sorted(points, key=lambda point: point.at))


def _in_flight(snapshot: OomSnapshot, payload: Table, width: int) -> list[Text]:
    runs = tables(payload, "in_flight")
    total = sum(number(run, "price_bytes") or 0 for run in runs)
    heading = f"IN FLIGHT ({len(runs)})        lane        ran     price   all together {fmt.size(total)}"
    lines = [_line(heading, width, palette.DIM)]
    victim = table(payload, "victim").get("id")
    for run in runs[:_MOST_ROWS]:
        failed = "FAILED" if victim is not None and run.get("id") == victim else "ORPHAN" if run.get("orphan") else ""
        began = number(run, "started_at")
        ran = fmt.seconds(None if began is None else snapshot.at - began)
        text = f"{fmt.fit(word(run, 'request_id'), 20)}{fmt.fit(word(run, 'lane'), 10)}"
        text += f"{ran:>7}{fmt.size(number(run, 'price_bytes')):>10}  {failed}"
        lines.append(_line(f" {text}", width, palette.BAD if failed == "FAILED" else palette.PLAIN))
    if len(runs) > _MOST_ROWS:
        lines.append(_line(f" and {len(runs) - _MOST_ROWS} more", width, palette.DIM))
    return lines


def _waiting(payload: Table, width: int) -> list[Text]:
    return [
        _line(
            f"WAITING {word(lane, 'waiting')} {word(lane, 'lane')}, "
            f"oldest {fmt.milliseconds(number(lane, 'oldest_wait_ms'))}, "
            f"head needs {fmt.size(number(lane, 'head_price_bytes'))}, blocked by {word(lane, 'blocked_by')}",
            width,
        )
        for lane in tables(payload, "waiting")
    ]


def _processes(payload: Table, width: int) -> list[Text]:
    found = sorted(tables(payload, "processes"), key=lambda process: -(number(process, "used_bytes") or 0))
    lines = [_line("PROCESSES", width, palette.DIM)] if found else []
    for process in found[:_MOST_ROWS]:
        who = word(process, "unit" if process.get("unit") else "name")
        who += " (us)" if process.get("own") else ""
        moved = fmt.change(number(process, "change_60s_bytes"))
        text = f" {fmt.fit(who, 28)}{fmt.size(number(process, 'used_bytes')):>7}{moved:>8} in 60 s"
        lines.append(
            _line(
                f"{text}  pid {word(process, 'pid')} {word(process, 'cmdline') if process.get('cmdline') else ''}",
                width,
            )
        )
    return lines


def _knobs(payload: Table, version: int, width: int) -> list[Text]:
    knobs = table(payload, "knobs")
    if not knobs:
        return []
    lines = [_line(f"KNOBS IN FORCE (v{version})", width, palette.DIM)]
    column = max(36, width // 3)
    pairs = [f"{key} {value_text(key, value)}" for key, value in knobs.items() if word(knobs, key) != fmt.ABSENT]
    per_line = max(1, width // column)
    rows = (pairs[start : start + per_line] for start in range(0, len(pairs), per_line))
    lines.extend(_line("".join(fmt.fit(f" {pair}", column) for pair in row), width) for row in rows)
    return lines
