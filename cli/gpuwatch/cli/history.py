"""What the database remembers, as lines for a shell: pure, from records to text.

A snapshot's payload is plain data that another version may have written: what is missing or of another kind is left
out, never guessed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuwatch.cli.text import (
    ABSENT,
    duration,
    knob_text,
    milliseconds,
    moment,
    pairs,
    safe,
    share,
    size,
    sparkline,
    table,
)
from gpuwatch.storage.records import Dims, OomSnapshot, RequestRecord, Trigger
from gpuwatch.storage.state import SnapshotHead

CAPTION_S = 60


def snapshot_table(heads: Iterable[SnapshotHead]) -> list[str]:
    """Give one line a snapshot."""
    return table(
        ("id", "at", "gpu", "trigger", "cause", "used", "others", "headline"),
        (
            (
                str(h.id),
                moment(h.at),
                str(h.gpu),
                h.trigger.value,
                h.cause.value,
                share(h.used_bytes, h.total_bytes),
                size(h.foreign_bytes),
                safe(h.headline),
            )
            for h in heads
        ),
        right=(0, 5, 6),
    )


def request_table(records: Iterable[RequestRecord]) -> list[str]:
    """Give one line a request."""
    return table(
        ("at", "request", "lane", "outcome", "status", "queued", "ran", "total", "price", "peak", "blocked by", "dims"),
        (
            (
                moment(r.at),
                safe(r.request_id),
                safe(r.lane),
                r.outcome.value,
                str(r.status),
                milliseconds(r.queue_ms),
                milliseconds(r.run_ms),
                milliseconds(r.total_ms),
                size(r.price_bytes),
                size(r.peak_bytes),
                r.blocked_by.value if r.blocked_by else ABSENT,
                dims_text(r.dims),
            )
            for r in records
        ),
        right=(4, 5, 6, 7, 8, 9),
    )


def dims_text(dims: Dims | None) -> str:
    """Write dims as ``height=600 width=512``."""
    return " ".join(f"{safe(name)}={value}" for name, value in dims.items()) if dims else ABSENT


def snapshot_page(snapshot: OomSnapshot) -> list[str]:
    """Give the readable page of one snapshot: who, asked, figures, in flight, processes, the last minute, knobs."""
    payload = snapshot.payload
    reading = _mapping(payload.get("reading"))
    simulated = " SIMULATED" if reading.get("source") == "sim" else ""
    title = "OUT-OF-MEMORY" if snapshot.trigger is Trigger.OUT_OF_MEMORY else f"{snapshot.trigger.value} near-miss"
    where = f"GPU {snapshot.gpu}{simulated}  {moment(snapshot.at)}  knobs v{snapshot.knobs_version}"
    lines = [
        f"SNAPSHOT #{snapshot.id}  {title}  {where}",
        "",
        *pairs(_who(snapshot, payload), indent=0),
        "",
        "CARD",
        *pairs(_figures(snapshot, reading)),
    ]
    lines += _in_flight(_mappings(payload.get("in_flight")), at=snapshot.at)
    lines += _waiting(_mappings(payload.get("waiting")))
    lines += _processes(_mappings(payload.get("processes")))
    lines += _last_minute(_mappings(payload.get("history")), total_bytes=snapshot.total_bytes)
    lines += _knobs(_mapping(payload.get("knobs")))
    return lines


def _who(snapshot: OomSnapshot, payload: Mapping[str, Any]) -> list[tuple[str, str]]:
    sure = "" if snapshot.confidence is None else f" (confidence {100 * snapshot.confidence:.0f} %)"
    items = [("WHO", f"{snapshot.cause.value}{sure}"), ("", safe(snapshot.headline))]
    if snapshot.request_id is not None:
        dims = _mapping(_mapping(payload.get("victim")).get("dims"))
        items.append(("VICTIM", f"{safe(snapshot.request_id)} {dims_text(dims) if dims else ''}".rstrip()))
    if snapshot.requested_bytes is not None:
        free = _bytes(_mapping(payload.get("error")).get("free_bytes"))
        items.append(("ASKED", f"{size(snapshot.requested_bytes)}, {size(free)} free on the card"))
    return items


def _figures(snapshot: OomSnapshot, reading: Mapping[str, Any]) -> list[tuple[str, str]]:
    total = snapshot.total_bytes
    change = snapshot.foreign_change_bytes
    changed = "" if change is None else f" ({'+' if change >= 0 else ''}{size(change)} in the last {CAPTION_S} s)"
    return [
        ("used", f"{size(snapshot.used_bytes)} of {size(total)} ({share(snapshot.used_bytes, total)})"),
        ("allocated", size(snapshot.allocated_bytes)),
        ("own cache", size(_bytes(reading.get("reclaimable_bytes")))),
        ("context", size(_bytes(reading.get("context_bytes")))),
        ("others", f"{size(snapshot.foreign_bytes)}{changed}"),
        ("promised", f"{size(_bytes(reading.get('promised_bytes')))} of {size(_bytes(reading.get('capacity_bytes')))}"),
    ]


def _in_flight(entries: Sequence[Mapping[str, Any]], *, at: float) -> list[str]:
    if not entries:
        return ["", "IN FLIGHT  nothing"]
    rows = [
        (
            safe(e.get("request_id", ABSENT)),
            safe(e.get("lane", ABSENT)),
            safe(e.get("model", ABSENT)),
            duration(max(0.0, at - started)) if isinstance(started := e.get("started_at"), int | float) else ABSENT,
            size(_bytes(e.get("price_bytes"))),
            "orphan" if e.get("orphan") else "",
        )
        for e in entries
    ]
    promised = sum(_bytes(e.get("price_bytes")) or 0 for e in entries)
    head = ("request", "lane", "model", "ran", "price", "")
    return [
        "",
        f"IN FLIGHT  {len(entries)}, {size(promised)} promised together",
        *_indented(table(head, rows, right=(3, 4))),
    ]


def _waiting(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    if not entries:
        return ["", "WAITING  nothing"]
    rows = [
        (
            safe(e.get("lane", ABSENT)),
            safe(e.get("waiting", ABSENT)),
            milliseconds(_number(e.get("oldest_wait_ms"))),
            size(_bytes(e.get("head_price_bytes"))),
            safe(e.get("blocked_by") or ABSENT),
        )
        for e in entries
    ]
    return ["", "WAITING", *_indented(table(("lane", "requests", "oldest", "head's price", "blocked by"), rows))]


def _processes(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    if not entries:
        return ["", "PROCESSES  none known"]
    rows = [
        (
            safe(e.get("pid", ABSENT)),
            size(_bytes(e.get("used_bytes"))),
            size(_bytes(e.get("change_60s_bytes"))),
            "us" if e.get("own") else "",
            safe(e.get("name", ABSENT)),
        )
        for e in entries
    ]
    return ["", "PROCESSES", *_indented(table(("pid", "used", "change/60s", "", "name"), rows, right=(0, 1, 2)))]


def _last_minute(history: Sequence[Mapping[str, Any]], *, total_bytes: int | None) -> list[str]:
    if not history or not total_bytes:
        return []
    first, last = _number(history[0].get("at")), _number(history[-1].get("at"))
    span = "" if first is None or last is None else f"{duration(last - first)}, "
    names = {"used_bytes": "used", "promised_bytes": "promised", "foreign_bytes": "others"}
    drawn = []
    for key, label in names.items():
        values = [_number(point.get(key)) for point in history]
        known = [v for v in values if v is not None]
        if known:
            line = sparkline(values, low=0, high=total_bytes)
            drawn.append((label, f"{line}  {size(min(known))} to {size(max(known))}"))
    return ["", f"BEFORE  ({span}of {size(total_bytes)}; the highest of each column)", *pairs(drawn)] if drawn else []


def _knobs(knobs: Mapping[str, Any]) -> list[str]:
    if not knobs:
        return []
    shown = [(safe(key), knob_text(key, value)) for key, value in knobs.items()]
    return ["", "KNOBS", *pairs(shown)]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list | tuple) else []


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _bytes(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
