"""The scripted scene: a card in trouble, as an operator would find it. Deterministic: the same at every start.

A neighbour (``whisper.service``) has grown, the lane ``image`` waits for bytes, one out-of-memory lies an hour back.
Times are relative to `NOW`; sizes are bytes.
"""

import math
from typing import Any, Final

from gpuwatch.storage import codec
from gpuwatch.storage.knobs import Knobs
from gpuwatch.storage.records import (
    BlockedBy,
    Cause,
    Event,
    KnobChange,
    OomSnapshot,
    ProcessUse,
    Severity,
    Source,
    Trigger,
)
from gpuwatch.storage.state import (
    GpuState,
    InFlight,
    LaneState,
    ModelState,
    ServiceState,
    SnapshotHead,
    State,
    Status,
    TelemetryState,
)
from gpuwatch.tui.view import HISTORY_S, Point

NOW: Final = 1_795_576_032.0
GIB: Final = 1 << 30
TOTAL: Final = 24 * GIB
_GREW_S: Final = 380.0
_STEP_S: Final = 2.0
KNOBS: Final = Knobs.defaults(("image", "text", "long")).turned(
    {"lanes.image.concurrency": 6, "lanes.image.queue_timeout_s": 5.0, "lanes.long.concurrency": 1}
)
CHANGE: Final = KnobChange(
    version=41,
    at=NOW - 4300,
    actor="dana@gpu-a (claimed; admin token, 127.0.0.1)",
    changes={"lanes.image.concurrency": (4, 6)},
)


def gib(value: float) -> int:
    """Bytes of so many GiB."""
    return int(value * GIB)


def point(age_s: float) -> Point:
    """Give the card's figures ``age_s`` seconds ago."""
    at = NOW - age_s
    others = 10.3 if age_s < _GREW_S else 7.1
    live = 7.0 + 0.9 * math.sin(at / 23) + 0.4 * math.sin(at / 7)
    reserved = live + 1.1
    return Point(at, gib(others + reserved + 0.4), gib(reserved), gib(live), gib(live * 0.9), gib(others))


def points() -> tuple[Point, ...]:
    """Give a quarter of an hour of the card's figures, oldest first."""
    steps = int(HISTORY_S / _STEP_S)
    return tuple(point((steps - step) * _STEP_S) for step in range(steps))


def processes() -> tuple[ProcessUse, ...]:
    """Who is on the card."""
    return (
        ProcessUse(pid=2211, name="python", unit="yolo-api.service", used_bytes=gib(9.6), own=True, change_60s_bytes=0),
        ProcessUse(
            pid=41772,
            name="python",
            unit="whisper.service",
            used_bytes=gib(10.1),
            cmdline="python -m faster_whisper.server --model large-v3",
            change_60s_bytes=gib(3.2),
        ),
        ProcessUse(pid=981, name="Xorg", unit="gdm.service", used_bytes=gib(0.2), change_60s_bytes=0),
    )


def state(at: float = NOW, knobs: Knobs = KNOBS) -> State:
    """Give the service's state at ``at``."""
    now = point(NOW - at)
    used, reserved, allocated, promised = (int(v or 0) for v in (now.used, now.reserved, now.allocated, now.promised))
    gpu = GpuState(
        index=0,
        uuid="GPU-5f1c2a7e",
        name="NVIDIA GeForce RTX 3090",
        source=Source.NVML,
        read_age_s=0.1,
        total_bytes=TOTAL,
        used_bytes=used,
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        reclaimable_bytes=reserved - allocated,
        foreign_bytes=int(now.foreign or 0),
        context_bytes=gib(0.4),
        weights_bytes=gib(1.2),
        promised_bytes=promised,
        capacity_bytes=gib(8.4),
        available_bytes=gib(8.4) - promised,
        pressure_bytes=used - (reserved - allocated),
        pressure_ratio=(used - (reserved - allocated)) / TOTAL,
        util_pct=88.0,
        temperature_c=71.0,
        power_w=312.0,
        fragmentation_ratio=0.21,
        alloc_retries=0,
        processes=processes(),
    )
    return State(
        at=at,
        service=ServiceState(
            name="gpu-a yolo-api",
            version="3.2.1",
            pid=2211,
            started_at=NOW - 90_000,
            uptime_s=90_000,
            status=Status.DEGRADED,
            reason="image waits for bytes",
            since=NOW - 374,
        ),
        verdict="image waits for BYTES, not slots; whisper.service +3.2G in 60 s; needs 2.4G, 1.7G of 8.4G left",
        gpus=(gpu,),
        lanes=_lanes(at, knobs),
        models=(ModelState(name="detector", version="1", lane="image", loaded=True, weights_bytes=gib(1.2)),),
        knobs_version=41,
        last_change=CHANGE,
        last_snapshot=HEADS[0],
        telemetry=TelemetryState(written=31_402, db_bytes=gib(0.2)),
        in_flight=tuple(
            InFlight(
                id=n,
                request_id=f"r-8f{n:02x}",
                lane="image",
                model="detector",
                price_bytes=gib(2.4),
                started_at=at - age,
            )
            for n, age in ((0x1E, 0.88), (0x21, 0.41))
        ),
    )


def _lanes(at: float, knobs: Knobs) -> tuple[LaneState, ...]:
    seconds = at - NOW + HISTORY_S
    image, text, long = (knobs.by_lane[name] for name in ("image", "text", "long"))
    return (
        LaneState(
            name="image",
            limit=image.concurrency,
            effective_limit=image.concurrency,
            in_flight=2,
            running=2,
            waiting=46,
            queue_limit=image.queue_limit,
            queue_timeout_s=image.queue_timeout_s,
            oldest_wait_ms=4900.0,
            head_price_bytes=gib(2.4),
            blocked_by=BlockedBy.BYTES,
            blocked_60s={"bytes": 56.4, "slots": 0.0, "watermark": 0.0, "breaker": 0.0, "stale": 0.0},
            fits_now=0,
            p50_60s_ms=3100.0,
            p99_60s_ms=5400.0,
            run_p99_60s_ms=480.0,
            ok_60s=558,
            refused_60s={"queue-timeout": 126},
            outcomes={"ok": int(9.3 * seconds), "queue-timeout": int(2.1 * seconds)},
        ),
        LaneState(
            name="text",
            limit=text.concurrency,
            effective_limit=text.concurrency,
            in_flight=1,
            running=1,
            queue_limit=text.queue_limit,
            queue_timeout_s=text.queue_timeout_s,
            p50_60s_ms=60.0,
            p99_60s_ms=90.0,
            run_p99_60s_ms=70.0,
            ok_60s=122,
            outcomes={"ok": int(2.0 * seconds)},
        ),
        LaneState(
            name="long",
            limit=long.concurrency,
            effective_limit=long.concurrency,
            queue_limit=long.queue_limit,
            queue_timeout_s=long.queue_timeout_s,
        ),
    )


def _snapshot(number: int, at: float, trigger: Trigger, cause: Cause, headline: str, **more: Any) -> OomSnapshot:  # noqa: ANN401 - fields
    return OomSnapshot(
        id=number,
        at=at,
        run_id=7,
        gpu=0,
        trigger=trigger,
        cause=cause,
        headline=headline,
        used_bytes=gib(23.1),
        total_bytes=TOTAL,
        reserved_bytes=gib(9.5),
        allocated_bytes=gib(8.4),
        knobs_version=41,
        payload=_payload(at, victim=more.get("request_id") is not None),
        **more,
    )


def _payload(at: float, *, victim: bool) -> dict[str, Any]:
    history = [
        {
            "at": at - 60 + step / 2,
            "total_bytes": TOTAL,
            "used_bytes": gib(19.6 + (3.5 if step > 116 else 0.6 * math.sin(step / 5))),  # noqa: PLR2004 - the script
            "reserved_bytes": gib(8.9),
            "allocated_bytes": gib(7.3 + 0.6 * math.sin(step / 5)),
            "promised_bytes": gib(8.1),
            "foreign_bytes": gib(10.3 if step <= 116 else 12.8),  # noqa: PLR2004 - the script
            "pressure_bytes": gib(18.5),
            "capacity_bytes": gib(11.6),
        }
        for step in range(120)
    ]
    return {
        "reading": {
            "total_bytes": TOTAL,
            "used_bytes": gib(23.1),
            "reserved_bytes": gib(9.5),
            "allocated_bytes": gib(8.4),
            "context_bytes": gib(0.4),
            "foreign_bytes": gib(12.8),
            "pressure_bytes": gib(22.8),
            "reclaimable_bytes": gib(0.3),
            "capacity_bytes": gib(9.1),
            "promised_bytes": gib(10.0),
        },
        "processes": codec.plain(processes()),
        "in_flight": [
            {"id": n, "request_id": f"r-8f{n:02x}", "lane": "image", "price_bytes": gib(2.4), "started_at": at - age}
            for n, age in ((0x21, 0.41), (0x1E, 0.88), (0x1D, 1.02), (0x1B, 1.3))
        ],
        "waiting": [
            {
                "lane": "image",
                "waiting": 11,
                "head_price_bytes": gib(2.4),
                "oldest_wait_ms": 1200.0,
                "blocked_by": "bytes",
            }
        ],
        "victim": {"id": 0x21, "dims": {"height": 1920, "width": 1920}} if victim else None,
        "knobs": dict(KNOBS.values),
        "history": history,
        "error": {"type": "OutOfMemoryError", "requested_bytes": gib(1.5), "free_bytes": gib(0.9)} if victim else None,
    }


SNAPSHOTS: Final = (
    _snapshot(
        118,
        NOW - 380,
        Trigger.WATERMARK,
        Cause.OTHER_PROCESS,
        "near-miss: above the high mark, 21G of 24G used: whisper.service +3.2G in the 60 s before",
        foreign_bytes=gib(10.3),
        foreign_change_bytes=gib(3.2),
        confidence=0.9,
    ),
    _snapshot(
        117,
        NOW - 3600,
        Trigger.OUT_OF_MEMORY,
        Cause.OTHER_PROCESS,
        "out of memory asking for 1.5G with 0.9G free, 23G of 24G used: whisper.service +2.5G in the 60 s before",
        request_id="r-8f21",
        requested_bytes=gib(1.5),
        foreign_bytes=gib(12.8),
        foreign_change_bytes=gib(2.5),
        confidence=0.95,
    ),
    _snapshot(104, NOW - 777_600, Trigger.MANUAL, Cause.MANUAL, "manual snapshot, 14G of 24G used"),
)
HEADS: Final = tuple(SnapshotHead.of(snapshot) for snapshot in SNAPSHOTS)
EVENTS: Final = tuple(
    Event(id=n, at=NOW - age, run_id=7, kind=kind, severity=severity, message=message)
    for n, age, kind, severity, message in (
        (9, 374.0, "degraded", Severity.WARNING, "image waits for bytes"),
        (8, 380.0, "watermark", Severity.WARNING, "GPU0 is above its high mark (21G of 24G): new work waits"),
        (7, 3590.0, "watermark", Severity.INFO, "GPU0 is below its low mark again (19G of 24G)"),
        (6, 4300.0, "knobs", Severity.INFO, "v41 by dana@gpu-a: lanes.image.concurrency 4 > 6"),
    )
)
