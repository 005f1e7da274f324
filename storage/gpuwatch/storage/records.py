"""What gpuwatch remembers: readings, samples, requests, snapshots, knob changes, events, runs.

Rules: frozen facts, standard library only. Sizes are bytes (``int``), times Unix seconds (``float``, ``at``),
durations milliseconds where the name says ``_ms``. What is not known is ``None``, never 0 or -1. The order of the
fields of a table's record is the order of its columns (CONTRACT.md section 5 is the public form of this file).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Dims = Mapping[str, int]
"""A request's dimensions by name, e.g. ``{"height": 1200, "width": 1024}``: what its price depends on."""


class Outcome(StrEnum):
    """How a request ended. Every request that reached the service has exactly one."""

    OK = "ok"
    QUEUE_FULL = "queue-full"
    NO_ROOM = "no-room"
    EXPECTED_WAIT = "expected-wait"
    QUEUE_TIMEOUT = "queue-timeout"
    WATERMARK = "watermark"
    BREAKER_OPEN = "breaker-open"
    DRAINING = "draining"
    SHUTDOWN = "shutdown"
    GPU_STALE = "gpu-stale"
    GPU_LOST = "gpu-lost"
    GPU_FATAL = "gpu-fatal"
    TOO_LARGE = "too-large"
    BODY_TOO_LARGE = "body-too-large"
    RUN_TIMEOUT = "run-timeout"
    OUT_OF_MEMORY = "out-of-memory"
    WORKER_LOST = "worker-lost"
    BAD_INPUT = "bad-input"
    UNKNOWN_MODEL = "unknown-model"
    UNKNOWN_LANE = "unknown-lane"
    MODEL_UNAVAILABLE = "model-unavailable"
    MODEL_ERROR = "model-error"
    CLIENT_GONE = "client-gone"
    CRASHED = "crashed"


class BlockedBy(StrEnum):
    """What the head of a lane waits for."""

    SLOTS = "slots"
    BYTES = "bytes"
    WATERMARK = "watermark"
    BREAKER = "breaker"
    STALE = "stale"


class Pressure(StrEnum):
    """Where ``pressure_bytes`` stands against the two watermarks."""

    NORMAL = "normal"
    HIGH = "high"


class Breaker(StrEnum):
    """State of a card's circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    FATAL = "fatal"


class Source(StrEnum):
    """Where a reading comes from."""

    NVML = "nvml"
    TORCH = "torch"
    SIM = "sim"


class Trigger(StrEnum):
    """What made a snapshot be taken."""

    WATERMARK = "watermark"
    BREAKER = "breaker"
    OUT_OF_MEMORY = "out-of-memory"
    MANUAL = "manual"
    CRASH = "crash"
    BASELINE_RISE = "baseline-rise"


class Cause(StrEnum):
    """What a snapshot's diagnosis names as the cause."""

    TOO_MANY_AT_ONCE = "too-many-at-once"
    OVERSIZED_REQUEST = "oversized-request"
    FRAGMENTATION = "fragmentation"
    OTHER_PROCESS = "other-process"
    LEAK = "leak"
    UNDERPRICED = "underpriced"
    WEIGHTS = "weights"
    PROCESS_LIMIT = "process-limit"
    LIBRARY_WORKSPACE = "library-workspace"
    CONTEXT_BROKEN = "context-broken"
    HOST_MEMORY = "host-memory"
    KILLED = "killed"
    MANUAL = "manual"
    UNKNOWN = "unknown"


class Severity(StrEnum):
    """How much an event matters to the operator."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class PriceSource(StrEnum):
    """Where a price comes from."""

    TAG = "tag"
    DECLARED = "declared"
    LEARNED = "learned"
    PRIOR = "prior"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """One process on a card. ``used_bytes`` is ``None`` where the driver does not tell."""

    pid: int
    name: str
    used_bytes: int | None = None
    cmdline: str = ""
    unit: str | None = None
    own: bool = False
    change_60s_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look at one card.

    ``used_bytes`` counts every process and every cache. ``reserved_bytes``, ``allocated_bytes`` and
    ``inactive_split_bytes`` are our own allocator's and ``None`` where only the driver is known.
    """

    at: float
    gpu: int
    source: Source
    total_bytes: int
    used_bytes: int
    reserved_bytes: int | None = None
    allocated_bytes: int | None = None
    inactive_split_bytes: int | None = None
    context_bytes: int = 0
    alloc_retries: int | None = None
    fragmentation_ratio: float | None = None
    util_pct: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    processes: tuple[ProcessUse, ...] = ()

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes that emptying our cache could give back: reserved - allocated - inactive_split, 0 if unknown."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return 0
        return max(0, self.reserved_bytes - self.allocated_bytes - (self.inactive_split_bytes or 0))

    @property
    def pressure_bytes(self) -> int:
        """Bytes that watermark and breaker compare: used - reclaimable."""
        return max(0, self.used_bytes - self.reclaimable_bytes)

    @property
    def foreign_bytes(self) -> int:
        """Bytes held by others: used - reserved - context of ours."""
        return max(0, self.used_bytes - (self.reserved_bytes or 0) - self.context_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A row of ``samples``: one reading together with what admission held at that moment."""

    at: float
    run_id: int
    gpu: int
    total_bytes: int
    used_bytes: int
    reserved_bytes: int | None
    allocated_bytes: int | None
    pressure_bytes: int
    promised_bytes: int
    foreign_bytes: int
    fragmentation_ratio: float | None
    alloc_retries: int | None
    util_pct: float | None
    temperature_c: float | None
    power_w: float | None
    in_flight: int
    waiting: int
    loop_lag_ms: float | None
    pressure: Pressure
    breaker: Breaker


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """A row of ``requests``. ``seq`` is ours and unique; ``request_id`` is the client's and need not be.

    ``peak_bytes`` is ``None`` where it could not be told; ``error`` holds the exception's type and figures.
    """

    seq: int
    request_id: str
    at: float
    run_id: int
    lane: str
    model: str
    model_version: str | None = None
    gpu: int | None = None
    outcome: Outcome
    status: int
    queue_ms: float | None = None
    batch_ms: float | None = None
    run_ms: float | None = None
    total_ms: float
    blocked_by: BlockedBy | None = None
    tag_bytes: int | None = None
    price_bytes: int | None = None
    price_source: PriceSource | None = None
    peak_bytes: int | None = None
    peak_source: str | None = None
    batch_id: int | None = None
    batch_size: int | None = None
    dims: Dims | None = None
    retried: bool = False
    degraded: bool = False
    would: str | None = None
    traceparent: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OomSnapshot:
    """A row of ``snapshots``: what was true just before, or at, an out-of-memory or a near-miss.

    ``request_id`` names the victim whose allocation failed, not always the cause. ``payload`` is plain JSON data and
    holds the reading, processes, requests in flight and waiting, knobs in force and the 60 s before.
    """

    id: int
    at: float
    run_id: int
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
    knobs_version: int
    payload: Mapping[str, Any] = field(default_factory=dict)
    segments: bytes | None = None


KnobValue = int | float | bool | str
"""The value of one knob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobChange:
    """A row of ``knob_changes``: one version, with who, when, and ``{key: (before, after)}``."""

    version: int
    at: float
    actor: str
    note: str | None = None
    expires_at: float | None = None
    changes: Mapping[str, tuple[KnobValue, KnobValue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A row of ``events``: something that happened, in one plain sentence."""

    id: int
    at: float
    run_id: int
    kind: str
    severity: Severity
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row of ``runs``: one life of the service. ``clean`` is ``None`` while it runs, then 1 or 0."""

    id: int
    started_at: float
    ended_at: float | None = None
    clean: bool | None = None
    pid: int
    version: str
    host: str
    gpus: tuple[Mapping[str, Any], ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
