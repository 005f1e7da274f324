"""The service's state as one object, made from what admission, the windows and the last readings say."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuwatch.service.core.admission import Admission
from gpuwatch.service.core.card import Card
from gpuwatch.service.core.decisions import LaneFacts
from gpuwatch.service.core.verdict import verdict
from gpuwatch.service.core.windows import WindowFacts
from gpuwatch.service.gpu.base import DeviceInfo
from gpuwatch.service.requests import Requests
from gpuwatch.service.telemetry import CardSeen
from gpuwatch.storage.records import Breaker, KnobChange, Pressure
from gpuwatch.storage.state import (
    GpuState,
    GpuStatus,
    InFlight,
    LaneState,
    ModelState,
    ServiceState,
    SnapshotHead,
    State,
    Status,
    TelemetryState,
)


class Reporter:
    """Makes `State` objects. ``clock`` is monotonic, ``wall`` gives Unix seconds."""

    def __init__(
        self,
        *,
        service: ServiceState,
        admission: Admission,
        requests: Requests,
        infos: Mapping[int, DeviceInfo],
        seen: Mapping[int, CardSeen],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self._service = service
        self._admission = admission
        self._requests = requests
        self._infos = infos
        self._seen = seen
        self._clock = clock
        self._wall = wall
        self._status: tuple[Status, str | None, float] = (Status.READY, None, service.started_at)

    def state(
        self,
        *,
        models: tuple[ModelState, ...],
        knobs_version: int,
        last_change: KnobChange | None,
        last_snapshot: SnapshotHead | None,
        telemetry: TelemetryState,
        loop_lag_ms: float | None,
    ) -> State:
        """Describe everything now."""
        at = self._wall()
        gpus = self.gpus()
        service = replace(self._service_now(at, gpus), uptime_s=at - self._service.started_at, loop_lag_ms=loop_lag_ms)
        state = State(
            at=at,
            service=service,
            gpus=gpus,
            lanes=self.lanes(),
            models=models,
            knobs_version=knobs_version,
            last_change=last_change,
            last_snapshot=last_snapshot,
            telemetry=telemetry,
            in_flight=self.in_flight(),
        )
        return replace(state, verdict=verdict(state))

    def gpus(self) -> tuple[GpuState, ...]:
        """Describe every card."""
        return tuple(self._gpu(card) for card in self._admission.cards.values())

    def _gpu(self, card: Card) -> GpuState:
        info, seen, now_s = self._infos[card.index], self._seen[card.index], self._clock()
        ledger, reading = card.ledger, seen.reading
        stale_since_s = card.stale_since_s(now_s)
        state = GpuState(
            index=card.index,
            uuid=info.uuid,
            name=info.name,
            source=info.source,
            simulated=info.simulated,
            total_bytes=info.total_bytes,
            status=GpuStatus.LOST if card.lost else GpuStatus.OK if stale_since_s is None else GpuStatus.STALE,
            stale_since=None if stale_since_s is None else self._unix(stale_since_s),
            read_age_s=None if seen.received_s is None else now_s - seen.received_s,
            weights_bytes=seen.weights_bytes,
            promised_bytes=ledger.promised_bytes,
            capacity_bytes=ledger.capacity_bytes,
            available_bytes=ledger.available_bytes,
            pressure=card.watermark.pressure,
            pressure_since=None if card.watermark.since_s is None else self._unix(card.watermark.since_s),
            breaker=card.breaker.state,
            processes=seen.processes,
        )
        if reading is None:
            return state
        return replace(
            state,
            used_bytes=reading.used_bytes,
            reserved_bytes=reading.reserved_bytes,
            allocated_bytes=reading.allocated_bytes,
            reclaimable_bytes=reading.reclaimable_bytes,
            foreign_bytes=reading.foreign_bytes,
            context_bytes=reading.context_bytes,
            pressure_bytes=reading.pressure_bytes,
            pressure_ratio=reading.pressure_bytes / reading.total_bytes,
            fragmentation_ratio=reading.fragmentation_ratio,
            alloc_retries=reading.alloc_retries,
            util_pct=reading.util_pct,
            temperature_c=reading.temperature_c,
            power_w=reading.power_w,
        )

    def lanes(self) -> tuple[LaneState, ...]:
        """Describe every lane."""
        windows = self._requests.facts()
        return tuple(_lane(facts, windows[facts.name]) for facts in self._admission.statistics(self._clock()))

    def in_flight(self) -> tuple[InFlight, ...]:
        """List what holds a slot, oldest first."""
        entries = {entry.seq: entry for entry in self._requests.running_entries}
        return tuple(
            InFlight(
                id=run.ticket,
                request_id=entries[run.ticket].request_id,
                lane=run.lane,
                model=entries[run.ticket].model,
                price_bytes=run.promised_bytes,
                started_at=self._unix(run.started_s),
                orphan=run.orphan,
            )
            for run in self._admission.runs()
            if run.ticket in entries
        )

    def _service_now(self, at: float, gpus: tuple[GpuState, ...]) -> ServiceState:
        status, reason = self._judge(gpus)
        if (status, reason) != self._status[:2]:
            self._status = (status, reason, at)
        return replace(self._service, status=status, reason=reason, since=self._status[2])

    def _judge(self, gpus: tuple[GpuState, ...]) -> tuple[Status, str | None]:
        if self._admission.draining:
            return Status.DRAINING, "draining"
        for gpu in gpus:
            if gpu.status is not GpuStatus.OK:
                return Status.DEGRADED, f"GPU{gpu.index} is {gpu.status}"
            if gpu.breaker is not Breaker.CLOSED:
                return Status.DEGRADED, f"GPU{gpu.index}'s breaker is {gpu.breaker}"
            if gpu.pressure is Pressure.HIGH:
                return Status.DEGRADED, f"GPU{gpu.index} is above its high mark"
        return Status.READY, None

    def _unix(self, monotonic_s: float) -> float:
        return self._wall() - (self._clock() - monotonic_s)


def _lane(facts: LaneFacts, window: WindowFacts) -> LaneState:
    return LaneState(
        name=facts.name,
        limit=facts.limit,
        effective_limit=facts.limit,
        in_flight=facts.in_flight,
        running=facts.running,
        orphans=facts.orphans,
        draining=facts.draining,
        waiting=facts.waiting,
        queue_limit=facts.queue_limit,
        queue_timeout_s=facts.queue_timeout_s,
        oldest_wait_ms=None if facts.oldest_wait_s is None else facts.oldest_wait_s * 1000,
        head_price_bytes=facts.head_price_bytes,
        blocked_by=facts.blocked_by,
        blocked_60s={cause.value: seconds for cause, seconds in facts.blocked_60s.items()},
        fits_now=facts.fits_now,
        p50_60s_ms=window.p50_ms,
        p99_60s_ms=window.p99_ms,
        run_p99_60s_ms=window.run_p99_ms,
        ok_60s=window.ok,
        refused_60s=window.refused,
        outcomes=window.outcomes,
    )
