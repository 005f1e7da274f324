"""One life of the service: start, take readings, turn knobs, drain, stop.

Rules: everything here is on the event loop's thread and waits for no disk, driver or model; those are on threads.
The parts are made in one place (`start.py`); this class is how they work together.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from gpuwatch.service.answering import Answering
from gpuwatch.service.core.verdict import size
from gpuwatch.service.dispatch import Dispatcher
from gpuwatch.service.engines.threads import ThreadEngine
from gpuwatch.service.events import Events
from gpuwatch.service.gate import Gate
from gpuwatch.service.hub import Hub
from gpuwatch.service.report import Reporter
from gpuwatch.service.requests import Requests
from gpuwatch.service.sampler import Sampler
from gpuwatch.service.settings import Settings
from gpuwatch.service.snapshots import Scene, Snapshots
from gpuwatch.service.telemetry import CardSeen
from gpuwatch.service.turning import KnobDesk, Turned
from gpuwatch.storage.datadir import Tokens
from gpuwatch.storage.reader import Reader
from gpuwatch.storage.records import Breaker, KnobChange, OomSnapshot, Pressure, Reading, Run, Sample, Severity, Trigger
from gpuwatch.storage.state import State
from gpuwatch.storage.writer import Writer

_CLOSE_S: Final = 5.0
_LAG_WEIGHT: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a runtime is made of."""

    settings: Settings
    run: Run
    tokens: Tokens
    desk: KnobDesk
    gate: Gate
    requests: Requests
    events: Events
    hub: Hub
    writer: Writer
    reader: Reader
    aux: ThreadEngine
    seen: Mapping[int, CardSeen]
    clock: Callable[[], float]
    wall: Callable[[], float]


class Runtime:
    """The running service. Made by `start.start`."""

    def __init__(self, parts: Parts) -> None:
        self.settings = parts.settings
        self.tokens = parts.tokens
        self.desk = parts.desk
        self.requests = parts.requests
        self.events = parts.events
        self.hub = parts.hub
        self.reader = parts.reader
        self.aux = parts.aux
        self.stopping = asyncio.Event()
        self.loop_lag_ms: float | None = None
        self._telemetry_trouble: str | None = None
        self._run = parts.run
        self._gate = parts.gate
        self._writer = parts.writer
        self._seen = parts.seen
        self.clock = parts.clock
        self.wall = parts.wall
        self.answering: Answering
        self._dispatcher: Dispatcher
        self._reporter: Reporter
        self._snapshots: Snapshots
        self._engines: Sequence[ThreadEngine] = ()
        self._sampler: Sampler | None = None

    def furnish(
        self,
        *,
        answering: Answering,
        dispatcher: Dispatcher,
        reporter: Reporter,
        snapshots: Snapshots,
        engines: Sequence[ThreadEngine],
    ) -> None:
        """Take the parts that were made with the runtime at hand."""
        self.answering = answering
        self._dispatcher = dispatcher
        self._reporter = reporter
        self._snapshots = snapshots
        self._engines = engines

    def beat(self, sampler: Sampler) -> None:
        """Begin to take readings."""
        self._sampler = sampler
        sampler.start()

    # -- readings ----------------------------------------------------------------------------------------------------

    def reading(self, reading: Reading, loop_lag_ms: float) -> None:
        """Take a reading: admission first, then the record of it, then what it means."""
        before = self.loop_lag_ms
        self.loop_lag_ms = loop_lag_ms if before is None else before + _LAG_WEIGHT * (loop_lag_ms - before)
        seen = self._seen[reading.gpu]
        if seen.lost is not None:
            self.events.happened("gpu-back", f"GPU{reading.gpu} answers again")
        seen.take(self.clock(), reading)
        observed = self._gate.observe(reading)
        sample = self._sample(reading)
        seen.remember(sample)
        self._writer.put(sample)
        self._watch_telemetry()
        if observed.pressure_changed:
            self._pressure_changed(reading)
        if observed.breaker_changed:
            self._breaker_changed(reading)

    def _watch_telemetry(self) -> None:
        """Say it once when rows cannot be written, and when they can again."""
        trouble = self._writer.statistics().last_error
        if (trouble is None) != (self._telemetry_trouble is None):
            message = "the database is written again" if trouble is None else f"rows wait: {trouble}"
            self.events.happened("telemetry", message, severity=Severity.WARNING if trouble else Severity.INFO)
        self._telemetry_trouble = trouble

    def lost(self, gpu: int, why: str) -> None:
        """Take in that a card is gone."""
        if self._seen[gpu].lost is None:
            self._seen[gpu].lost = why
            self.events.happened("gpu-lost", f"GPU{gpu} is lost: {why}", severity=Severity.ERROR)
        self._gate.lose(gpu)

    def _sample(self, reading: Reading) -> Sample:
        admission = self._gate.admission
        card = admission.cards[reading.gpu]
        return Sample(
            at=reading.at,
            run_id=self._run.id,
            gpu=reading.gpu,
            total_bytes=reading.total_bytes,
            used_bytes=reading.used_bytes,
            reserved_bytes=reading.reserved_bytes,
            allocated_bytes=reading.allocated_bytes,
            pressure_bytes=reading.pressure_bytes,
            promised_bytes=card.ledger.promised_bytes,
            foreign_bytes=reading.foreign_bytes,
            fragmentation_ratio=reading.fragmentation_ratio,
            alloc_retries=reading.alloc_retries,
            util_pct=reading.util_pct,
            temperature_c=reading.temperature_c,
            power_w=reading.power_w,
            in_flight=admission.in_flight,
            waiting=admission.waiting,
            loop_lag_ms=self.loop_lag_ms,
            pressure=card.watermark.pressure,
            breaker=card.breaker.state,
        )

    def _pressure_changed(self, reading: Reading) -> None:
        card = self._gate.admission.cards[reading.gpu]
        held = f"{size(reading.pressure_bytes)} of {size(reading.total_bytes)}"
        if card.watermark.pressure is Pressure.HIGH:
            message = f"GPU{reading.gpu} is above its high mark ({held}): new work waits"
            self.events.happened("watermark", message, severity=Severity.WARNING)
            self._near_miss(Trigger.WATERMARK, reading)
        else:
            self.events.happened("watermark", f"GPU{reading.gpu} is below its low mark again ({held})")

    def _breaker_changed(self, reading: Reading) -> None:
        state = self._gate.admission.cards[reading.gpu].breaker.state
        tripped = state is Breaker.OPEN
        severity = Severity.ERROR if tripped else Severity.INFO
        self.events.happened("breaker", f"GPU{reading.gpu}'s breaker is {state}", severity=severity)
        if tripped:
            self._near_miss(Trigger.BREAKER, reading)

    def _near_miss(self, trigger: Trigger, reading: Reading) -> None:
        interval_s = self.desk.knobs.number("snapshots.watermark_interval_s")
        self._snapshots.near_miss(trigger, reading, interval_s)

    def scene(self, gpu: int) -> Scene:
        """Describe what surrounds a snapshot now."""
        ledger = self._gate.admission.cards[gpu].ledger
        seen = self._seen[gpu]
        return Scene(
            at=self.wall(),
            run_id=self._run.id,
            knobs=self.desk.knobs,
            knobs_version=self.desk.version,
            processes=seen.processes,
            in_flight=self._reporter.in_flight(),
            lanes=self._reporter.lanes(),
            models=tuple(served.state() for served in self.answering.served.values()),
            history=seen.history(),
            capacity_bytes=ledger.capacity_bytes,
            promised_bytes=ledger.promised_bytes,
        )

    def store_snapshot(self, snapshot: OomSnapshot) -> "Future[None]":
        """Hand a snapshot to the writer; the future is done when it is committed."""
        return self._writer.put_soon(snapshot)

    # -- the operator ------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Describe everything now."""
        return self._reporter.state(
            models=tuple(served.state() for served in self.answering.served.values()),
            knobs_version=self.desk.version,
            last_change=self.desk.last,
            last_snapshot=self._snapshots.last,
            telemetry=self._writer.statistics(),
            loop_lag_ms=self.loop_lag_ms,
        )

    async def turn(
        self, changes: Mapping[str, object], *, actor: str, if_version: int | None = None, note: str | None = None
    ) -> Turned:
        """Turn knobs. Raises `KnobsInvalid` or `VersionConflict`."""
        return await self.desk.turn(changes, actor=actor, apply=self._apply, if_version=if_version, note=note)

    def _apply(self, change: KnobChange) -> Sequence[str]:
        self._gate.turn(self.desk.knobs)
        self._writer.put(change)
        if "snapshots.keep" in change.changes:
            self._writer.keep_snapshots(self.desk.knobs.whole("snapshots.keep"))
        if self._sampler is not None and "sampling.interval_ms" in change.changes:
            self._sampler.hurry()
        self.hub.publish("knobs", change)
        what = ", ".join(f"{key} {before} > {after}" for key, (before, after) in change.changes.items())
        self.events.happened("knobs", f"v{change.version} by {change.actor}: {what}")
        return ()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float) -> bool:
        """Take nothing new and let what is under way finish; tell whether it did within ``grace_s`` seconds.

        Whoever still waits or runs then, or when this is cancelled, is answered with ``shutdown``.
        """
        self.events.happened("draining", f"draining, for at most {grace_s:g} s")
        self._gate.drain()
        try:
            return await self._dispatcher.drained(grace_s)
        finally:
            self._gate.shut()
            self._dispatcher.abandon()

    async def close(self, *, clean: bool) -> None:
        """Stop reading, write what is left, and end the run's row."""
        self.stopping.set()
        closing = ThreadEngine("closing")  # its own: the others' threads may all be held by a disk that hangs
        if self._sampler is not None:
            await closing.call(self._sampler.stop)
        left = self._gate.admission.in_flight
        if left:
            message = f"{left} runs were still under way after the grace time"
            self.events.happened("shutdown", message, severity=Severity.WARNING)
        self._writer.put(replace(self._run, ended_at=self.wall(), clean=clean))
        await closing.call(lambda: self._writer.close(_CLOSE_S))
        for engine in (closing, self.aux, *self._engines):
            engine.close()
