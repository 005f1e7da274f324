"""A measured price table: bytes at any size, as an upper bound of what was measured.

Rules: pure, whole numbers only. Between two points the price lies on the chord, which bounds any function that bends
upwards (a sum or a maximum of linear terms does); a ``margin_pct`` covers what does not. Below the first point the
price is the first point's. Beyond the last it rises by the steeper of the last chord and the line from the origin: for
a peak of the form fixed + linear both are at or above the truth.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Points of (units, bytes), units rising. Raises `ValueError` for a table that is none.

    A point below an earlier one is lifted to it: a larger request is never cheaper.
    """

    points: tuple[tuple[int, int], ...]
    margin_pct: int = 0

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a price table needs at least one point")
        if self.margin_pct < 0:
            raise ValueError(f"a margin of {self.margin_pct} % would price below what was measured")
        if any(units < 1 or price_bytes < 1 for units, price_bytes in self.points):
            raise ValueError("a price table's units and bytes are at least 1")
        if any(left >= right for (left, _), (right, _) in pairwise(self.points)):
            raise ValueError("a price table's units rise from point to point")
        highest = accumulate((price_bytes for _, price_bytes in self.points), max)
        lifted = tuple((units, top) for (units, _), top in zip(self.points, highest, strict=True))
        object.__setattr__(self, "points", lifted)

    def price_bytes(self, units: int) -> int:
        """Give the bytes at ``units``, margin in, rounded up. Raises `ValueError` for units below 0."""
        if units < 0:
            raise ValueError(f"{units} units have no price")
        return _ceil_div(self._bound_bytes(units) * (100 + self.margin_pct), 100)

    def _bound_bytes(self, units: int) -> int:
        at = bisect_left(self.points, (units, 0))
        if at == 0:
            return self.points[0][1]
        left_units, left_bytes = self.points[at - 1]
        if at == len(self.points):
            return self._beyond(units - left_units)
        right_units, right_bytes = self.points[at]
        return left_bytes + _ceil_div((right_bytes - left_bytes) * (units - left_units), right_units - left_units)

    def _beyond(self, extra_units: int) -> int:
        last_units, last_bytes = self.points[-1]
        from_origin = _ceil_div(last_bytes * extra_units, last_units)
        if len(self.points) == 1:
            return last_bytes + from_origin
        before_units, before_bytes = self.points[-2]
        chord = _ceil_div((last_bytes - before_bytes) * extra_units, last_units - before_units)
        return last_bytes + max(from_origin, chord)


def _ceil_div(amount: int, by: int) -> int:
    return -(-amount // by)
