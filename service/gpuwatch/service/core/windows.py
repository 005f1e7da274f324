"""What a lane's clients met in the last 60 seconds: latencies and outcomes. Durations are milliseconds.

At most `KEEP` answers are kept a lane: under more than 68 a second the window is shorter than its name and says so by
``span_s``.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from gpuwatch.storage.records import Outcome

WINDOW_S: Final = 60.0
KEEP: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFacts:
    """Figures of one lane's window; percentiles of answered requests, ``None`` where there were none."""

    span_s: float
    ok: int
    refused: dict[str, int]
    outcomes: dict[str, int]
    p50_ms: float | None
    p99_ms: float | None
    run_p99_ms: float | None


class Window:
    """One lane's answers. ``outcomes`` counts since the start."""

    __slots__ = ("_seen", "outcomes")

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Outcome, float, float | None]] = deque(maxlen=KEEP)
        self.outcomes: Counter[str] = Counter()

    def add(self, now_s: float, outcome: Outcome, total_ms: float, run_ms: float | None) -> None:
        """Take in one answer."""
        self._seen.append((now_s, outcome, total_ms, run_ms))
        self.outcomes[outcome.value] += 1

    def facts(self, now_s: float) -> WindowFacts:
        """Sum up the last 60 seconds."""
        while self._seen and self._seen[0][0] < now_s - WINDOW_S:
            self._seen.popleft()
        counts = Counter(outcome.value for _, outcome, _, _ in self._seen)
        ok = counts.pop(Outcome.OK.value, 0)
        counts.pop(Outcome.CLIENT_GONE.value, None)  # nobody refused it
        total = sorted(t for _, outcome, t, _ in self._seen if outcome is Outcome.OK)
        run = sorted(r for _, outcome, _, r in self._seen if outcome is Outcome.OK and r is not None)
        return WindowFacts(
            span_s=min(WINDOW_S, now_s - self._seen[0][0]) if self._seen else 0.0,
            ok=ok,
            refused=dict(counts),
            outcomes=dict(self.outcomes),
            p50_ms=percentile(total, 0.50),
            p99_ms=percentile(total, 0.99),
            run_p99_ms=percentile(run, 0.99),
        )


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Give the nearest-rank percentile of sorted values: the smallest that at least ``share`` of them do not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None
