"""Making a runtime: directory, journal, database, cards, models, and the parts that work together."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from importlib import metadata
from typing import Any, Final

from gpuwatch.service import build
from gpuwatch.service.answering import Answering, Served, load
from gpuwatch.service.build import Target
from gpuwatch.service.core.admission import Admission
from gpuwatch.service.dispatch import Dispatcher
from gpuwatch.service.engines.threads import ThreadEngine
from gpuwatch.service.events import Events
from gpuwatch.service.gate import Gate
from gpuwatch.service.gpu.base import Device
from gpuwatch.service.hub import Hub
from gpuwatch.service.report import Reporter
from gpuwatch.service.requests import Requests
from gpuwatch.service.runtime import Parts, Runtime
from gpuwatch.service.sampler import Sampler
from gpuwatch.service.settings import Settings, SettingsError
from gpuwatch.service.snapshots import Snapshots
from gpuwatch.service.telemetry import CardSeen
from gpuwatch.service.turning import KnobDesk
from gpuwatch.storage import codec
from gpuwatch.storage.datadir import DataDir
from gpuwatch.storage.errors import KnobsInvalid
from gpuwatch.storage.journal import Journal
from gpuwatch.storage.knobs import Knobs
from gpuwatch.storage.reader import Reader
from gpuwatch.storage.records import KnobValue, Run, Severity
from gpuwatch.storage.state import ServiceState
from gpuwatch.storage.writer import Writer

_RUN_WAIT_S: Final = 1.0


def version() -> str:
    """Give the installed version."""
    return metadata.version("gpuwatch-dashboard")


async def start(
    settings: Settings,
    home: DataDir,
    *,
    cards: Mapping[int, Device] | None = None,
    targets: Sequence[Target] | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Runtime:
    """Bring the service up as far as its models, without its listeners.

    ``cards`` and ``targets`` stand in for what the settings name. Raises `SettingsError`, `CannotLoad` or a
    `StorageError`, each with what to do about it.
    """
    aux = ThreadEngine("aux", most=4)
    devices, served = await aux.call(lambda: _cards_and_models(settings, cards, targets))
    lanes = tuple(dict.fromkeys((*(model.lane for model in served.values()), *settings.lanes, *_lanes_of(settings))))
    from_file = _typed(settings, lanes)
    journal = Journal(home.journal)
    replay = await aux.call(journal.read)
    past = replay.changes
    try:
        desk = KnobDesk(lanes=lanes, from_file=from_file, journal=journal, past=past, engine=aux, wall=wall)
    except KnobsInvalid as bad:
        raise SettingsError(f"knobs: {bad}") from None
    writer = Writer(home.database)
    last = await aux.call(writer.start)
    desk.version = max(desk.version, last.knobs_version)
    for change in past:
        if change.version > last.knobs_version:
            writer.put(change)  # it was acknowledged by the journal, and the process died before the database had it
    reader = Reader(home.database)
    heads = await aux.call(lambda: reader.snapshots(limit=1))
    unclean = [one for one in await aux.call(lambda: reader.runs(limit=1)) if one.clean is None]
    run = _run(settings, devices, last.run + 1, wall())
    await _committed(writer.put_soon(run))
    writer.keep_snapshots(desk.knobs.whole("snapshots.keep"))

    hub = Hub()
    admission = Admission(desk.knobs, devices)
    requests = Requests(
        run_id=run.id,
        first_seq=last.request + 1,
        clock=clock,
        wall=wall,
        put=writer.put,
        tell=lambda record: hub.publish("request", record),
        lanes=desk.knobs.lanes,
    )
    events = Events(
        run_id=run.id,
        first_id=last.event + 1,
        wall=wall,
        put=writer.put,
        tell=lambda event: hub.publish("event", event),
    )
    seen = {gpu: CardSeen() for gpu in devices}
    for gpu, card in admission.cards.items():
        seen[gpu].weights_bytes = sum(model.weights_bytes[gpu] for model in served.values())
        card.ledger.weigh(seen[gpu].weights_bytes)
    gate = Gate(admission, clock)
    runtime = Runtime(
        Parts(
            settings=settings,
            run=run,
            tokens=await aux.call(home.tokens),
            desk=desk,
            gate=gate,
            requests=requests,
            events=events,
            hub=hub,
            writer=writer,
            reader=reader,
            aux=aux,
            seen=seen,
            clock=clock,
            wall=wall,
        )
    )
    snapshots = Snapshots(
        first_id=last.snapshot + 1,
        scene=runtime.scene,
        put=runtime.store_snapshot,
        tell=lambda head: hub.publish("snapshot", head),
        last=heads[0] if heads else None,
    )
    run_engine, front = ThreadEngine("run"), ThreadEngine("front", most=4)
    dispatcher = Dispatcher(
        gate=gate,
        engine=run_engine,
        requests=requests,
        devices=devices,
        snapshots=snapshots,
        clock=clock,
        error_text=settings.record.error_text,
    )
    infos = {gpu: device.info for gpu, device in devices.items()}
    service = ServiceState(
        name=settings.name or f"{socket.gethostname()} {next(iter(served))}",
        version=version(),
        pid=os.getpid(),
        started_at=run.started_at,
        simulated=any(info.simulated for info in infos.values()),
    )
    runtime.furnish(
        answering=Answering(served, front=front, dispatcher=dispatcher, requests=requests),
        dispatcher=dispatcher,
        reporter=Reporter(
            service=service, admission=admission, requests=requests, infos=infos, seen=seen, clock=clock, wall=wall
        ),
        snapshots=snapshots,
        engines=(run_engine, front),
    )
    for before in unclean:
        writer.put(replace(before, clean=False))
        message = f"run {before.id} (pid {before.pid}) did not end cleanly; what it had in flight has no record"
        events.happened("unclean", message, severity=Severity.WARNING)
    if replay.torn or replay.skipped:
        message = f"the knobs' journal is damaged: {len(replay.skipped)} lines passed over, {replay.torn} torn"
        events.happened("journal", message, severity=Severity.WARNING, data={"lines": list(replay.skipped)})
    events.happened("started", f"gpuwatch {service.version} serves {', '.join(served)} on {settings.gpu}")
    runtime.beat(
        Sampler(
            devices,
            runtime,
            interval_s=lambda: desk.knobs.number("sampling.interval_ms") / 1000,
            clock=clock,
            loop=asyncio.get_running_loop(),
        )
    )
    return runtime


async def _committed(stored: "Future[None]") -> None:
    """Wait until the run's row is in the database, so that a kill at once still leaves it; not for a locked one."""
    written = asyncio.wrap_future(stored)
    written.add_done_callback(lambda done: done.cancelled() or done.exception())  # its loss is counted
    await asyncio.wait([written], timeout=_RUN_WAIT_S)


def _cards_and_models(
    settings: Settings, cards: Mapping[int, Device] | None, targets: Sequence[Target] | None
) -> tuple[Mapping[int, Device], dict[str, Served]]:
    wanted = build.targets(settings) if targets is None else targets
    devices = build.devices(settings) if cards is None else cards
    return devices, load(wanted, devices)


def _lanes_of(settings: Settings) -> list[str]:
    """Name the lanes that the configuration turns a knob of: they exist, as if listed."""
    return [key.split(".")[1] for key in settings.knob_values if key.startswith("lanes.") and key.count(".") > 1]


def _typed(settings: Settings, lanes: tuple[str, ...]) -> dict[str, KnobValue]:
    """Read start values, with units where they are texts. Raises `SettingsError` with every bad key."""
    knobs = Knobs.defaults(lanes)
    given = settings.knob_values
    try:
        texts = knobs.read({key: value for key, value in given.items() if isinstance(value, str)})
    except KnobsInvalid as bad:
        raise SettingsError(f"knobs: {bad}") from None
    return {**given, **texts}


def _run(settings: Settings, devices: Mapping[int, Device], run_id: int, at: float) -> Run:
    gpus: tuple[dict[str, Any], ...] = tuple(codec.plain(device.info) for device in devices.values())
    return Run(
        id=run_id,
        started_at=at,
        pid=os.getpid(),
        version=version(),
        host=socket.gethostname(),
        gpus=gpus,
        settings=settings.model_dump(mode="json"),
    )
