"""A card without a card: the model runs on the CPU, its memory is booked as a GPU would book it.

Rules: everything that says where it comes from says SIMULATED. Three honest parts: the real model on the CPU, every
tensor storage that it creates (`gpu/tracker.py`), and torch's allocator as a model (`core/allocator.py`). When that
runs out, the real ``torch.OutOfMemoryError`` with torch's own wording goes up through the operation that asked.

One plain lock, the book's, guards the allocator, the context and the neighbours. Nothing that may run as a finalizer
takes it; observers are called, and errors raised, after it has been released.

The driver's bytes are total = context + reserved + neighbours + free. The context appears with the first `run` or
`loading`, as CUDA's does. Kernels' own scratch memory and library workspaces are not simulated.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from gpuwatch.service.core.allocator import AllocatorFull, CachingAllocator, Handle
from gpuwatch.service.gpu.base import DeviceInfo, DeviceLost, Measured, OutOfMemory
from gpuwatch.service.gpu.tracker import Moves, StorageBook, StorageTracker
from gpuwatch.storage.records import ProcessUse, Reading, Source

MIB = 1024 * 1024
CONTEXT_BYTES = 300 * MIB
"""What a CUDA context takes at the least on a large card; a small simulated card gives it a sixteenth."""
_FIRST_SCRIPTED_PID = 1 << 22  # Linux gives no process a number this high

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Neighbour:
    pid: int
    used_bytes: int = 0


class SimulatedCard:
    """A simulated card with ``total_bytes``; implements `Device`.

    ``context_bytes`` defaults to 300 MiB, at most a sixteenth of the card. ``clock`` gives Unix seconds. The first use
    sets torch's intra-op threads to ``host_threads`` for the whole process (several runs share the host's cores);
    ``None`` leaves them. Raises `ValueError` when the context does not fit.
    """

    def __init__(
        self,
        index: int,
        total_bytes: int,
        *,
        context_bytes: int | None = None,
        name: str = "SIMULATED card",
        clock: Callable[[], float] = time.time,
        host_threads: int | None = 1,
    ) -> None:
        self._context_bytes = min(CONTEXT_BYTES, total_bytes // 16) if context_bytes is None else context_bytes
        if not 0 <= self._context_bytes < total_bytes:
            raise ValueError(f"a context of {self._context_bytes} bytes does not fit a card of {total_bytes}")
        self.info = DeviceInfo(
            index=index,
            uuid=f"SIM-{os.getpid()}-{index}",
            name=name,
            source=Source.SIM,
            simulated=True,
            total_bytes=total_bytes,
            settings={"context_bytes": self._context_bytes},
        )
        self._clock = clock
        self._host_threads = host_threads
        self._allocator = CachingAllocator(capacity_bytes=total_bytes)
        self._book = StorageBook(self._allocate, self._free)
        self._lock = self._book.lock
        self._has_context = False
        self._closed = False
        self._neighbours: dict[str, _Neighbour] = {}
        self._next_pid = _FIRST_SCRIPTED_PID
        self._observers: list[Callable[[OutOfMemory], None]] = []
        self._observer_failed = False
        self._running = 0
        self._busy_s = 0.0
        self._busy_since: float | None = None
        self._read_at: float | None = None

    @property
    def torch_device(self) -> str:
        """``cpu``: that is where the work is done."""
        return "cpu"

    def read(self) -> Reading:
        """Look at the card. ``util_pct`` is the share of time with a run since the last look. Raises `DeviceLost`."""
        with self._lock:
            self._check()
            return self._look()

    @contextmanager
    def run(self) -> Iterator[Measured]:
        """Run on this card, under ``inference_mode``.

        Raises `DeviceLost`, ``torch.AcceleratorError`` when the context does not fit, and ``torch.OutOfMemoryError``
        out of the operation that ran out.
        """
        with self._measured() as (tracker, measured), torch.inference_mode(), tracker:
            yield measured

    @contextmanager
    def loading(self) -> Iterator[Measured]:
        """Like `run`, but without ``inference_mode``: weights made under it could never be trained or saved for it."""
        with self._measured() as (tracker, measured), Moves(tracker), tracker:
            yield measured

    def empty_cache(self) -> None:
        """Give cached segments back to the driver."""
        with self._lock:
            self._book.settle()
            self._allocator.empty_cache()

    def watch_out_of_memory(self, observer: Callable[[OutOfMemory], None]) -> None:
        """Call ``observer`` on the allocating thread before an out-of-memory unwinds; it may read the card."""
        self._observers.append(observer)

    def close(self) -> None:
        """Let the card go: from now on it is lost. Storages that live on are let go of when they end."""
        with self._lock:
            self._closed = True
        self._observers.clear()

    def set_neighbour(self, name: str, used_bytes: int) -> int:
        """Let a scripted process hold ``used_bytes`` of the card; 0 ends it. Says what it really got.

        It gets what it holds and what is free, at most: as with real ones, the driver takes nothing away from us.
        """
        with self._lock:
            self._book.settle()
            neighbour = self._neighbours.get(name)
            if neighbour is None:
                neighbour = self._neighbours[name] = _Neighbour(self._next_pid)
                self._next_pid += 1
            neighbour.used_bytes = max(0, min(used_bytes, neighbour.used_bytes + self._free_bytes()))
            if not neighbour.used_bytes:
                del self._neighbours[name]
            self._set_capacity()
            return neighbour.used_bytes

    @contextmanager
    def _measured(self) -> Iterator[tuple[StorageTracker, Measured]]:
        self._begin()
        tracker = StorageTracker(self._book)
        measured = Measured()
        try:
            yield tracker, measured
        finally:
            measured.peak_bytes, measured.peak_source = tracker.peak_bytes, "sim"
            with self._lock:
                self._book.settle()
                self._count_busy(-1)

    def _begin(self) -> None:
        with self._lock:
            self._check()
            if not self._has_context:
                if self._context_bytes > self._free_bytes():
                    raise torch.AcceleratorError("CUDA error: out of memory")
                self._has_context = True
                self._set_capacity()
                if self._host_threads is not None:
                    torch.set_num_threads(self._host_threads)
            self._count_busy(+1)

    def _check(self) -> None:
        if self._closed:
            raise DeviceLost(f"{self.info.name} was closed")

    def _count_busy(self, change: int) -> None:
        now_s = self._clock()
        if self._busy_since is not None:
            self._busy_s += max(0.0, now_s - self._busy_since)
        self._running += change
        self._busy_since = now_s if self._running else None

    def _util_pct(self, now_s: float) -> float | None:
        self._count_busy(0)
        busy_s, self._busy_s = self._busy_s, 0.0
        since_s, self._read_at = self._read_at, now_s
        if since_s is None or now_s <= since_s:
            return None
        return min(100.0, 100.0 * busy_s / (now_s - since_s))

    def _used_by_us(self) -> int:
        return self._allocator.reserved_bytes + (self._context_bytes if self._has_context else 0)

    def _free_bytes(self) -> int:
        others = sum(neighbour.used_bytes for neighbour in self._neighbours.values())
        return self.info.total_bytes - self._used_by_us() - others

    def _set_capacity(self) -> None:
        self._allocator.capacity_bytes = self._allocator.reserved_bytes + self._free_bytes()

    def _look(self) -> Reading:
        self._book.settle()
        now_s = self._clock()
        held = self._allocator.statistics()
        return Reading(
            at=now_s,
            gpu=self.info.index,
            source=Source.SIM,
            total_bytes=self.info.total_bytes,
            used_bytes=self.info.total_bytes - self._free_bytes(),
            reserved_bytes=held.reserved_bytes,
            allocated_bytes=held.allocated_bytes,
            inactive_split_bytes=held.inactive_split_bytes,
            context_bytes=self._context_bytes if self._has_context else 0,
            alloc_retries=held.num_alloc_retries,
            fragmentation_ratio=held.fragmentation_ratio,
            util_pct=self._util_pct(now_s),
            processes=self._processes(),
        )

    def _processes(self) -> tuple[ProcessUse, ...]:
        own = ProcessUse(pid=os.getpid(), name=Path(sys.executable).name, used_bytes=self._used_by_us(), own=True)
        others = [
            ProcessUse(pid=neighbour.pid, name=f"{name} (scripted)", used_bytes=neighbour.used_bytes)
            for name, neighbour in self._neighbours.items()
        ]
        return (own, *others) if self._has_context else tuple(others)

    def _allocate(self, size_bytes: int) -> int:
        with self._lock:
            self._book.settle()
            try:
                return self._allocator.allocate(size_bytes)
            except AllocatorFull as full:
                seen = OutOfMemory(
                    gpu=self.info.index,
                    requested_bytes=full.segment_bytes,
                    free_bytes=self._free_bytes(),
                    reading=self._look(),
                )
        self._tell(seen)
        raise torch.OutOfMemoryError(out_of_memory_text(seen))

    def _free(self, handle: int) -> None:
        self._allocator.free(Handle(handle))

    def _tell(self, seen: OutOfMemory) -> None:
        for observer in tuple(self._observers):
            try:
                observer(seen)
            except Exception:  # whatever goes wrong there must not replace the out-of-memory
                if not self._observer_failed:
                    self._observer_failed = True
                    log.exception("an out-of-memory observer failed; further failures are not logged")


def out_of_memory_text(seen: OutOfMemory) -> str:
    """Say of ``seen`` what torch 2.13 says, from ``c10/cuda/CUDACachingAllocator.cpp``."""
    reading = seen.reading
    reserved, allocated = reading.reserved_bytes or 0, reading.allocated_bytes or 0
    processes = "".join(
        f"{'Including non-PyTorch memory, this process' if process.own else f'Process {process.pid}'}"
        f" has {size_text(process.used_bytes or 0)} memory in use. "
        for process in reading.processes
    )
    return (
        f"CUDA out of memory. Tried to allocate {size_text(seen.requested_bytes)}. GPU {seen.gpu} has a total capacity "
        f"of {size_text(reading.total_bytes)} of which {size_text(seen.free_bytes)} is free. {processes}Of the "
        f"allocated memory {size_text(allocated)} is allocated by PyTorch, and {size_text(reserved - allocated)} is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def size_text(size_bytes: int) -> str:
    """Write a size as torch's ``format_size`` does: each unit reaches up to and includes 1024 of itself."""
    if size_bytes <= 1024:  # noqa: PLR2004 - the unit
        return f"{size_bytes} bytes"
    for unit, scale in (("KiB", 1024), ("MiB", 1024**2)):
        if size_bytes <= 1024 * scale:
            return f"{size_bytes / scale:.2f} {unit}"
    return f"{size_bytes / 1024**3:.2f} GiB"
