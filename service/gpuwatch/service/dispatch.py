"""The way of a request from its ask to its record: admission, an engine's thread, settlement.

Rules: on the event loop's thread, but for what runs inside the engine. The work is never on the loop. Slot and promise
come back when the work has really ended: not when the client leaves, not when a time-out fires; until then it is an
orphan, counted and shown. Every way out of `run` gives the entry its one outcome.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from gpuwatch.service.core.decisions import Ask
from gpuwatch.service.engines.threads import Done, Failed, ThreadEngine
from gpuwatch.service.errors import Refused
from gpuwatch.service.gate import Gate, Lease
from gpuwatch.service.gpu.base import Device, Measured, OutOfMemory
from gpuwatch.service.models.base import BadInput
from gpuwatch.service.requests import Entry, Requests
from gpuwatch.service.snapshots import Snapshots
from gpuwatch.storage.records import Outcome

T = TypeVar("T")
CLIENT_CLOSED: Final = 499
_log = logging.getLogger(__name__)


class _Run(Generic[T]):
    """One run under way: what the engine's thread and the loop both know of it. No answer: the grace has ended."""

    __slots__ = ("answer", "entry", "lease", "measured")

    def __init__(self, entry: Entry, lease: Lease, answer: "asyncio.Future[Done[T] | Failed | None]") -> None:
        self.entry = entry
        self.lease = lease
        self.answer = answer
        self.measured: Measured | None = None


class Dispatcher:
    """Runs work on the cards of ``devices`` under the gate's leases."""

    def __init__(
        self,
        *,
        gate: Gate,
        engine: ThreadEngine,
        requests: Requests,
        devices: Mapping[int, Device],
        snapshots: Snapshots,
        clock: Callable[[], float],
        error_text: bool = False,
    ) -> None:
        self._gate = gate
        self._engine = engine
        self._requests = requests
        self._devices = devices
        self._snapshots = snapshots
        self._clock = clock
        self._error_text = error_text
        self._victim = threading.local()
        self._runs: dict[int, _Run[Any]] = {}
        self._loop = asyncio.get_running_loop()
        for device in devices.values():
            device.watch_out_of_memory(self._out_of_memory)

    async def run(self, entry: Entry, work: Callable[[int], T]) -> T:
        """Run ``work(gpu)`` under admission and give its value; the entry has its outcome then. Raises `Refused`."""
        lease = await self._admit(entry)
        run: _Run[T] = _Run(entry, lease, self._loop.create_future())
        self._runs[entry.seq] = run
        self._requests.started(entry)
        try:
            self._engine.submit(lambda: self._on_card(run, work), lambda result: self._hand_over(run, result))
        except Exception as none:
            self._ended(run, Failed(none, ""))
            self._requests.end(entry, Outcome.MODEL_UNAVAILABLE, 503, type(none).__name__)
            raise Refused(Outcome.MODEL_UNAVAILABLE, "There is no thread to run it on now.") from none
        try:
            return await self._answered(run)
        finally:
            self._snapshots.forget(entry)

    async def _answered(self, run: _Run[T]) -> T:
        """Wait for the work's end, the lane's limit, the end of the grace or the client's leaving."""
        entry, lease = run.entry, run.lease
        limit_s = self._gate.admission.lanes[entry.lane].knobs.run_timeout_s
        try:
            async with asyncio.timeout(limit_s or None):
                result = await asyncio.shield(run.answer)
        except TimeoutError:
            lease.orphan()
            self._requests.end(entry, Outcome.RUN_TIMEOUT, 504)
            raise Refused(Outcome.RUN_TIMEOUT, f"It ran for {limit_s:g} s, the lane's limit.") from None
        except asyncio.CancelledError:
            lease.orphan()
            self._requests.end(entry, Outcome.CLIENT_GONE, CLIENT_CLOSED)
            raise
        if result is None:
            lease.orphan()
            self._requests.end(entry, Outcome.SHUTDOWN, 503)
            raise Refused(Outcome.SHUTDOWN, "The grace time ended while it ran.")
        if isinstance(result, Done):
            self._requests.end(entry, Outcome.OK, 200)
            return result.value
        raise await self._failed(entry, result) from None

    def abandon(self) -> None:
        """Answer everyone whose work still runs: the grace time has ended. The work goes on as an orphan."""
        for run in self._runs.values():
            if not run.answer.done():
                run.answer.set_result(None)

    async def _admit(self, entry: Entry) -> Lease:
        entry.asked_s = self._clock()
        ask = Ask(ticket=entry.seq, lane=entry.lane, price_bytes=entry.price_bytes)
        try:
            lease = await self._gate.enter(ask)
        except Refused as refusal:
            entry.blocked_by = refusal.figures.get("blocked_by")
            self._requests.end(entry, refusal.reason, refusal.status)
            raise
        except asyncio.CancelledError:
            self._requests.end(entry, Outcome.CLIENT_GONE, CLIENT_CLOSED)
            raise
        entry.granted_s = self._clock()
        entry.queue_ms = lease.grant.waited_s * 1000
        entry.blocked_by = lease.grant.blocked_by
        entry.gpu = lease.grant.gpu
        entry.promised_bytes = lease.grant.promised_bytes
        return lease

    # -- on the engine's thread ------------------------------------------------------------------------------------

    def _on_card(self, run: _Run[T], work: Callable[[int], T]) -> T:
        gpu = run.lease.grant.gpu
        self._victim.entry = run.entry
        try:
            with self._devices[gpu].run() as measured:
                run.measured = measured
                return work(gpu)
        finally:
            self._victim.entry = None

    def _hand_over(self, run: _Run[T], result: Done[T] | Failed) -> None:
        self._loop.call_soon_threadsafe(self._ended, run, result)

    def _out_of_memory(self, figures: OutOfMemory) -> None:
        """Hand the figures to the loop before the exception unwinds, so that they arrive before the run's end."""
        victim: Entry | None = getattr(self._victim, "entry", None)
        with suppress(RuntimeError):  # the loop is closed; raising here would replace the out-of-memory itself
            self._loop.call_soon_threadsafe(self._snapshots.out_of_memory, figures, victim)

    # -- back on the loop ------------------------------------------------------------------------------------------

    def _ended(self, run: _Run[T], result: Done[T] | Failed) -> None:
        """Take in that the work has really ended: measure, give back, then answer or amend."""
        entry = run.entry
        self._runs.pop(entry.seq, None)
        self._requests.stopped(entry)
        if entry.granted_s is not None:
            entry.run_ms = (self._clock() - entry.granted_s) * 1000
        if run.measured is not None:
            entry.peak_bytes = run.measured.peak_bytes
            entry.peak_source = run.measured.peak_source
        run.lease.end(ok=isinstance(result, Done))
        if not run.answer.done():
            run.answer.set_result(result)
        if entry.record is not None:
            self._snapshots.forget(entry)
            self._requests.amend(entry)
            if isinstance(result, Failed):
                _log.warning("request %s failed after its client was answered: %s", entry.request_id, result.text)

    async def _failed(self, entry: Entry, failed: Failed) -> Refused:
        """Give the entry its outcome and make what was raised a refusal."""
        error = failed.error
        if isinstance(error, BadInput):
            refusal = Refused(Outcome.BAD_INPUT, text_of(error), status=error.status)
            self._requests.end(entry, Outcome.BAD_INPUT, refusal.status, self._name(error))
            return refusal
        if is_out_of_memory(error):
            return await self._failed_for_memory(entry, error)
        _log.error("model %s raised for request %s\n%s", entry.model, entry.request_id, failed.text)
        self._requests.end(entry, Outcome.MODEL_ERROR, 500, self._name(error))
        return Refused(Outcome.MODEL_ERROR, f"{entry.model} raised {type(error).__name__}; the log has the traceback.")

    async def _failed_for_memory(self, entry: Entry, error: BaseException) -> Refused:
        with suppress(RuntimeError):  # no thread for it: the cache stays, and the next out-of-memory tries again
            self._engine.submit(self._devices[entry.gpu or 0].empty_cache, _note_failure)
        try:
            figures = await self._snapshots.committed(entry)
        except asyncio.CancelledError:
            self._requests.end(entry, Outcome.CLIENT_GONE, CLIENT_CLOSED, self._name(error))
            raise
        asked = "" if figures is None else f" asked={figures.requested_bytes} free={figures.free_bytes}"
        self._requests.end(entry, Outcome.OUT_OF_MEMORY, 503, self._name(error) + asked)
        snapshot = None if figures is None else figures.snapshot_id
        return Refused(
            Outcome.OUT_OF_MEMORY,
            "The card ran out of memory while it ran.",
            figures={"snapshot": snapshot, "price_bytes": entry.promised_bytes, "lane": entry.lane},
        )

    def _name(self, error: BaseException) -> str:
        return f"{type(error).__name__}: {text_of(error)}" if self._error_text else type(error).__name__

    async def drained(self, grace_s: float) -> bool:
        """Wait until nothing runs and nothing waits that could run; tell whether it came within ``grace_s`` seconds."""
        ends_s = self._clock() + grace_s
        while self._gate.admission.goes_on:
            if self._clock() >= ends_s:
                return False
            await asyncio.sleep(0.02)
        return True


def text_of(error: BaseException) -> str:
    """Give an exception's text, also of one whose own methods raise."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a model's exception may do anything
        return "its text cannot be had"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch says that the card is full; torch is asked only where it is loaded already."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(error, torch.OutOfMemoryError):
        return True
    # The driver's own refusal (a context or a library workspace that found no room) has no class of its own.
    driver = getattr(torch, "AcceleratorError", None)
    return driver is not None and isinstance(error, driver) and "out of memory" in str(error)


def _note_failure(result: Done[None] | Failed) -> None:
    if isinstance(result, Failed):
        _log.warning("the card's cache could not be emptied: %s", result.text)
