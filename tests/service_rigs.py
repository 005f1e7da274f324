"""A dispatcher on a bench, and a whole runtime with both of its faces, over fake cards and models."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_fakes import MIB, FakeDevice, FakeModel, knobs_of, reading_of, until
from starlette.types import ASGIApp

from gpuwatch.service.build import Target
from gpuwatch.service.core.admission import Admission
from gpuwatch.service.dispatch import Dispatcher
from gpuwatch.service.engines.threads import ThreadEngine
from gpuwatch.service.errors import Refused
from gpuwatch.service.gate import Gate
from gpuwatch.service.http.admin import admin_app
from gpuwatch.service.http.inference import inference_app
from gpuwatch.service.models.base import Model
from gpuwatch.service.requests import Entry, Requests
from gpuwatch.service.runtime import Runtime
from gpuwatch.service.serving import _bind as bind
from gpuwatch.service.serving import _server as server_of
from gpuwatch.service.settings import Settings
from gpuwatch.service.snapshots import COMMIT_WAIT_S, Scene, Snapshots
from gpuwatch.service.start import start
from gpuwatch.storage.datadir import DataDir
from gpuwatch.storage.records import OomSnapshot, RequestRecord
from gpuwatch.storage.state import InFlight, SnapshotHead


@dataclass
class Bench:
    """A dispatcher with all that is around it, but no HTTP, database or sampler."""

    gate: Gate
    engine: ThreadEngine
    requests: Requests
    dispatcher: Dispatcher
    snapshots: Snapshots
    device: FakeDevice
    records: list[RequestRecord] = field(default_factory=list)
    taken: list[OomSnapshot] = field(default_factory=list)
    told: list[SnapshotHead] = field(default_factory=list)
    stored: "Future[None]" = field(default_factory=Future)

    @property
    def admission(self) -> Admission:
        return self.gate.admission

    @property
    def final(self) -> dict[int, RequestRecord]:
        """The last row of each request, as the database would have it."""
        return {record.seq: record for record in self.records}

    def entry(self, *, lane: str = "default", price_bytes: int | None = MIB, request_id: str = "r") -> Entry:
        entry = self.requests.open(request_id=request_id, lane=lane, model="echo")
        entry.price_bytes = price_bytes
        return entry

    def turn(self, changes: Mapping[str, object]) -> None:
        self.gate.turn(self.admission.knobs.turned(changes))

    async def at_rest(self) -> None:
        await until(lambda: not (self.admission.in_flight or self.admission.waiting))
        assert self.admission.cards[0].ledger.promised_bytes == 0
        assert not self.requests.open_entries
        assert not self.requests.running_entries


def bench(
    changes: Mapping[str, object] | None = None,
    *,
    commits: bool = True,
    commit_wait_s: float = COMMIT_WAIT_S,
    error_text: bool = False,
) -> Bench:
    """Build a dispatcher over one fake card; without ``commits`` no snapshot is ever stored."""
    knobs = knobs_of(changes)
    device = FakeDevice()
    admission = Admission(knobs, [0])
    gate = Gate(admission, time.monotonic)
    gate.observe(reading_of())
    records: list[RequestRecord] = []
    taken: list[OomSnapshot] = []
    told: list[SnapshotHead] = []
    stored: Future[None] = Future()
    if commits:
        stored.set_result(None)
    requests = Requests(
        run_id=1,
        first_seq=1,
        clock=time.monotonic,
        wall=time.time,
        put=records.append,
        tell=lambda _record: None,
        lanes=knobs.lanes,
    )

    def put(snapshot: OomSnapshot) -> "Future[None]":
        taken.append(snapshot)
        return stored

    def scene(gpu: int) -> Scene:
        ledger = admission.cards[gpu].ledger
        return scene_of(
            in_flight=tuple(
                InFlight(
                    id=entry.seq,
                    request_id=entry.request_id,
                    lane=entry.lane,
                    model=entry.model,
                    price_bytes=entry.promised_bytes or 0,
                    started_at=0.0,
                )
                for entry in requests.running_entries
            ),
            capacity_bytes=ledger.capacity_bytes,
            promised_bytes=ledger.promised_bytes,
        )

    snapshots = Snapshots(first_id=1, scene=scene, put=put, tell=told.append, commit_wait_s=commit_wait_s)
    engine = ThreadEngine("run")
    dispatcher = Dispatcher(
        gate=gate,
        engine=engine,
        requests=requests,
        devices={0: device},
        snapshots=snapshots,
        clock=time.monotonic,
        error_text=error_text,
    )
    return Bench(gate, engine, requests, dispatcher, snapshots, device, records, taken, told, stored)


async def the_refusal(rig: Bench, work: Callable[[int], Any], **ask: Any) -> tuple[Refused, RequestRecord]:  # noqa: ANN401 - any ask
    entry = rig.entry(**ask)
    with pytest.raises(Refused) as refused:
        await rig.dispatcher.run(entry, work)
    await rig.at_rest()
    (record,) = [record for record in rig.records if record.seq == entry.seq]
    return refused.value, record


def scene_of(**changes: Any) -> Scene:  # noqa: ANN401 - any field of a scene
    """Give a plain scene, with what the test needs to be otherwise."""
    plain = Scene(
        at=0.0,
        run_id=1,
        knobs=knobs_of(),
        knobs_version=3,
        processes=(),
        in_flight=(),
        lanes=(),
        models=(),
        history=(),
        capacity_bytes=0,
        promised_bytes=0,
    )
    return replace(plain, **changes)


@dataclass
class Service:
    """A whole runtime, its two faces reached in-process."""

    runtime: Runtime
    home: DataDir
    cards: dict[int, FakeDevice]
    inference: httpx.AsyncClient
    admin: httpx.AsyncClient
    pending: list["asyncio.Future[httpx.Response]"] = field(default_factory=list)
    """Calls under way that the test does not wait for itself; ``releases`` lets their work go at the end."""
    releases: list[Callable[[], None]] = field(default_factory=list)

    @property
    def card(self) -> FakeDevice:
        return self.cards[0]

    async def readings(self) -> None:
        """Wait until the cards' readings let work in."""
        await until(lambda: all(gpu.status == "ok" for gpu in self.runtime.state().gpus))

    async def turn(self, changes: Mapping[str, object]) -> None:
        await self.runtime.turn(changes, actor="test")

    async def rows(self, **query: str) -> list[dict[str, Any]]:
        """The recorded requests, newest first, once everything that is queued has been written."""
        await until(lambda: self.runtime.state().telemetry.queued == 0)
        answer = await self.admin.get("/admin/requests", params=query)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["requests"]
        return found


def settings_of(path: Path, **given: Any) -> Settings:  # noqa: ANN401 - any setting
    quick = {"sampling.interval_ms": 10} | given.pop("knobs", {})
    return Settings.load(None, {"gpu": "sim:1GiB", "data_dir": path, "knobs": quick, **given})


def targets_of(models: Sequence[Model]) -> tuple[Target, ...]:
    return tuple(_target(model) for model in models)


def _target(model: Model) -> Target:
    return Target(make=lambda: model)


@asynccontextmanager
async def service(
    path: Path,
    *models: Model,
    cards: dict[int, FakeDevice] | None = None,
    wait: bool = True,
    **given: Any,  # noqa: ANN401 - any setting
) -> AsyncIterator[Service]:
    """Start a runtime over fake cards with both faces, and end it cleanly."""
    home = DataDir(path)
    home.prepare()
    mine = {0: FakeDevice()} if cards is None else cards
    runtime = await start(settings_of(path, **given), home, cards=mine, targets=targets_of(models or [FakeModel()]))
    token = {"Authorization": f"Bearer {runtime.tokens.admin}"}
    try:
        async with (
            httpx.AsyncClient(
                transport=httpx.ASGITransport(inference_app(runtime)), base_url="http://inference"
            ) as one,
            httpx.AsyncClient(
                transport=httpx.ASGITransport(admin_app(runtime)), base_url="http://127.0.0.1", headers=token
            ) as two,
        ):
            found = Service(runtime, home, mine, one, two)
            if wait:
                await found.readings()
            try:
                yield found
            finally:
                for release in found.releases:
                    release()
                await asyncio.gather(*found.pending)
    finally:
        for card in mine.values():
            card.may_read.set()
        await runtime.close(clean=True)


def _client(app: ASGIApp, **more: Any) -> httpx.AsyncClient:  # noqa: ANN401 - any of the client's arguments
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", **more)


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[tuple[str, int]]:
    """Serve an app on a free port, as the service does: for what only a real connection shows."""
    sock = bind("127.0.0.1", 0)
    server = server_of(app)
    task = asyncio.ensure_future(server.serve(sockets=[sock]))
    await until(lambda: server.started)
    try:
        yield sock.getsockname()
    finally:
        server.should_exit = True
        await task
