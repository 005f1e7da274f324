"""Two marks with hysteresis: pressure turns high at the upper mark and normal again only below the lower one."""

from gpuwatch.storage.records import Pressure


class Watermark:
    """Pressure of one card. Marks are shares of the card's total bytes, ``low_ratio < high_ratio``."""

    __slots__ = ("high_ratio", "low_ratio", "pressure", "since_s")

    def __init__(self, *, high_ratio: float, low_ratio: float) -> None:
        self.pressure = Pressure.NORMAL
        self.since_s: float | None = None
        self.turn(high_ratio=high_ratio, low_ratio=low_ratio)

    def turn(self, *, high_ratio: float, low_ratio: float) -> None:
        """Move the marks. Raises `ValueError` unless low is below high."""
        if not low_ratio < high_ratio:
            raise ValueError(f"low mark {low_ratio} is not below high mark {high_ratio}")
        self.high_ratio = high_ratio
        self.low_ratio = low_ratio

    def observe(self, now_s: float, pressure_ratio: float) -> None:
        """Take in pressure_bytes / total_bytes."""
        before = self.pressure
        if pressure_ratio >= self.high_ratio:
            self.pressure = Pressure.HIGH
        elif pressure_ratio < self.low_ratio:
            self.pressure = Pressure.NORMAL
        if self.pressure is not before:
            self.since_s = now_s
