"""Admission: one synchronous answer to each ask, and the grants that every other change brings.

Rules. A grant needs, at one moment: a free slot in the lane, room in a card's ledger, normal pressure, a breaker that
lets it through, and a reading young enough to be believed; slot and promise are taken in the same call. Waiters are
looked at in the order of the waitlist, the first `SCAN` of each lane that has a slot, skipping what does not fit; one
that has waited past ``queue.ageing_s`` and would fit were nothing promised stops the overtaking. That bound is a lane's
own, so a lane full of what waits for a neighbour's memory hides nobody else. Every method that can free something
answers with all decisions that follow. Times are seconds on one monotonic clock; sizes are bytes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Final

from gpuwatch.service.core.blocked import BlockedTime
from gpuwatch.service.core.card import Card
from gpuwatch.service.core.decisions import Ask, Decision, Grant, LaneFacts, Refuse, RunFacts, Wait
from gpuwatch.service.core.fleet import Fleet
from gpuwatch.service.core.lane import Lane
from gpuwatch.service.core.waitlist import Waiter, Waitlist
from gpuwatch.storage.knobs import Knobs
from gpuwatch.storage.records import BlockedBy, Outcome, Reading

SCAN: Final = 32


@dataclass(slots=True)
class _Run:
    lane: str
    gpu: int
    promised_bytes: int
    alone: bool
    started_s: float
    orphan: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """What a reading brought: decisions, and whether pressure and breaker are others than at the reading before."""

    decisions: tuple[Decision, ...]
    pressure_changed: bool
    breaker_changed: bool


class Admission:
    """The whole of it, for the lanes of ``knobs`` and the cards given by index. Touched by one thread only."""

    def __init__(self, knobs: Knobs, gpus: Iterable[int]) -> None:
        self.knobs = knobs
        self.lanes = {name: Lane(name, knobs.by_lane[name]) for name in knobs.lanes}
        self.cards = {index: Card(index, knobs) for index in gpus}
        self.draining = False
        self._fleet = Fleet(self.cards)
        self._waitlist = Waitlist(knobs.lanes)
        self._runs: dict[int, _Run] = {}
        self._first_block: dict[int, BlockedBy] = {}
        self._blocked = {name: BlockedTime() for name in knobs.lanes}

    # -- requests ----------------------------------------------------------------------------------------------------

    def ask(self, now_s: float, ask: Ask) -> tuple[Decision, ...]:
        """Decide for one request: its own decision first.

        Raises `KeyError` for a lane that does not exist, `ValueError` for a ticket that waits or runs already.
        """
        lane = self.lanes[ask.lane]
        if ask.ticket in self._runs or ask.ticket in self._waitlist:
            raise ValueError(f"ticket {ask.ticket} is in use")
        refusal = self._refused_at_once(now_s, ask)
        if refusal is not None:
            return (refusal,)
        deadline_s = now_s + lane.knobs.queue_timeout_s
        self._waitlist.add(Waiter(ask.ticket, ask.lane, ask.price_bytes, now_s, deadline_s))
        cause = self._cause(now_s, lane, ask.price_bytes)
        others = self._pump(now_s) if cause is None else ()  # its coming lets nobody start but itself
        mine = next((d for d in others if d.ticket == ask.ticket), None)
        if mine is not None:
            return (mine, *(d for d in others if d is not mine))
        cause = cause or BlockedBy.BYTES  # it stands behind one that waits for bytes and stopped the overtaking
        reason = self._may_not_wait(lane, cause)
        if reason is not None:
            self._waitlist.remove(ask.ticket)
            return (self._refuse(now_s, ask, reason, cause), *others)
        self._first_block[ask.ticket] = cause
        self._note_blocked(now_s, ask.lane)
        return (Wait(ticket=ask.ticket, deadline_s=deadline_s, blocked_by=cause), *others)

    def leave(self, now_s: float, ticket: int) -> tuple[Decision, ...]:
        """Take a waiter out whose client has left. Nothing happens for one that waits no more."""
        if ticket not in self._waitlist:
            return ()
        self._drop_waiter(ticket)
        return self._pump(now_s)

    def expire(self, now_s: float, ticket: int) -> tuple[Decision, ...]:
        """Refuse a waiter whose deadline has passed, saying what it waited for."""
        if ticket not in self._waitlist:
            return ()
        waiter = self._drop_waiter(ticket)
        cause = self._cause(now_s, self.lanes[waiter.lane], waiter.price_bytes) or BlockedBy.BYTES
        reason = Outcome.GPU_STALE if cause is BlockedBy.STALE else Outcome.QUEUE_TIMEOUT
        return (self._refuse(now_s, waiter, reason, cause), *self._pump(now_s))

    def settle(self, now_s: float, ticket: int, *, ok: bool) -> tuple[Decision, ...]:
        """Give back slot and promise: the work has really ended. Raises `KeyError` for what does not run."""
        run = self._runs.pop(ticket)
        card = self.cards[run.gpu]
        card.runs -= 1
        card.ledger.release(run.promised_bytes, alone=run.alone)
        card.breaker.ended(now_s, ticket, ok=ok)
        self.lanes[run.lane].give(orphan=run.orphan, run_s=now_s - run.started_s)
        return self._pump(now_s)

    def orphan(self, now_s: float, ticket: int) -> None:
        """Note that the client is answered or gone while the work still runs; it holds what it holds."""
        run = self._runs[ticket]
        if not run.orphan:
            run.orphan = True
            self.lanes[run.lane].orphans += 1
            self.cards[run.gpu].breaker.ended(now_s, ticket, ok=False)

    # -- the world ---------------------------------------------------------------------------------------------------

    def observe(self, now_s: float, reading: Reading) -> Observed:
        """Take in a reading of a card."""
        pressure_changed, breaker_changed = self.cards[reading.gpu].observe(now_s, reading)
        decisions = self._pump(now_s)
        for name in self.lanes:
            self._note_blocked(now_s, name)
        return Observed(decisions, pressure_changed, breaker_changed)

    def lose(self, now_s: float, gpu: int) -> tuple[Decision, ...]:
        """Note that a card is gone; when it was the last, nobody can be helped any more."""
        self.cards[gpu].lost = True
        return self._pump(now_s) if self._fleet.present() else self._refuse_everyone(now_s, Outcome.GPU_LOST)

    def turn(self, now_s: float, knobs: Knobs) -> tuple[Decision, ...]:
        """Take new knobs: running work goes on, waiters are looked at again."""
        self.knobs = knobs
        for name, lane in self.lanes.items():
            lane.knobs = knobs.by_lane[name]
        for card in self.cards.values():
            card.turn(now_s, knobs)
        return self._pump(now_s)

    def drain(self) -> None:
        """Refuse new requests from now on; those waiting are still served."""
        self.draining = True

    def shut(self, now_s: float) -> tuple[Decision, ...]:
        """Refuse everyone who still waits: the grace time has ended."""
        self.draining = True
        return self._refuse_everyone(now_s, Outcome.SHUTDOWN)

    # -- what is -----------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Count the runs of all lanes."""
        return len(self._runs)

    @property
    def waiting(self) -> int:
        """Count the waiters of all lanes."""
        return len(self._waitlist)

    @property
    def goes_on(self) -> bool:
        """Whether anything is still to come: a run that will end, or a waiter whose lane is not paused."""
        return bool(self._runs) or any(
            lane.knobs.concurrency and self._waitlist.waiting(name) for name, lane in self.lanes.items()
        )

    def runs(self) -> tuple[RunFacts, ...]:
        """List what holds a slot now."""
        return tuple(
            RunFacts(
                ticket=ticket,
                lane=run.lane,
                gpu=run.gpu,
                promised_bytes=run.promised_bytes,
                started_s=run.started_s,
                orphan=run.orphan,
            )
            for ticket, run in self._runs.items()
        )

    def statistics(self, now_s: float) -> tuple[LaneFacts, ...]:
        """Describe every lane now."""
        return tuple(self._facts(now_s, lane) for lane in self.lanes.values())

    def _facts(self, now_s: float, lane: Lane) -> LaneFacts:
        self._note_blocked(now_s, lane.name)
        head = self._waitlist.head(lane.name)
        return LaneFacts(
            name=lane.name,
            limit=lane.knobs.concurrency,
            in_flight=lane.running,
            running=lane.running,
            orphans=lane.orphans,
            draining=lane.draining,
            waiting=self._waitlist.waiting(lane.name),
            queue_limit=lane.knobs.queue_limit,
            queue_timeout_s=lane.knobs.queue_timeout_s,
            oldest_wait_s=None if head is None else now_s - head.arrived_s,
            head_price_bytes=None if head is None else head.price_bytes,
            blocked_by=self._head_cause(now_s, lane.name),
            blocked_60s=self._blocked[lane.name].seconds(),
            fits_now=self._fleet.count_fitting(head.price_bytes) if head is not None and head.price_bytes else None,
        )

    # -- deciding ----------------------------------------------------------------------------------------------------

    def _refused_at_once(self, now_s: float, ask: Ask) -> Refuse | None:
        if self.draining:
            return self._refuse(now_s, ask, Outcome.DRAINING)
        if not self._fleet.present():
            return self._refuse(now_s, ask, Outcome.GPU_LOST)
        if not self._fleet.could_ever_take(ask.price_bytes):
            return self._refuse(now_s, ask, Outcome.TOO_LARGE)
        if self._fleet.shut():
            return self._refuse(now_s, ask, Outcome.BREAKER_OPEN, BlockedBy.BREAKER)
        if self.knobs.word("watermark.action") == "refuse" and self._fleet.too_full():
            return self._refuse(now_s, ask, Outcome.WATERMARK, BlockedBy.WATERMARK)
        return None

    def _may_not_wait(self, lane: Lane, cause: BlockedBy) -> Outcome | None:
        if cause is BlockedBy.BYTES and self.knobs.word("budget.action") == "refuse":
            return Outcome.NO_ROOM
        return Outcome.QUEUE_FULL if self._waitlist.waiting(lane.name) > lane.knobs.queue_limit else None

    def _pump(self, now_s: float) -> tuple[Decision, ...]:
        """Grant all that can be granted, one after the other, so that each sees what is left."""
        grants: list[Decision] = []
        while self._waitlist and (found := self._next(now_s)):
            grants.append(self._grant(now_s, *found))
        return tuple(grants)

    def _next(self, now_s: float) -> tuple[Waiter, Card] | None:
        """Find who starts next and where: the first in order of what the lanes offer, unless that one only stops."""
        cards = self._fleet.open(now_s)
        if not cards:
            return None
        ageing_s = self.knobs.number("queue.ageing_s")
        offers = [
            (offer[0].arrived_s + lane.knobs.priority * ageing_s, offer[0].ticket, offer)
            for lane in self.lanes.values()
            if lane.has_slot and (offer := self._offer(now_s, lane.name, cards, now_s - ageing_s))
        ]
        _, _, (waiter, card) = min(offers, default=(0, 0, (None, None)))
        return None if waiter is None or card is None else (waiter, card)

    def _offer(self, now_s: float, lane: str, cards: list[Card], aged_s: float) -> tuple[Waiter, Card | None] | None:
        """Find the lane's first waiter that could start on one of ``cards``, or that stops those behind it."""
        unfit_bytes: float = inf  # what has no room leaves none for more: most waiters cost one comparison
        for waiter in self._waitlist.first(lane, SCAN):
            price_bytes = waiter.price_bytes
            if price_bytes is None or price_bytes < unfit_bytes:
                fitting = [card for card in cards if card.ledger.fits(price_bytes)]
                if fitting:
                    return waiter, max(fitting, key=lambda card: card.ledger.available_bytes)
                unfit_bytes = unfit_bytes if price_bytes is None else price_bytes
            if waiter.arrived_s < aged_s and self._fleet.waits_for_promises(now_s, price_bytes):
                return waiter, None
        return None

    def _grant(self, now_s: float, waiter: Waiter, card: Card) -> Grant:
        self._waitlist.remove(waiter.ticket)
        self.lanes[waiter.lane].take()
        promised_bytes = card.ledger.promise(waiter.price_bytes)
        card.runs += 1
        card.breaker.start(waiter.ticket)
        alone = waiter.price_bytes is None
        self._runs[waiter.ticket] = _Run(waiter.lane, card.index, promised_bytes, alone=alone, started_s=now_s)
        return Grant(
            ticket=waiter.ticket,
            gpu=card.index,
            promised_bytes=promised_bytes,
            waited_s=now_s - waiter.arrived_s,
            blocked_by=self._first_block.pop(waiter.ticket, None),
        )

    def _cause(self, now_s: float, lane: Lane, price_bytes: int | None) -> BlockedBy | None:
        """Tell what keeps a request from starting. Slots last: where bytes are short, a higher limit will not help."""
        cause = self._fleet.blocked_by(now_s, price_bytes)
        return BlockedBy.SLOTS if cause is None and not lane.has_slot else cause

    def _head_cause(self, now_s: float, lane: str) -> BlockedBy | None:
        head = self._waitlist.head(lane)
        if head is None:
            return None
        # A head that could start but does not stands behind one that stopped the overtaking: it waits for bytes too.
        return self._cause(now_s, self.lanes[lane], head.price_bytes) or BlockedBy.BYTES

    def _note_blocked(self, now_s: float, lane: str) -> None:
        self._blocked[lane].note(now_s, self._head_cause(now_s, lane))

    def _drop_waiter(self, ticket: int) -> Waiter:
        self._first_block.pop(ticket, None)
        return self._waitlist.remove(ticket)

    def _refuse_everyone(self, now_s: float, reason: Outcome) -> tuple[Decision, ...]:
        waiters = self._waitlist.everyone()
        for waiter in waiters:
            self._drop_waiter(waiter.ticket)
        return tuple(self._refuse(now_s, waiter, reason) for waiter in waiters)

    def _refuse(self, now_s: float, who: Ask | Waiter, reason: Outcome, blocked_by: BlockedBy | None = None) -> Refuse:
        lane = self.lanes[who.lane]
        waiting = self._waitlist.waiting(who.lane)
        roomiest = self._fleet.roomiest()
        permanent = reason is Outcome.TOO_LARGE
        capacity = None if roomiest is None else roomiest.capacity_bytes
        return Refuse(
            ticket=who.ticket,
            reason=reason,
            retry_after_s=None if permanent else lane.retry_after_s(waiting),
            blocked_by=blocked_by,
            price_bytes=who.price_bytes,
            available_bytes=None if roomiest is None else max(0, roomiest.available_bytes),
            capacity_bytes=self._fleet.most_ever_bytes() if permanent else capacity,
            waiting=waiting,
            waited_s=now_s - who.arrived_s if isinstance(who, Waiter) else 0.0,
        )
