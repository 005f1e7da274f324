"""Bytes promised on one GPU, never past its capacity.

capacity = (min(min(total - margin, high * total - 1) - max(foreign, foreign_reserve), max) - context - idle_baseline)
           / fragmentation_factor

``idle_baseline`` is what stays allocated when nothing of ours runs (weights, workspaces, leaks), followed slowly.
The factor turns live bytes into what the card must hold for them: 60 mixed shapes through torch's allocator rules
needed 1.18 to 1.34 times their live peak. A card filled with honest promises stays below its own high mark: that mark
itself is high already, hence the one byte.

A price that is unknown is promised all there is and fits only where nothing else is promised; while it is, nothing
else fits, whatever was turned in between.
"""

from dataclasses import dataclass
from typing import Final

from gpuwatch.storage.records import Reading

FRAGMENTATION_PRIOR: Final = 1.35
_AUTO_MARGIN_BYTES: Final = 512 << 20
_AUTO_MARGIN_RATIO: Final = 0.05
_BASELINE_FOLLOW_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The knobs that capacity depends on. 0 means automatic for the margin and no bound for ``max_bytes``."""

    high_ratio: float
    margin_bytes: int = 0
    max_bytes: int = 0
    foreign_reserve_bytes: int = 0
    enforced: bool = True


class Ledger:
    """The promises on one card. Without a reading the capacity is 0: nothing is promised blindly."""

    __slots__ = ("_observed_s", "_promises", "_unknown", "capacity_bytes", "empty_capacity_bytes", "factor",
                 "idle_baseline_bytes", "promised_bytes", "reading", "terms")  # fmt: skip

    def __init__(self, terms: Terms, *, factor: float = FRAGMENTATION_PRIOR) -> None:
        self.terms = terms
        self.factor = factor
        self.reading: Reading | None = None
        self.idle_baseline_bytes: float = 0.0
        self.promised_bytes = 0
        self.capacity_bytes = 0
        self.empty_capacity_bytes = 0
        self._promises = 0
        self._unknown = 0
        self._observed_s: float | None = None

    @property
    def available_bytes(self) -> int:
        """What can still be promised: capacity - promised; below 0 where a neighbour took promised room."""
        return self.capacity_bytes - self.promised_bytes

    def turn(self, terms: Terms) -> None:
        """Take new terms."""
        self.terms = terms
        self._compute()

    def weigh(self, weights_bytes: int) -> None:
        """Note the weights that loading left on the card: the baseline before anything was measured idle."""
        self.idle_baseline_bytes = max(self.idle_baseline_bytes, weights_bytes)
        self._compute()

    def observe(self, now_s: float, reading: Reading, *, idle: bool) -> None:
        """Take in a reading; ``idle`` says that nothing of ours ran when it was made."""
        if idle and reading.allocated_bytes is not None and self._observed_s is not None:
            share = min(1.0, max(0.0, now_s - self._observed_s) / _BASELINE_FOLLOW_S)
            self.idle_baseline_bytes += (reading.allocated_bytes - self.idle_baseline_bytes) * share
        self._observed_s = now_s
        self.reading = reading
        self._compute()

    def _compute(self) -> None:
        if self.reading is None:
            return
        self.capacity_bytes = self._capacity(self.reading.foreign_bytes)
        self.empty_capacity_bytes = self._capacity(0)

    def _capacity(self, foreign_bytes: int) -> int:
        assert self.reading is not None  # noqa: S101 - callers look first
        total = self.reading.total_bytes
        margin = self.terms.margin_bytes or min(_AUTO_MARGIN_BYTES, int(total * _AUTO_MARGIN_RATIO))
        ours = min(total - margin, int(self.terms.high_ratio * total) - 1)
        ours -= max(foreign_bytes, self.terms.foreign_reserve_bytes)
        if self.terms.max_bytes:
            ours = min(ours, self.terms.max_bytes)
        return max(0, int((ours - self.reading.context_bytes - self.idle_baseline_bytes) / self.factor))

    def fits(self, price_bytes: int | None) -> bool:
        """Whether the price can be promised now; ``None`` (unknown) fits only a card without promises."""
        if not self.terms.enforced:
            return True
        if self._unknown:
            return False
        if price_bytes is None:
            return self._promises == 0 and self.capacity_bytes > 0
        return price_bytes <= self.available_bytes

    def fits_without_promises(self, price_bytes: int | None) -> bool:
        """Whether the price would fit if nothing of ours were promised, neighbours as they are."""
        return not self.terms.enforced or (price_bytes or 1) <= self.capacity_bytes

    def fits_empty_card(self, price_bytes: int | None) -> bool:
        """Whether the price could ever fit: no promise of ours and no neighbour. True before the first reading."""
        return not self.terms.enforced or self.reading is None or (price_bytes or 0) <= self.empty_capacity_bytes

    def promise(self, price_bytes: int | None) -> int:
        """Promise the bytes and tell how many (all of them for an unknown price). Raises `ValueError` if not fit."""
        if not self.fits(price_bytes):
            raise ValueError(f"{price_bytes} B do not fit: {self.available_bytes} B of {self.capacity_bytes} B left")
        self._promises += 1
        if price_bytes is None:
            self._unknown += 1
            price_bytes = self.capacity_bytes if self.terms.enforced else 0
        self.promised_bytes += price_bytes
        return price_bytes

    def release(self, promised_bytes: int, *, alone: bool) -> None:
        """Take a promise back; ``alone``: its price was unknown. Raises `ValueError` where no such one was made."""
        if promised_bytes > self.promised_bytes or self._promises == 0 or (alone and self._unknown == 0):
            raise ValueError(f"{promised_bytes} B come back but only {self.promised_bytes} B were promised")
        self._promises -= 1
        self._unknown -= alone
        self.promised_bytes -= promised_bytes
