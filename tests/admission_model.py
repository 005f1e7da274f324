"""Admission said anew, the slow and plain way, to hold the real one against.

One list of waiters, sorted whenever somebody looks; whoever starts next is found by walking it. Causes and capacities
are worked out from the readings each time. Nothing is shared with the core but its words.
"""

from dataclasses import dataclass, field
from math import floor

from gpuwatch.service.core.decisions import Ask
from gpuwatch.storage.knobs import MIB, Knobs
from gpuwatch.storage.records import BlockedBy, Breaker, Outcome, Reading

SCAN = 32


@dataclass
class CardModel:
    """One card as it was last seen, and what was promised on it."""

    index: int
    reading: Reading | None = None
    seen_s: float = 0.0
    lost: bool = False
    high: bool = False
    breaker: Breaker = Breaker.CLOSED
    since_s: float = 0.0
    probe: int | None = None


@dataclass
class Waiting:
    """A request that waits."""

    ask: Ask
    arrived_s: float


@dataclass
class Running:
    """A request that runs. ``price_bytes`` is what it asked for, ``promised_bytes`` what it got."""

    lane: str
    gpu: int
    price_bytes: int | None
    promised_bytes: int
    orphan: bool = False


@dataclass
class Model:
    """What admission should hold and do."""

    knobs: Knobs
    cards: dict[int, CardModel]
    now_s: float = 100.0
    draining: bool = False
    waiting: dict[int, Waiting] = field(default_factory=dict)
    running: dict[int, Running] = field(default_factory=dict)

    def count(self, lane: str) -> int:
        """Count a lane's runs."""
        return sum(run.lane == lane for run in self.running.values())

    def queued(self, lane: str) -> int:
        """Count a lane's waiters."""
        return sum(waiting.ask.lane == lane for waiting in self.waiting.values())

    def has_slot(self, lane: str) -> bool:
        return self.count(lane) < self.knobs.whole(f"lanes.{lane}.concurrency")

    @property
    def budget(self) -> bool:
        return self.knobs.word("budget.mode") == "on"

    # -- bytes -------------------------------------------------------------------------------------------------------

    def promised(self, card: CardModel) -> int:
        return sum(run.promised_bytes for run in self.running.values() if run.gpu == card.index)

    def capacity(self, card: CardModel, *, neighbours: bool = True) -> int:
        reading = card.reading
        if reading is None:
            return 0
        whole = self.knobs.whole
        margin = whole("budget.margin_bytes") or min(512 * MIB, reading.total_bytes // 20)
        most = min(reading.total_bytes - margin, floor(self.knobs.number("watermark.high") * reading.total_bytes) - 1)
        most -= max(reading.foreign_bytes if neighbours else 0, whole("budget.foreign_reserve_bytes"))
        most = min(most, whole("budget.max_bytes") or most)
        return max(0, int((most - reading.context_bytes) / 1.35))

    def room_for(self, card: CardModel, price_bytes: int | None) -> bool:
        here = [run for run in self.running.values() if run.gpu == card.index]
        if not self.budget:
            return True
        if any(run.price_bytes is None for run in here):
            return False
        if price_bytes is None:
            return not here and self.capacity(card) > 0
        return self.promised(card) + price_bytes <= self.capacity(card)

    # -- what keeps whom ---------------------------------------------------------------------------------------------

    def stale(self, card: CardModel) -> bool:
        most_s = max(self.knobs.number("sampling.stale_after_s"), 2 * self.knobs.number("sampling.interval_ms") / 1000)
        return card.reading is None or self.now_s - card.seen_s > most_s

    def blocked(self, card: CardModel, price_bytes: int | None) -> BlockedBy | None:
        if card.lost or (self.stale(card) and self.knobs.word("watermark.on_stale") == "closed"):
            return BlockedBy.STALE
        if card.breaker is not Breaker.CLOSED and (card.breaker is not Breaker.HALF_OPEN or card.probe is not None):
            return BlockedBy.BREAKER
        if card.high:
            return BlockedBy.WATERMARK
        return None if self.room_for(card, price_bytes) else BlockedBy.BYTES

    def cause(self, ask: Ask) -> BlockedBy | None:
        causes = [self.blocked(card, ask.price_bytes) for card in self.cards.values()]
        if None in causes:
            return None if self.has_slot(ask.lane) else BlockedBy.SLOTS
        ranked = [BlockedBy.BYTES, BlockedBy.WATERMARK, BlockedBy.BREAKER, BlockedBy.STALE]
        return min((cause for cause in causes if cause), key=ranked.index)

    def stops(self, waiting: Waiting) -> bool:
        """Whether nobody may overtake: old, and kept out by nothing but what is promised."""
        price_bytes = waiting.ask.price_bytes
        if waiting.arrived_s >= self.now_s - self.knobs.number("queue.ageing_s"):
            return False
        return any(
            self.blocked(card, price_bytes) is BlockedBy.BYTES and (price_bytes or 1) <= self.capacity(card)
            for card in self.cards.values()
        )

    def next_ticket(self) -> int | None:
        """Walk everyone in order and find who starts next."""
        step_s = self.knobs.number("queue.ageing_s")
        order = sorted(
            self.waiting.values(),
            key=lambda w: (w.arrived_s + self.knobs.whole(f"lanes.{w.ask.lane}.priority") * step_s, w.ask.ticket),
        )
        seen: dict[str, int] = {}
        for waiting in order:
            lane = waiting.ask.lane
            seen[lane] = seen.get(lane, 0) + 1
            if not self.has_slot(lane) or seen[lane] > SCAN:
                continue
            if any(self.blocked(card, waiting.ask.price_bytes) is None for card in self.cards.values()):
                return waiting.ask.ticket
            if self.stops(waiting):
                return None
        return None

    def refusal(self, ask: Ask) -> Outcome | None:
        """Tell what a newcomer is refused for before anybody looks for room."""
        present = [card for card in self.cards.values() if not card.lost]
        shut = [card.breaker is Breaker.OPEN or card.probe is not None for card in present]
        if self.draining:
            return Outcome.DRAINING
        if not present:
            return Outcome.GPU_LOST
        if self.budget and not any(
            card.reading is None or (ask.price_bytes or 0) <= self.capacity(card, neighbours=False)
            for card in self.cards.values()
        ):
            return Outcome.TOO_LARGE
        if all(shut):
            return Outcome.BREAKER_OPEN
        if self.knobs.word("watermark.action") == "refuse" and all(card.high for card in present):
            return Outcome.WATERMARK
        return None

    # -- what happens ------------------------------------------------------------------------------------------------

    def judge(self, card: CardModel) -> None:
        """Hold the card's last reading against the marks."""
        assert card.reading is not None
        ratio = card.reading.pressure_bytes / card.reading.total_bytes
        if ratio >= self.knobs.number("watermark.high"):
            card.high = True
        elif ratio < self.knobs.number("watermark.low"):
            card.high = False
        if ratio >= self.knobs.number("breaker.trip"):
            self.move(card, Breaker.OPEN)
        elif card.breaker is Breaker.OPEN and self.now_s - card.since_s >= self.knobs.number("breaker.cooldown_s"):
            self.move(card, Breaker.HALF_OPEN)

    def move(self, card: CardModel, state: Breaker) -> None:
        card.breaker, card.since_s, card.probe = state, self.now_s, None

    def start(self, ticket: int, gpu: int, promised_bytes: int) -> None:
        ask = self.waiting.pop(ticket).ask
        card = self.cards[gpu]
        self.running[ticket] = Running(ask.lane, gpu, ask.price_bytes, promised_bytes)
        if card.breaker is Breaker.HALF_OPEN:
            card.probe = ticket

    def probe_ended(self, ticket: int, *, ok: bool) -> None:
        for card in self.cards.values():
            if card.probe == ticket:
                self.move(card, Breaker.CLOSED if ok else Breaker.OPEN)
