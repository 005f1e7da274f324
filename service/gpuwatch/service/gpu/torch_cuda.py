"""A CUDA card, seen through torch alone. Not yet run on a GPU: written from torch's sources, tested on a scripted card.

Rules: importing this module imports no torch; opening a card starts CUDA. Sizes are bytes. What torch cannot tell stays
unknown: other processes, utilisation, temperature, power.

A reading is the driver's figure (``cudaMemGetInfo``) between two looks at torch's allocator; where segments came or
went meanwhile, used and reserved would be of different moments, so it is taken again, three times at most.

The context is what the driver's figure grew by at this process's first use of the card, less what we reserved. Asking
``cudaMemGetInfo`` makes the context, so both figures are ``torch.cuda.device_memory_used``, which looks from outside.
It is unknown where that is missing, CUDA was in use before us, or a neighbour was seen to move; then it is reported as
0 and counts as foreign, as kernels loaded later do: that leaves the card's capacity as it is.

Peaks are the whole card's, so a run has one only when no other overlapped it; what the process allocates outside of
runs goes unseen. Leaving a run waits for the stream that is current then: other streams are the model's own to join.

A card is lost where CUDA says that there is none (100) or that its number is no longer one (101). Illegal accesses and
launch failures break our context, not the card: they go up as they are, and so does every later reading's.
"""

import functools
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from gpuwatch.service.gpu.base import Device, DeviceInfo, DeviceLost, Measured, OutOfMemory
from gpuwatch.storage.records import ProcessUse, Reading, Source

_Cuda = Any  # the module ``torch.cuda`` or a script of it: its functions are too loosely typed to share a protocol
_Listener = Callable[[int, int, int, int], None]
_Attach = Callable[[_Listener], object]
_TRIES: Final = 3
_LARGEST_CONTEXT_BYTES: Final = 1 << 30  # 300 to 430 MiB are usual: more is a neighbour that grew meanwhile
_LOST_CODES: Final = frozenset({100, 101})  # cudaErrorNoDevice, cudaErrorInvalidDevice
# cudaMemGetInfo is bound by pybind11, whose RuntimeError has no code: hence the texts as well.
_LOST_TEXTS: Final = ("no CUDA-capable device is detected", "invalid device ordinal")
_SEGMENTS: Final = ("reserved_bytes.all.current", "num_device_alloc", "num_device_free")
log = logging.getLogger(__name__)


class NoCuda(Exception):
    """There is no such CUDA card here; the message says what to choose instead."""

    def __init__(self, why: str) -> None:
        super().__init__(f"no CUDA device: {why}; choose --gpu sim:8GiB for a simulated card")


def cuda_cards(spec: str, *, cuda: _Cuda | None = None) -> dict[int, Device]:
    """Open the card that ``auto`` or ``cuda:N`` names, under its CUDA index. Raises `NoCuda`.

    One card at a time for now: of several, ``auto`` takes the first and logs that it does.
    """
    found = re.fullmatch(r"cuda:([0-9]+)", spec)
    if found is None and spec != "auto":
        raise NoCuda(f"{spec} names none (cuda:0 would)")
    index = int(found[1]) if found else 0
    driver = _torch_cuda() if cuda is None else cuda
    count = driver.device_count() if driver.is_available() else 0
    if index >= count:
        raise NoCuda(f"{spec} needs {index + 1}, torch finds {count} here (see nvidia-smi, CUDA_VISIBLE_DEVICES)")
    if found is None and count > 1:
        log.warning("%d CUDA devices: only cuda:0 is served for now; --gpu cuda:N takes another", count)
    try:
        return {index: TorchCudaCard(index, cuda=cuda)}
    except (RuntimeError, AssertionError, DeviceLost) as error:  # AssertionError: torch's for an invalid device
        raise NoCuda(f"cuda:{index} cannot be used ({_first_line(error)})") from error


def _torch_cuda() -> _Cuda:
    try:
        import torch  # noqa: PLC0415 - whoever simulates or only looks may have none
    except ImportError:
        raise NoCuda("torch is not installed") from None
    if torch.version.cuda is None:
        raise NoCuda(f"torch {torch.__version__} is built without CUDA")
    return torch.cuda


class TorchCudaCard:
    """The CUDA card ``index``; implements `Device`. Raises `NoCuda`, `DeviceLost` and what torch raises at its start.

    ``clock`` gives Unix seconds. In place of ``torch.cuda`` a test hands in ``cuda``, and ``attach`` for torch's hook
    for observers of an out-of-memory, which may be absent.
    """

    def __init__(
        self,
        index: int,
        *,
        cuda: _Cuda | None = None,
        attach: _Attach | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if cuda is None:
            cuda = _torch_cuda()
            import torch  # noqa: PLC0415 - it is there: the line above would have raised

            attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)  # noqa: SLF001 - it has no other
        self._index, self._cuda, self._attach, self._clock = index, cuda, attach, clock
        self._lock = threading.Lock()
        self._running = self._entered = 0
        self._closed = False
        self._listening: list[_Listener] = []
        with self._answering():
            self._context_bytes, total_bytes = self._first_use()
            properties = cuda.get_device_properties(index)
        self.info = DeviceInfo(
            index=index,
            uuid=f"GPU-{properties.uuid}",
            name=properties.name,
            source=Source.TORCH,
            simulated=False,
            total_bytes=total_bytes,
            settings={"context_bytes": self._context_bytes},
        )

    @property
    def torch_device(self) -> str:
        """Where tensors live: ``cuda:N``."""
        return f"cuda:{self._index}"

    def read(self) -> Reading:
        """Look at the card. Raises `DeviceLost`, and `RuntimeError` for a broken context or three straddled tries."""
        self._check()
        with self._answering():
            for _ in range(_TRIES):
                before = self._statistics()
                free_bytes, total_bytes = self._cuda.mem_get_info(self._index)
                after = self._statistics()
                if all(before.get(key) == after.get(key) for key in _SEGMENTS):
                    return self._reading(after, total_bytes, free_bytes)
        raise RuntimeError(f"{self.torch_device}: segments came or went during each of {_TRIES} readings")

    @contextmanager
    def run(self) -> Iterator[Measured]:
        """Run on this card, under ``inference_mode``. Raises `DeviceLost`, and what the work's kernels raise late."""
        import torch  # noqa: PLC0415 - this module must import without it

        with self.loading() as measured, torch.inference_mode():
            yield measured

    @contextmanager
    def loading(self) -> Iterator[Measured]:
        """Like `run`, but without ``inference_mode``: weights made under it could never be trained."""
        self._check()
        measured = Measured()
        with self._answering():
            ticket, base_bytes = self._enter()
        try:
            with self._cuda.device(self._index):
                try:
                    yield measured
                except BaseException:
                    with suppress(Exception):  # a broken context raises again: what the work raised says more
                        self._wait()
                    raise
                self._wait()
        finally:
            self._leave(measured, ticket, base_bytes)

    def empty_cache(self) -> None:
        """Give cached segments back to the driver: those of the whole process, and it synchronizes."""
        with self._answering():
            self._cuda.empty_cache()

    def watch_out_of_memory(self, observer: Callable[[OutOfMemory], None]) -> None:
        """Call ``observer`` on the allocating thread before an out-of-memory of this card unwinds."""
        if self._attach is None:
            log.warning("%s: this torch shows no out-of-memory before it unwinds", self.torch_device)
            return

        def listen(device: int, asked_bytes: int, _allowed_bytes: int, free_bytes: int) -> None:
            if device == self._index:
                reading = self._reading(self._statistics(), self.info.total_bytes, free_bytes)
                observer(OutOfMemory(gpu=device, requested_bytes=asked_bytes, free_bytes=free_bytes, reading=reading))

        self._listening.append(listen)
        _listeners(self._attach).append(listen)

    def close(self) -> None:
        """Let the card go: from now on it is lost. Context and cache stay until the process ends."""
        self._closed = True
        while self._listening and self._attach is not None:
            _listeners(self._attach).remove(self._listening.pop())

    def _first_use(self) -> tuple[int | None, int]:
        """Make the context; give its bytes, where they can be told, and the card's."""
        before_bytes = None if self._cuda.is_initialized() else self._used_from_outside()
        self._cuda.init()
        total_bytes: int = self._cuda.mem_get_info(self._index)[1]
        after_bytes = self._used_from_outside()
        if before_bytes is None or after_bytes is None:
            return None, total_bytes
        context_bytes = after_bytes - before_bytes - self._statistics()["reserved_bytes.all.current"]
        return context_bytes if 0 < context_bytes <= _LARGEST_CONTEXT_BYTES else None, total_bytes

    def _used_from_outside(self) -> int | None:
        try:
            looks = {int(self._cuda.device_memory_used(self._index)) for _ in range(2)}
        except Exception:  # noqa: BLE001 - NVML's errors come from a module that may be absent: the figure is unknown
            return None
        return looks.pop() if len(looks) == 1 else None

    def _enter(self) -> tuple[int, int | None]:
        """Begin a run: its number, and what was allocated before it where nothing else runs."""
        with self._lock:
            base_bytes = None
            if not self._running:
                self._cuda.reset_peak_memory_stats(self._index)
                base_bytes = self._statistics()["allocated_bytes.all.current"]
            self._running += 1
            self._entered += 1
            return self._entered, base_bytes

    def _leave(self, measured: Measured, ticket: int, base_bytes: int | None) -> None:
        with self._lock:
            self._running -= 1
            if base_bytes is not None and ticket == self._entered:  # alone when it began, and none has begun since
                measured.peak_bytes = self._statistics()["allocated_bytes.all.peak"] - base_bytes
                measured.peak_source = "alone"

    def _wait(self) -> None:
        with self._answering():
            self._cuda.current_stream(self._index).synchronize()

    def _statistics(self) -> Mapping[str, int]:
        statistics: Mapping[str, int] = self._cuda.memory_stats(self._index)
        return statistics

    def _reading(self, held: Mapping[str, int], total_bytes: int, free_bytes: int) -> Reading:
        reserved_bytes, split_bytes = held["reserved_bytes.all.current"], held["inactive_split_bytes.all.current"]
        own_bytes = None if self._context_bytes is None else self._context_bytes + reserved_bytes
        return Reading(
            at=self._clock(),
            gpu=self._index,
            source=Source.TORCH,
            total_bytes=total_bytes,
            used_bytes=total_bytes - free_bytes,
            reserved_bytes=reserved_bytes,
            allocated_bytes=held["allocated_bytes.all.current"],
            inactive_split_bytes=split_bytes,
            context_bytes=self._context_bytes or 0,
            alloc_retries=held["num_alloc_retries"],
            # The exact ratio needs a snapshot of all blocks; this one misses expandable segments.
            fragmentation_ratio=split_bytes / reserved_bytes if reserved_bytes else None,
            processes=(ProcessUse(pid=os.getpid(), name=Path(sys.executable).name, used_bytes=own_bytes, own=True),),
        )

    def _check(self) -> None:
        if self._closed:
            raise DeviceLost(f"{self.torch_device} was closed")

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Ask the card something in here: raises `DeviceLost` where CUDA says that it is gone."""
        try:
            yield
        except RuntimeError as error:
            if getattr(error, "error_code", None) in _LOST_CODES or any(text in str(error) for text in _LOST_TEXTS):
                raise DeviceLost(f"{self.torch_device}: {_first_line(error)}") from error
            raise


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


@functools.cache
def _listeners(attach: _Attach) -> list[_Listener]:
    """Attach to torch once per process (nothing can be detached again); give the list of those who hear of it."""
    listeners: list[_Listener] = []

    def relay(device: int, asked_bytes: int, allowed_bytes: int, free_bytes: int) -> None:
        for listener in tuple(listeners):
            try:
                listener(device, asked_bytes, allowed_bytes, free_bytes)
            except BaseException:  # whatever leaves here would replace the out-of-memory
                log.exception("an out-of-memory observer failed")

    attach(relay)
    return listeners
