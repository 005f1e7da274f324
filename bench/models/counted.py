"""The detector with a log of its forwards: one line at each begin and end, on the machine-wide monotonic clock."""

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from gpuwatch.service.models.detector import Detector


class Counted(Detector):
    """Appends ``begin``/``end``, the time in seconds and the number running to the file that COUNTED_LOG names."""

    _running = 0
    _lock = threading.Lock()

    def infer(self, batch: Sequence[Any]) -> list[Any]:
        """Run the detector between two lines of the log."""
        self._note("begin", 1)
        try:
            return super().infer(list(batch))
        finally:
            self._note("end", -1)

    def _note(self, what: str, change: int) -> None:
        with Counted._lock, open(os.environ["COUNTED_LOG"], "a") as log:  # noqa: PTH123 - appends are whole lines
            Counted._running += change
            log.write(f"{what} {time.monotonic():.6f} {Counted._running}\n")
