"""One card as admission sees it: its ledger, its watermark, its breaker, and whether its readings can be believed."""

from gpuwatch.service.core.breaker import CircuitBreaker
from gpuwatch.service.core.ledger import Ledger, Terms
from gpuwatch.service.core.watermark import Watermark
from gpuwatch.storage.knobs import Knobs
from gpuwatch.storage.records import BlockedBy, Pressure, Reading


class Card:
    """One GPU. ``runs`` counts our runs on it; times are seconds on admission's clock."""

    __slots__ = ("_fails_open", "_ratio", "_stale_after_s", "_told", "breaker", "index", "ledger", "lost", "observed_s",
                 "runs", "watermark")  # fmt: skip

    def __init__(self, index: int, knobs: Knobs) -> None:
        self.index = index
        self.ledger = Ledger(_terms(knobs))
        self.watermark = Watermark(high_ratio=knobs.number("watermark.high"), low_ratio=knobs.number("watermark.low"))
        self.breaker = CircuitBreaker(
            trip_ratio=knobs.number("breaker.trip"), cooldown_s=knobs.number("breaker.cooldown_s")
        )
        self.observed_s: float | None = None
        self.lost = False
        self.runs = 0
        self._ratio = 0.0
        self._told = (self.watermark.pressure, self.breaker.state)
        self.turn(0.0, knobs)

    def turn(self, now_s: float, knobs: Knobs) -> None:
        """Take the knobs' new values; a reading that is still believed is judged by them at once."""
        self.ledger.turn(_terms(knobs))
        self.watermark.turn(high_ratio=knobs.number("watermark.high"), low_ratio=knobs.number("watermark.low"))
        self.breaker.trip_ratio = knobs.number("breaker.trip")
        self.breaker.cooldown_s = knobs.number("breaker.cooldown_s")
        self._fails_open = knobs.word("watermark.on_stale") == "open"
        self._stale_after_s = max(
            knobs.number("sampling.stale_after_s"), 2 * knobs.number("sampling.interval_ms") / 1000
        )
        if self.stale_since_s(now_s) is None:
            self._judge(now_s)

    def observe(self, now_s: float, reading: Reading) -> tuple[bool, bool]:
        """Take in a reading; tell whether pressure and whether the breaker are others than at the reading before."""
        self.lost = False
        self.observed_s = now_s
        self.ledger.observe(now_s, reading, idle=self.runs == 0)
        self._ratio = reading.pressure_bytes / reading.total_bytes
        self._judge(now_s)
        before, self._told = self._told, (self.watermark.pressure, self.breaker.state)
        return self._told[0] is not before[0], self._told[1] is not before[1]

    def _judge(self, now_s: float) -> None:
        self.watermark.observe(now_s, self._ratio)
        self.breaker.observe(now_s, self._ratio)

    def stale_since_s(self, now_s: float) -> float | None:
        """Tell since when the readings are too old to be believed; ``None`` while they are good."""
        if self.observed_s is None:
            return now_s
        return self.observed_s + self._stale_after_s if now_s - self.observed_s > self._stale_after_s else None

    def blocked_by(self, now_s: float, price_bytes: int | None) -> BlockedBy | None:
        """Tell what keeps a request of this price from starting here now; slots are the lane's matter."""
        if self.lost or (self.stale_since_s(now_s) is not None and not self._fails_open):
            return BlockedBy.STALE
        if not self.breaker.lets_through:
            return BlockedBy.BREAKER
        if self.watermark.pressure is Pressure.HIGH:
            return BlockedBy.WATERMARK
        return None if self.ledger.fits(price_bytes) else BlockedBy.BYTES


def _terms(knobs: Knobs) -> Terms:
    return Terms(
        high_ratio=knobs.number("watermark.high"),
        margin_bytes=knobs.whole("budget.margin_bytes"),
        max_bytes=knobs.whole("budget.max_bytes"),
        foreign_reserve_bytes=knobs.whole("budget.foreign_reserve_bytes"),
        enforced=knobs.word("budget.mode") == "on",
    )
