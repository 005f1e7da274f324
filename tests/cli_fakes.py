"""What the command's tests share: a service that only has an admin listener, and its state."""

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from gpuwatch.storage import codec
from gpuwatch.storage.datadir import DataDir, ServiceInfo
from gpuwatch.storage.knobs import Knobs, keys_of
from gpuwatch.storage.records import (
    BlockedBy,
    Breaker,
    Cause,
    KnobChange,
    OomSnapshot,
    Outcome,
    Pressure,
    ProcessUse,
    RequestRecord,
    Source,
    Trigger,
)
from gpuwatch.storage.state import (
    GpuState,
    LaneState,
    ServiceState,
    SnapshotHead,
    State,
    Status,
    TelemetryState,
)

MIB = 1 << 20
NOW = 1_800_000_000.0

CHANGE = KnobChange(
    version=3, at=NOW - 125, actor="ann@box", note="calmer", changes={"lanes.image.concurrency": (6, 4)}
)
STATE = State(
    at=NOW,
    service=ServiceState(
        name="yolo", version="0.1.0", pid=4711, uptime_s=185.0, simulated=True, status=Status.DEGRADED,
        reason="the breaker of GPU 0 is open", since=NOW - 12,
    ),
    verdict="image waits for bytes, not slots",
    gpus=(
        GpuState(
            index=0, name="SIMULATED card", source=Source.SIM, simulated=True, read_age_s=0.1, total_bytes=640 * MIB,
            used_bytes=512 * MIB, reserved_bytes=200 * MIB, allocated_bytes=120 * MIB, reclaimable_bytes=80 * MIB,
            foreign_bytes=272 * MIB, context_bytes=40 * MIB, weights_bytes=2 * MIB, promised_bytes=60 * MIB,
            capacity_bytes=170 * MIB, available_bytes=110 * MIB, pressure_bytes=432 * MIB, pressure_ratio=0.675,
            pressure=Pressure.NORMAL, breaker=Breaker.OPEN,
            processes=(
                ProcessUse(pid=4711, name="python", used_bytes=240 * MIB, own=True),
                ProcessUse(pid=99, name="whisper\x1b[31m", used_bytes=272 * MIB),
            ),
        ),
    ),
    lanes=(
        LaneState(
            name="image", limit=4, effective_limit=4, in_flight=2, running=2, waiting=7, queue_limit=16,
            oldest_wait_ms=4900.0, blocked_by=BlockedBy.BYTES, fits_now=0, p50_60s_ms=320.0, p99_60s_ms=5070.0,
            ok_60s=79, refused_60s={"queue-timeout": 3, "too-large": 0},
        ),
    ),
    knobs_version=3,
    last_change=CHANGE,
    last_snapshot=SnapshotHead(
        id=2, at=NOW - 30, gpu=0, trigger=Trigger.WATERMARK, cause=Cause.OTHER_PROCESS, headline="whisper took 272M"
    ),
    telemetry=TelemetryState(written=900, dropped=0),
)  # fmt: skip

PAYLOAD: Mapping[str, Any] = {
    "reading": {
        "source": "sim", "reclaimable_bytes": 80 * MIB, "context_bytes": 40 * MIB, "promised_bytes": 133 * MIB,
        "capacity_bytes": 20 * MIB,
    },
    "processes": [
        {"pid": 1, "name": "python", "used_bytes": 200 * MIB, "own": True, "change_60s_bytes": None},
        {"pid": 2, "name": "neighbour (scripted)", "used_bytes": 440 * MIB, "own": False,
         "change_60s_bytes": 440 * MIB},
    ],
    "in_flight": [
        {"id": 7, "request_id": "r-7", "lane": "image", "model": "detector", "price_bytes": 133 * MIB,
         "started_at": NOW - 0.4, "orphan": False},
    ],
    "waiting": [
        {"lane": "image", "waiting": 3, "head_price_bytes": 61 * MIB, "oldest_wait_ms": 1200.0, "blocked_by": "bytes"},
    ],
    "victim": {"id": 7, "dims": {"height": 1800, "width": 1536}},
    "knobs": {"watermark.high": 0.85, "lanes.image.concurrency": 6},
    "history": [
        {"at": NOW - 50 + i, "used_bytes": 200 * MIB + i * 8 * MIB, "promised_bytes": 0, "foreign_bytes": None}
        for i in range(50)
    ],
    "error": {"type": "OutOfMemoryError", "requested_bytes": 38 * MIB, "free_bytes": 26 * MIB},
}  # fmt: skip
SNAPSHOT = OomSnapshot(
    id=3, at=NOW, run_id=1, gpu=0, trigger=Trigger.OUT_OF_MEMORY, cause=Cause.OTHER_PROCESS,
    headline="neighbour (scripted) +440M in the 60 s before", confidence=0.9, request_id="r-7",
    requested_bytes=38 * MIB, used_bytes=614 * MIB, total_bytes=640 * MIB, reserved_bytes=134 * MIB,
    allocated_bytes=54 * MIB, foreign_bytes=440 * MIB, foreign_change_bytes=440 * MIB, knobs_version=2, payload=PAYLOAD,
)  # fmt: skip
RECORD = RequestRecord(
    seq=1, request_id="r-1", at=NOW, run_id=1, lane="image", model="detector", outcome=Outcome.QUEUE_TIMEOUT,
    status=503, queue_ms=8000.0, total_ms=8001.0, price_bytes=61 * MIB, blocked_by=BlockedBy.BYTES,
    dims={"height": 1200, "width": 1024},
)  # fmt: skip


@dataclass
class FakeAdmin:
    """An admin listener: answers from memory, keeps what it was asked. ``refusal`` answers every PATCH instead."""

    state: Any = field(default_factory=lambda: codec.plain(STATE))
    knobs: Knobs = field(default_factory=lambda: Knobs.defaults(("image",)))
    history: list[KnobChange] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    refusal: Response | None = None
    token: str = "secret"  # noqa: S105 - a test's own
    headers: list[dict[str, str]] = field(default_factory=list)
    patches: list[Any] = field(default_factory=list)

    def app(self) -> FastAPI:
        """Give the listener's app."""
        app = FastAPI()

        @app.middleware("http")
        async def guard(request: Request, go_on: Any) -> Response:  # noqa: ANN401 - Starlette's own callable
            self.headers.append(dict(request.headers))
            if request.headers.get("authorization") != f"Bearer {self.token}":
                return JSONResponse({"detail": "who are you"}, status_code=401)
            answer: Response = await go_on(request)
            return answer

        @app.get("/admin/state")
        async def state() -> Response:
            return PlainTextResponse(codec.dumps(self.state), media_type="application/json")

        @app.get("/admin/knobs")
        async def knobs() -> Response:
            specs = dict(keys_of(self.knobs.lanes))
            data = {
                "version": 3,
                "knobs": dict(self.knobs.values),
                "origin": {key: "override" if key == "watermark.high" else "default" for key in specs},
                "spec": {k: {n: v for n, v in codec.plain(s).items() if n != "key"} for k, s in specs.items()},
            }
            return PlainTextResponse(codec.dumps(data), media_type="application/json")

        @app.patch("/admin/knobs")
        async def turn(request: Request) -> Response:
            patch = await request.json()
            self.patches.append(patch)
            if self.refusal is not None:
                return self.refusal
            after = self.knobs.turned(patch["changes"])
            changed = {key: (self.knobs.values[key], after.values[key]) for key in patch["changes"]}
            self.knobs = after
            data = {"version": 4, "knobs": dict(after.values), "changed": changed, "warnings": self.warnings}
            return PlainTextResponse(codec.dumps(data), media_type="application/json")

        @app.get("/admin/knobs/history")
        async def history() -> Response:
            return PlainTextResponse(codec.dumps({"changes": self.history}), media_type="application/json")

        return app


@contextmanager
def serving(admin: FakeAdmin, data_dir: Path) -> Iterator[str]:
    """Serve ``admin`` on a free port, announced in ``data_dir`` with its token; give the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(admin.app(), log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    home = DataDir(data_dir)
    home.prepare()
    home.admin_token.write_text(f"{admin.token}\n")
    home.announce(
        ServiceInfo(
            pid=os.getpid(),
            name="fake",
            inference_url="http://127.0.0.1:1",
            admin_url=url,
            db=str(home.database),
            gpu="sim:640MiB",
            started_at=time.time(),
        )
    )
    try:
        yield url
    finally:
        home.withdraw()
        server.should_exit = True
        thread.join()
