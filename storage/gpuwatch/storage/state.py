"""The service's state as the console, the command line and scripts see it: one object, one definition.

Shapes are those of ``GET /admin/state`` (CONTRACT.md section 3). Times are Unix seconds, sizes bytes; windows are named
(``_60s``). Fields have defaults, so that a reader of another version still understands what it knows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuwatch.storage.records import (
    BlockedBy,
    Breaker,
    Cause,
    KnobChange,
    OomSnapshot,
    Pressure,
    PriceSource,
    ProcessUse,
    Source,
    Trigger,
)


class Status(StrEnum):
    """What the service as a whole is."""

    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    FATAL = "fatal"


class GpuStatus(StrEnum):
    """Whether a card's readings can be believed."""

    OK = "ok"
    STALE = "stale"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """The service itself; ``reason`` says in one sentence why it is not ``ready``, ``since`` since when."""

    name: str = ""
    version: str = ""
    pid: int = 0
    started_at: float = 0.0
    uptime_s: float = 0.0
    mode: str = "enforce"
    status: Status = Status.READY
    reason: str | None = None
    since: float = 0.0
    loop_lag_ms: float | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One card. ``available_bytes`` is capacity - promised, not free memory."""

    index: int
    uuid: str = ""
    name: str = ""
    source: Source = Source.NVML
    simulated: bool = False
    status: GpuStatus = GpuStatus.OK
    stale_since: float | None = None
    read_age_s: float | None = None
    total_bytes: int = 0
    used_bytes: int = 0
    reserved_bytes: int | None = None
    allocated_bytes: int | None = None
    reclaimable_bytes: int = 0
    foreign_bytes: int = 0
    context_bytes: int = 0
    weights_bytes: int = 0
    promised_bytes: int = 0
    capacity_bytes: int = 0
    available_bytes: int = 0
    pressure_bytes: int = 0
    pressure_ratio: float = 0.0
    pressure: Pressure = Pressure.NORMAL
    pressure_since: float | None = None
    breaker: Breaker = Breaker.CLOSED
    fragmentation_ratio: float | None = None
    alloc_retries: int | None = None
    util_pct: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    processes: tuple[ProcessUse, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneState:
    """One lane. ``limit`` is the target (running work may exceed it while it drains)."""

    name: str
    limit: int = 0
    effective_limit: int = 0
    in_flight: int = 0
    running: int = 0
    orphans: int = 0
    draining: bool = False
    waiting: int = 0
    queue_limit: int = 0
    queue_timeout_s: float = 0.0
    oldest_wait_ms: float | None = None
    head_price_bytes: int | None = None
    blocked_by: BlockedBy | None = None
    blocked_60s: Mapping[str, float] = field(default_factory=dict)
    fits_now: int | None = None
    p50_60s_ms: float | None = None
    p99_60s_ms: float | None = None
    run_p99_60s_ms: float | None = None
    ok_60s: int = 0
    refused_60s: Mapping[str, int] = field(default_factory=dict)
    outcomes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """One model."""

    name: str
    version: str | None = None
    lane: str = "default"
    loaded: bool = False
    weights_bytes: int = 0
    price_source: PriceSource = PriceSource.PRIOR
    price_formula: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryState:
    """What recording did: rows queued, written and dropped since the start, and the file's sizes."""

    queued: int = 0
    written: int = 0
    dropped: int = 0
    db_bytes: int = 0
    wal_bytes: int = 0
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A request that holds a slot. ``orphan``: its client was answered or left, its work still runs."""

    id: int
    request_id: str
    lane: str
    model: str
    price_bytes: int
    started_at: float
    orphan: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHead:
    """A snapshot as a list shows it."""

    id: int
    at: float
    gpu: int
    trigger: Trigger
    cause: Cause
    headline: str
    confidence: float | None = None
    request_id: str | None = None
    requested_bytes: int | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    allocated_bytes: int | None = None
    foreign_bytes: int | None = None
    foreign_change_bytes: int | None = None
    knobs_version: int = 0

    @classmethod
    def of(cls, snapshot: OomSnapshot) -> "SnapshotHead":
        """Give a whole snapshot as a list shows it."""
        return cls(**{name: getattr(snapshot, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything the console shows. ``at`` is the service's clock when it was made."""

    at: float = 0.0
    service: ServiceState = field(default_factory=ServiceState)
    verdict: str = ""
    gpus: tuple[GpuState, ...] = ()
    lanes: tuple[LaneState, ...] = ()
    models: tuple[ModelState, ...] = ()
    knobs_version: int = 0
    last_change: KnobChange | None = None
    last_snapshot: SnapshotHead | None = None
    telemetry: TelemetryState = field(default_factory=TelemetryState)
    in_flight: tuple[InFlight, ...] = ()


class Origin(StrEnum):
    """Where a knob's value comes from."""

    DEFAULT = "default"
    FILE = "file"
    OVERRIDE = "override"
