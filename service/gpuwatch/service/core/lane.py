"""Slots of one lane: how many runs at once, who may queue, how long they may wait.

Rules: a slot is taken at the grant and given back when the work has really ended. Lowering the limit cancels nothing:
the lane is ``draining`` until enough runs have ended. Times are seconds.
"""

from gpuwatch.storage.knobs import LaneKnobs

_RUN_WEIGHT = 0.2
_FIRST_GUESS_S = 1.0
_LONGEST_RETRY_S = 60.0


class Lane:
    """One lane's slots. ``running`` counts runs, orphans included; ``orphans`` those whose client is gone."""

    __slots__ = ("_run_s", "knobs", "name", "orphans", "running")

    def __init__(self, name: str, knobs: LaneKnobs) -> None:
        self.name = name
        self.knobs = knobs
        self.running = 0
        self.orphans = 0
        self._run_s: float | None = None

    @property
    def has_slot(self) -> bool:
        """Whether one more run may start."""
        return self.running < self.knobs.concurrency

    @property
    def draining(self) -> bool:
        """Whether more runs are under way than the limit now allows."""
        return self.running > self.knobs.concurrency

    def take(self) -> None:
        """Take a slot. Raises `ValueError` where there is none: the caller decides first."""
        if not self.has_slot:
            raise ValueError(f"lane {self.name} has no free slot ({self.running} of {self.knobs.concurrency})")
        self.running += 1

    def give(self, *, orphan: bool, run_s: float) -> None:
        """Give a slot back after a run of ``run_s`` seconds. Raises `ValueError` where none is taken."""
        if self.running == 0 or (orphan and self.orphans == 0):
            raise ValueError(f"lane {self.name} gets back a slot that was never taken")
        self.running -= 1
        self.orphans -= orphan
        self._run_s = run_s if self._run_s is None else self._run_s + _RUN_WEIGHT * (run_s - self._run_s)

    def retry_after_s(self, waiting: int) -> float:
        """Seconds after which a slot is likely: those ahead, at the lane's measured run time."""
        run_s = _FIRST_GUESS_S if self._run_s is None else self._run_s
        return min(_LONGEST_RETRY_S, run_s * (waiting + 1) / max(1, self.knobs.concurrency))
