"""The cards together, as a request sees them: any one of them may take it.

A lost card is lost until it is seen again: it takes nothing, and what it held says nothing about the others. Times are
seconds on admission's clock, sizes bytes.
"""

from collections.abc import Mapping
from typing import Final

from gpuwatch.service.core.card import Card
from gpuwatch.service.core.ledger import Ledger
from gpuwatch.storage.records import BlockedBy, Breaker, Pressure

_MOST_TELLING_FIRST: Final = (BlockedBy.BYTES, BlockedBy.WATERMARK, BlockedBy.BREAKER, BlockedBy.STALE)


class Fleet:
    """The cards by index."""

    __slots__ = ("cards",)

    def __init__(self, cards: Mapping[int, Card]) -> None:
        self.cards = cards

    def present(self) -> list[Card]:
        """List the cards that are not lost."""
        return [card for card in self.cards.values() if not card.lost]

    def open(self, now_s: float) -> list[Card]:
        """List the cards where something could start now, were it only small enough."""
        return [card for card in self.cards.values() if card.blocked_by(now_s, 0) is None]

    def blocked_by(self, now_s: float, price_bytes: int | None) -> BlockedBy | None:
        """Tell what keeps a request of this price from starting on any card; ``None`` where one would take it.

        Where the cards' causes differ, the one nearest to a start is named.
        """
        causes = {card.blocked_by(now_s, price_bytes) for card in self.cards.values()}
        if None in causes:
            return None
        return next((cause for cause in _MOST_TELLING_FIRST if cause in causes), BlockedBy.STALE)

    def waits_for_promises(self, now_s: float, price_bytes: int | None) -> bool:
        """Whether the price fits nowhere only because of what is promised, neighbours as they are."""
        return any(
            card.ledger.fits_without_promises(price_bytes) and card.blocked_by(now_s, price_bytes) is BlockedBy.BYTES
            for card in self.cards.values()
        )

    def could_ever_take(self, price_bytes: int | None) -> bool:
        """Whether the price fits a card of this service, lost ones included, when it is empty."""
        return any(card.ledger.fits_empty_card(price_bytes) for card in self.cards.values())

    def most_ever_bytes(self) -> int:
        """Give the highest price that could ever be promised."""
        return max((card.ledger.empty_capacity_bytes for card in self.cards.values()), default=0)

    def shut(self) -> bool:
        """Whether no present card's breaker lets a request through that comes now."""
        return all(c.breaker.state is Breaker.OPEN or c.breaker.probe is not None for c in self.present())

    def too_full(self) -> bool:
        """Whether pressure is high on every present card."""
        return all(card.watermark.pressure is Pressure.HIGH for card in self.present())

    def roomiest(self) -> Ledger | None:
        """Give the ledger with the most room among the present cards'."""
        return max((c.ledger for c in self.present()), key=lambda ledger: ledger.available_bytes, default=None)

    def count_fitting(self, price_bytes: int) -> int:
        """Count how many of this price would fit in bytes now."""
        return sum(max(0, card.ledger.available_bytes) // price_bytes for card in self.present())
