"""A card and models for tests of the edge: nothing here is clever, everything is settable.

Rules: a fake counts what really happens (how many runs at once, how often the cache was emptied), and waits on events
that the test sets. Sizes are bytes.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from gpuwatch.service.gpu.base import DeviceInfo, Measured, OutOfMemory
from gpuwatch.service.models.base import BadInput
from gpuwatch.storage.knobs import Knobs
from gpuwatch.storage.records import ProcessUse, Reading, Source

MIB = 1 << 20
GIB = 1 << 30
PATIENCE_S = 20.0
"""How long a test waits for what must come; it only ever passes when something is broken."""


class FakeDevice:
    """A card whose readings the test sets, and which runs out of memory when a model says so."""

    def __init__(self, index: int = 0, *, total_bytes: int = GIB) -> None:
        self.info = DeviceInfo(
            index=index,
            uuid=f"FAKE-{index}",
            name="fake card",
            source=Source.SIM,
            simulated=True,
            total_bytes=total_bytes,
        )
        self.used_bytes = 0
        self.allocated_bytes = 0
        self.processes: tuple[ProcessUse, ...] = ()
        self.trouble: BaseException | None = None
        self.may_read = threading.Event()
        self.may_read.set()
        self.tried = 0
        self.reads = 0
        self.closed = False
        self.cache_emptied = 0
        self.running = 0
        self.most_running = 0
        self._lock = threading.Lock()
        self._observers: list[Callable[[OutOfMemory], None]] = []

    @property
    def torch_device(self) -> str:
        return "cpu"

    def reading(self) -> Reading:
        return Reading(
            at=time.time(),
            gpu=self.info.index,
            source=Source.SIM,
            total_bytes=self.info.total_bytes,
            used_bytes=self.used_bytes,
            reserved_bytes=self.allocated_bytes,
            allocated_bytes=self.allocated_bytes,
            processes=self.processes,
        )

    def read(self) -> Reading:
        self.tried += 1
        self.may_read.wait(PATIENCE_S)
        if self.trouble is not None:
            raise self.trouble
        self.reads += 1
        return self.reading()

    @contextmanager
    def run(self) -> Iterator[Measured]:
        measured = Measured()
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            yield measured
        finally:
            measured.peak_bytes, measured.peak_source = 7 * MIB, "sim"
            with self._lock:
                self.running -= 1

    @contextmanager
    def loading(self) -> Iterator[Measured]:
        yield Measured()
        self.allocated_bytes += MIB
        self.used_bytes += MIB

    def empty_cache(self) -> None:
        self.cache_emptied += 1

    def watch_out_of_memory(self, observer: Callable[[OutOfMemory], None]) -> None:
        self._observers.append(observer)

    def close(self) -> None:
        self.closed = True

    def run_out(self, requested_bytes: int = 64 * MIB, free_bytes: int = MIB) -> None:
        """Do what an allocation does that fails: tell the observers, then raise."""
        for observer in self._observers:
            observer(
                OutOfMemory(
                    gpu=self.info.index,
                    requested_bytes=requested_bytes,
                    free_bytes=free_bytes,
                    reading=self.reading(),
                )
            )
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.")


class FakeModel:
    """A model that does what the test says: ``does`` is called with the payload inside ``infer``."""

    def __init__(
        self,
        name: str = "echo",
        *,
        lane: str = "default",
        price_bytes: int = MIB,
        does: Callable[[bytes], Any] = lambda payload: payload.decode("latin-1"),
    ) -> None:
        self.name = name
        self.lane = lane
        self.version = "1"
        self.price_bytes: Any = price_bytes
        self.does = does
        self.given_dims: Any = None
        self.dims_raises: BaseException | None = None
        self.decode_raises: BaseException | None = None
        self.running = 0
        self.most_running = 0
        self.ran = 0
        self._lock = threading.Lock()

    def load(self, device: str) -> None:
        assert device == "cpu"

    def dims(self, body: bytes, content_type: str) -> Mapping[str, int]:
        del content_type
        if self.dims_raises is not None:
            raise self.dims_raises
        return {"bytes": len(body)} if self.given_dims is None else self.given_dims

    def price(self, dims: Mapping[str, int]) -> int:
        del dims
        return self.price_bytes  # type: ignore[no-any-return]  # tests hand in what is no price, too

    def decode(self, body: bytes, content_type: str) -> bytes:
        del content_type
        if self.decode_raises is not None:
            raise self.decode_raises
        if body.startswith(b"bad"):
            raise BadInput("this is no echo", status=422)
        return body

    def infer(self, batch: list[bytes]) -> list[Any]:
        with self._lock:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.ran += 1
        try:
            return [self.does(payload) for payload in batch]
        finally:
            with self._lock:
                self.running -= 1

    def encode(self, result: object) -> object:
        return {"echo": result}


class Held:
    """Work that begins, says so, and waits until the test lets it go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()

    def __call__(self, payload: object = None) -> object:
        self.begun.release()
        assert self.go.wait(PATIENCE_S), "nobody let the work go"
        return payload.decode("latin-1") if isinstance(payload, bytes) else payload

    async def has_begun(self, times: int = 1) -> None:
        for _ in range(times):
            assert await asyncio.to_thread(self.begun.acquire, timeout=PATIENCE_S), "the work never began"


async def until(true: Callable[[], object]) -> None:
    """Let the loop go on until something is true; a test that waits for what never comes fails."""
    async with asyncio.timeout(PATIENCE_S):
        while not true():  # noqa: ASYNC110 - what is waited for has no event: it is the code's own state
            await asyncio.sleep(0.002)


def knobs_of(changes: Mapping[str, object] | None = None, *lanes: str) -> Knobs:
    return Knobs.defaults(lanes).turned(changes or {})


def reading_of(gpu: int = 0, *, used_bytes: int = 0, total_bytes: int = GIB) -> Reading:
    return Reading(
        at=0.0,
        gpu=gpu,
        source=Source.SIM,
        total_bytes=total_bytes,
        used_bytes=used_bytes,
        reserved_bytes=0,
        allocated_bytes=0,
    )
