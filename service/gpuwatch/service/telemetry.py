"""What was seen lately: the last reading of each card, its processes with their change, and the 60 s before.

Rules: on the event loop's thread. The history keeps, for each half second, the sample with the most pressure: a peak is
never thinned away. Sizes are bytes.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpuwatch.service.core.neighbours import ProcessHistory
from gpuwatch.storage import codec
from gpuwatch.storage.records import ProcessUse, Reading, Sample

HISTORY_S: Final = 60.0
_SLOT_S: Final = 0.5


@dataclass(slots=True)
class CardSeen:
    """What was seen of one card. ``received_s`` is on the monotonic clock."""

    reading: Reading | None = None
    received_s: float | None = None
    processes: tuple[ProcessUse, ...] = ()
    weights_bytes: int = 0
    lost: str | None = None
    _changes: ProcessHistory = field(default_factory=ProcessHistory)
    _history: deque[Sample] = field(default_factory=deque)

    def take(self, now_s: float, reading: Reading) -> None:
        """Take in a reading."""
        self.reading = reading
        self.received_s = now_s
        self.lost = None
        self.processes = self._changes.observe(now_s, reading.processes)

    def remember(self, sample: Sample) -> None:
        """Keep the sample for the history."""
        last = self._history[-1] if self._history else None
        if last is not None and int(last.at / _SLOT_S) == int(sample.at / _SLOT_S):
            if sample.pressure_bytes >= last.pressure_bytes:
                self._history[-1] = sample
            return
        self._history.append(sample)
        while self._history[0].at < sample.at - HISTORY_S:
            self._history.popleft()

    def history(self) -> tuple[Mapping[str, Any], ...]:
        """Give the last 60 seconds as plain data, oldest first."""
        return tuple(codec.plain(sample) for sample in self._history)
