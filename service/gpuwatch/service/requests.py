"""Every request that reached us: open while it is under way, then exactly one record.

Rules: called on the event loop's thread. `end` is what the client met; an orphan's true end may `amend` the row later,
and changes neither outcome nor status. Times called ``at`` are Unix seconds, durations milliseconds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpuwatch.service.core.windows import Window, WindowFacts
from gpuwatch.storage.records import BlockedBy, Dims, Outcome, PriceSource, RequestRecord


class AlreadyEnded(RuntimeError):
    """A second outcome for one request."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """What is known of one request so far. ``began_s`` and ``granted_s`` are on the monotonic clock."""

    seq: int
    request_id: str
    at: float
    began_s: float
    lane: str
    model: str
    model_version: str | None = None
    traceparent: str | None = None
    dims: Dims | None = None
    price_bytes: int | None = None
    price_source: PriceSource | None = None
    promised_bytes: int | None = None
    gpu: int | None = None
    asked_s: float | None = None
    granted_s: float | None = None
    queue_ms: float | None = None
    run_ms: float | None = None
    blocked_by: BlockedBy | None = None
    peak_bytes: int | None = None
    peak_source: str | None = None
    record: RequestRecord | None = field(default=None, repr=False)


class Requests:
    """All requests of one run. ``put`` stores a record, ``tell`` shows it to whoever watches."""

    def __init__(
        self,
        *,
        run_id: int,
        first_seq: int,
        clock: Callable[[], float],
        wall: Callable[[], float],
        put: Callable[[RequestRecord], None],
        tell: Callable[[RequestRecord], None],
        lanes: Iterable[str],
    ) -> None:
        self._run_id = run_id
        self._next = first_seq
        self._clock = clock
        self._wall = wall
        self._put = put
        self._tell = tell
        self._open: dict[int, Entry] = {}
        self._running: dict[int, Entry] = {}
        self._windows = {lane: Window() for lane in lanes}

    def open(
        self, *, request_id: str, lane: str, model: str, version: str | None = None, traceparent: str | None = None
    ) -> Entry:
        """Begin a request that has reached us."""
        entry = Entry(
            seq=self._next,
            request_id=request_id,
            at=self._wall(),
            began_s=self._clock(),
            lane=lane,
            model=model,
            model_version=version,
            traceparent=traceparent,
        )
        self._next += 1
        self._open[entry.seq] = entry
        return entry

    def end(self, entry: Entry, outcome: Outcome, status: int, error: str | None = None) -> RequestRecord:
        """Give the request its one outcome. Raises `AlreadyEnded` for a second one."""
        if entry.record is not None:
            raise AlreadyEnded(f"request {entry.seq} ended {entry.record.outcome} already")
        now_s = self._clock()
        if entry.asked_s is not None and entry.granted_s is None:
            entry.queue_ms = (now_s - entry.asked_s) * 1000
        entry.record = RequestRecord(
            seq=entry.seq,
            request_id=entry.request_id,
            at=entry.at,
            run_id=self._run_id,
            lane=entry.lane,
            model=entry.model,
            model_version=entry.model_version,
            gpu=entry.gpu,
            outcome=outcome,
            status=status,
            queue_ms=entry.queue_ms,
            run_ms=entry.run_ms,
            total_ms=(now_s - entry.began_s) * 1000,
            blocked_by=entry.blocked_by,
            tag_bytes=entry.price_bytes,
            price_bytes=entry.promised_bytes if entry.promised_bytes is not None else entry.price_bytes,
            price_source=entry.price_source,
            peak_bytes=entry.peak_bytes,
            peak_source=entry.peak_source,
            dims=entry.dims,
            traceparent=entry.traceparent,
            error=error,
        )
        del self._open[entry.seq]
        window = self._windows.get(entry.lane)
        if window is not None:
            window.add(now_s, outcome, entry.record.total_ms, entry.run_ms)
        self._put(entry.record)
        self._tell(entry.record)
        return entry.record

    def amend(self, entry: Entry) -> None:
        """Write what became known after the client was answered: an orphan's run time and peak."""
        if entry.record is None:
            raise AlreadyEnded(f"request {entry.seq} has not ended yet; there is nothing to amend")
        entry.record = replace(
            entry.record, run_ms=entry.run_ms, peak_bytes=entry.peak_bytes, peak_source=entry.peak_source
        )
        self._put(entry.record)

    def started(self, entry: Entry) -> None:
        """Note that the request holds a slot."""
        self._running[entry.seq] = entry

    def stopped(self, entry: Entry) -> None:
        """Note that the request's work has really ended, whenever its client was answered."""
        self._running.pop(entry.seq, None)

    @property
    def running_entries(self) -> tuple[Entry, ...]:
        """List the requests that hold a slot, orphans included, oldest first."""
        return tuple(self._running.values())

    @property
    def open_entries(self) -> tuple[Entry, ...]:
        """List the requests that have no outcome yet."""
        return tuple(self._open.values())

    def facts(self) -> Mapping[str, WindowFacts]:
        """Sum up each lane's last 60 seconds."""
        now_s = self._clock()
        return {lane: window.facts(now_s) for lane, window in self._windows.items()}
