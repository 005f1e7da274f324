"""The heartbeat: a thread a card that reads it and hands the readings to the event loop.

Rules: the calls into a driver may block; only the card's own thread waits for them, and a reading that does not come
makes that card stale and no other. A card that is lost is tried again at every beat. The way from here to the loop is
timed: it is the loop's lag, in milliseconds.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from gpuwatch.service.gpu.base import Device, DeviceLost
from gpuwatch.storage.records import Reading

_JOIN_S: Final = 1.0
_log = logging.getLogger(__name__)


class Receiver(Protocol):
    """Who takes the readings, on the event loop's thread."""

    def reading(self, reading: Reading, loop_lag_ms: float) -> None:
        """Take a reading; ``loop_lag_ms`` is how late the loop took it."""

    def lost(self, gpu: int, why: str) -> None:
        """Take in that a card is gone."""


class Sampler:
    """Reads ``devices`` every ``interval_s()`` seconds."""

    def __init__(
        self,
        devices: Mapping[int, Device],
        receiver: Receiver,
        *,
        interval_s: Callable[[], float],
        clock: Callable[[], float],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._receiver = receiver
        self._interval_s = interval_s
        self._clock = clock
        self._loop = loop
        self._changed = threading.Condition()
        self._stopped = False
        self._hurried = 0
        self._troubles: dict[int, str] = {}
        self._threads = [
            threading.Thread(target=self._beat, args=pair, name=f"gpuwatch-sampler-{pair[0]}", daemon=True)
            for pair in devices.items()
        ]

    def start(self) -> None:
        """Begin to read."""
        for thread in self._threads:
            thread.start()

    def hurry(self) -> None:
        """Read now: the interval was turned, and a long one must not be waited out."""
        with self._changed:
            self._hurried += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Read no more; a call that hangs in the driver is left behind."""
        self._end()
        self.join()

    def join(self) -> None:
        """Wait until the threads have ended, a second at most."""
        ends_s = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, ends_s - time.monotonic()))

    def _end(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _beat(self, gpu: int, device: Device) -> None:
        due_s = self._clock()
        while not self._stopped:
            hurried = self._hurried
            self._read(gpu, device)
            # Beats keep their rhythm; what a long read ate is skipped, not caught up.
            due_s = max(due_s + self._interval_s(), self._clock())
            woken = self._wait(hurried, due_s - self._clock())
            if woken:
                due_s = self._clock()

    def _wait(self, hurried: int, timeout_s: float) -> bool:
        """Wait until the next beat; tell whether something came before it."""
        with self._changed:
            return self._changed.wait_for(lambda: self._stopped or self._hurried != hurried, timeout_s)

    def _read(self, gpu: int, device: Device) -> None:
        try:
            reading = device.read()
        except DeviceLost as lost:
            self._trouble(gpu, str(lost))
            self._post(self._receiver.lost, gpu, str(lost))
        except Exception as error:  # noqa: BLE001 - a driver may raise anything: the reading is missing, no more
            self._trouble(gpu, f"{type(error).__name__}: {error}")
        else:
            if reading.total_bytes <= 0 or reading.used_bytes < 0:
                # A card that states no memory: nothing can be told from that, least of all that there is room.
                self._trouble(gpu, f"it states {reading.used_bytes} of {reading.total_bytes} bytes in use")
                return
            self._troubles.pop(gpu, None)
            read_s = self._clock()
            self._post(self._take, reading, read_s)

    def _take(self, reading: Reading, read_s: float) -> None:
        self._receiver.reading(reading, (self._clock() - read_s) * 1000)

    def _trouble(self, gpu: int, what: str) -> None:
        """Log a change of trouble once, not at every beat."""
        if self._troubles.get(gpu) != what:
            self._troubles[gpu] = what
            _log.warning("GPU%d cannot be read: %s", gpu, what)

    def _post(self, what: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:
            self._end()  # the loop is closed: the service has ended
