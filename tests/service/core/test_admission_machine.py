"""Any order of asks, ends, readings and knob turns, held against a plain model after every step."""

from collections.abc import Mapping, Sequence
from itertools import count

import hypothesis.strategies as st
import pytest
from admission_model import SCAN, CardModel, Model, Waiting
from core_cases import TOTAL_BYTES, reading
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpuwatch.service.core.admission import Admission
from gpuwatch.service.core.decisions import Ask, Decision, Grant, Refuse
from gpuwatch.storage.knobs import GIB, MIB, Knobs
from gpuwatch.storage.records import BlockedBy, Outcome, Pressure

LANES = ("image", "text", "long", "default")
PRICES = st.sampled_from([None, 1, 64 * MIB, GIB, 2 * GIB, 3 * GIB, 4 * GIB, 5 * GIB, 100 * GIB])
FOREIGN = st.sampled_from([0.0, 0.0, 0.2, 0.5, 0.79, 0.82, 0.86, 0.96]).map(lambda share: int(share * TOTAL_BYTES))
GAPS = st.sampled_from([0.0, 0.1, 0.7, 1.5, 6.0])
PICKS = st.floats(0, 1, exclude_max=True)
GLOBAL_TURNS = st.sampled_from(
    [
        {"budget.mode": "on"},
        {"budget.mode": "off"},
        {"budget.action": "refuse"},
        {"budget.action": "queue"},
        {"budget.margin_bytes": 3 * GIB},
        {"budget.margin_bytes": 0},
        {"budget.max_bytes": 3 * GIB},
        {"budget.max_bytes": 0},
        {"budget.foreign_reserve_bytes": 2 * GIB},
        {"budget.foreign_reserve_bytes": 0},
        {"watermark.action": "refuse"},
        {"watermark.action": "queue"},
        {"watermark.on_stale": "open"},
        {"watermark.on_stale": "closed"},
        {"watermark.high": 0.5, "watermark.low": 0.4},
        {"watermark.high": 0.85, "watermark.low": 0.80},
        {"breaker.trip": 0.6},
        {"breaker.trip": 0.95},
        {"breaker.cooldown_s": 0.1},
        {"breaker.cooldown_s": 5.0},
        {"queue.ageing_s": 0.1},
        {"queue.ageing_s": 2.0},
        {"sampling.stale_after_s": 0.1, "sampling.interval_ms": 10},
        {"sampling.stale_after_s": 2.0},
    ]
)
LANE_TURNS = st.sampled_from(
    [("concurrency", n) for n in (0, 1, 2, 4, 1024)]
    + [("queue_limit", n) for n in (0, 1, 3, 64)]
    + [("priority", n) for n in (0, 5, 9)]
)

EASY: dict[str, object] = {"budget.max_bytes": 0, "budget.margin_bytes": 0, "budget.foreign_reserve_bytes": 0}
EASY |= {"budget.mode": "on", "budget.action": "queue", "watermark.action": "queue", "queue.ageing_s": 2.0}
EASY |= {"watermark.high": 0.85, "watermark.low": 0.80, "breaker.trip": 0.95, "breaker.cooldown_s": 0.1}
EASY |= {f"lanes.{lane}.{knob}": n for lane in LANES for knob, n in (("concurrency", 4), ("queue_limit", 100))}


def picked(tickets: Mapping[int, object], where: float) -> int:
    """Give the ticket at this share of the way."""
    return list(tickets)[int(where * len(tickets))]


class Machine(RuleBasedStateMachine):
    """The real admission and the model side by side."""

    @initialize(gpus=st.integers(1, 2), seen=st.booleans())
    def begin(self, gpus: int, seen: bool) -> None:  # noqa: FBT001 - hypothesis calls it by name
        knobs = Knobs.defaults(LANES)
        self.admission = Admission(knobs, range(gpus))
        self.model = Model(knobs, {index: CardModel(index) for index in range(gpus)})
        self.tickets = count(1)
        self.asked = 0
        self.final: dict[int, str] = {}
        for gpu in range(gpus if seen else 0):
            self.read(gpu, 0)

    # -- what may happen ---------------------------------------------------------------------------------------------

    @rule(gap_s=GAPS)
    def time_goes_by(self, gap_s: float) -> None:
        """Let time pass as it does: with readings that say what the last ones said."""
        self.model.now_s += gap_s
        for card in list(self.model.cards.values()):
            if card.reading is not None and not card.lost:
                self.read(card.index, card.reading.foreign_bytes, 0)

    @rule(gap_s=st.sampled_from([0.2, 3.0]))
    def nothing_is_read_for(self, gap_s: float) -> None:
        self.model.now_s += gap_s

    @rule()
    def all_is_well(self) -> None:
        """Turn back what keeps everybody out, or most of a long story happens before a shut door."""
        for card in self.model.cards:
            self.read(card, 0, 0)
        self.turn(EASY)

    @rule(lane=st.sampled_from(LANES), price=PRICES)
    def ask(self, lane: str, price: int | None) -> None:
        model = self.model
        ask = Ask(ticket=next(self.tickets), lane=lane, price_bytes=price)
        self.asked += 1
        unsettled = model.next_ticket() is not None
        refusal = model.refusal(ask)
        own, *others = self.admission.ask(model.now_s, ask)
        assert own.ticket == ask.ticket
        if refusal is not None:
            assert isinstance(own, Refuse)
            assert own.reason is refusal
            self.refuse(own)
            assert not others
            return
        cause = model.cause(ask)
        self.stand(ask)
        if isinstance(own, Grant):
            self.follow(self.in_order([own, *others]))
        else:
            # Time alone may have let somebody start (an elder's card went stale): a later call finds it.
            self.follow(others, settled=not unsettled)
            assert own.blocked_by is (cause or BlockedBy.BYTES)
            full = model.queued(lane) > model.knobs.whole(f"lanes.{lane}.queue_limit")
            no_room = own.blocked_by is BlockedBy.BYTES and model.knobs.word("budget.action") == "refuse"
            reason = Outcome.NO_ROOM if no_room else Outcome.QUEUE_FULL if full else None
            assert (own.reason if isinstance(own, Refuse) else None) is reason
            if isinstance(own, Refuse):
                del model.waiting[ask.ticket]
                self.refuse(own)

    @precondition(lambda self: self.asked < 100)
    @rule(lane=st.sampled_from(LANES), price=PRICES)
    def crowd(self, lane: str, price: int | None) -> None:
        """More than admission looks at: whoever stands behind them must still be found."""
        for _ in range(SCAN + 3):
            self.ask(lane, price)

    @precondition(lambda self: self.model.running)
    @rule(pick=PICKS, ok=st.booleans())
    def end(self, pick: float, ok: bool) -> None:  # noqa: FBT001 - hypothesis calls it by name
        self.settle(picked(self.model.running, pick), ok=ok)

    @precondition(lambda self: self.model.running)
    @rule(pick=PICKS)
    def orphan(self, pick: float) -> None:
        ticket = picked(self.model.running, pick)
        self.admission.orphan(self.model.now_s, ticket)
        self.model.running[ticket].orphan = True
        self.model.probe_ended(ticket, ok=False)

    @precondition(lambda self: self.model.waiting)
    @rule(pick=PICKS)
    def leave(self, pick: float) -> None:
        ticket = picked(self.model.waiting, pick)
        del self.model.waiting[ticket]
        self.finish(ticket, "left")
        self.follow(self.admission.leave(self.model.now_s, ticket))

    @precondition(lambda self: self.model.waiting)
    @rule(pick=PICKS)
    def expire(self, pick: float) -> None:
        ticket = picked(self.model.waiting, pick)
        waiting = self.model.waiting.pop(ticket)
        cause = self.model.cause(waiting.ask) or BlockedBy.BYTES
        own, *others = self.admission.expire(self.model.now_s, ticket)
        assert isinstance(own, Refuse)
        assert own.blocked_by is cause
        assert own.reason is (Outcome.GPU_STALE if cause is BlockedBy.STALE else Outcome.QUEUE_TIMEOUT)
        assert own.waited_s == self.model.now_s - waiting.arrived_s
        self.refuse(own)
        self.follow(others)

    @precondition(lambda self: self.final)
    @rule(pick=PICKS)
    def what_has_ended_cannot_end_again(self, pick: float) -> None:
        ticket, now_s = picked(self.final, pick), self.model.now_s
        assert self.admission.leave(now_s, ticket) == self.admission.expire(now_s, ticket) == ()
        with pytest.raises(KeyError):
            self.admission.settle(now_s, ticket, ok=True)
        with pytest.raises(KeyError):
            self.admission.orphan(now_s, ticket)

    @precondition(lambda self: self.model.running or self.model.waiting)
    @rule(pick=PICKS, lane=st.sampled_from(LANES))
    def a_ticket_in_use_cannot_ask(self, pick: float, lane: str) -> None:
        ticket = picked({**self.model.running, **self.model.waiting}, pick)
        with pytest.raises(ValueError, match="in use"):
            self.admission.ask(self.model.now_s, Ask(ticket=ticket, lane=lane, price_bytes=1))

    @rule(gpu=st.integers(0, 1), foreign=FOREIGN, ours=st.sampled_from([0, GIB]))
    def read(self, gpu: int, foreign: int, ours: int = 0) -> None:
        if gpu not in self.model.cards:
            return
        card = self.model.cards[gpu]
        # Allocated only while something runs: the idle baseline has its own tests and would blur this one's figures.
        busy = any(run.gpu == gpu for run in self.model.running.values())
        seen = reading(foreign, gpu=gpu, reserved_bytes=ours, allocated_bytes=ours if busy else None)
        card.reading, card.seen_s, card.lost = seen, self.model.now_s, False
        self.model.judge(card)
        self.follow(self.admission.observe(self.model.now_s, seen).decisions)

    @rule(gpu=st.integers(0, 1))
    def lose(self, gpu: int) -> None:
        if gpu not in self.model.cards:
            return
        self.model.cards[gpu].lost = True
        decisions = self.admission.lose(self.model.now_s, gpu)
        if all(card.lost for card in self.model.cards.values()):
            self.refuse_everyone(decisions, Outcome.GPU_LOST)
        else:
            self.follow(decisions)

    @rule(changes=GLOBAL_TURNS)
    def turn(self, changes: dict[str, object]) -> None:
        before = set(self.model.running), set(self.model.waiting)
        self.model.knobs = self.model.knobs.turned(changes)
        for card in self.model.cards.values():
            if not self.model.stale(card):
                self.model.judge(card)
        self.follow(self.admission.turn(self.model.now_s, self.model.knobs))
        assert before[0] <= set(self.model.running), "a turn cancels nothing"
        assert before[1] <= set(self.model.running) | set(self.model.waiting)

    @rule(lane=st.sampled_from(LANES), turn=LANE_TURNS)
    def turn_lane(self, lane: str, turn: tuple[str, int]) -> None:
        self.turn({f"lanes.{lane}.{turn[0]}": turn[1]})

    # -- following ---------------------------------------------------------------------------------------------------

    def stand(self, ask: Ask) -> None:
        self.model.waiting[ask.ticket] = Waiting(ask, self.model.now_s)

    def in_order(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Put a newcomer's own grant, which is told first, where the model expects it."""
        own, *others = decisions
        model_next = self.model.next_ticket()
        return [own, *others] if model_next == own.ticket else [*others, own]

    def follow(self, decisions: Sequence[Decision], *, settled: bool = True) -> None:
        """Hold each grant against the model's, and see that none is missing."""
        for decision in decisions:
            assert isinstance(decision, Grant)
            self.grant(decision)
        if settled:
            assert self.model.next_ticket() is None, "somebody who could start was left waiting"

    def grant(self, grant: Grant) -> None:
        model = self.model
        assert grant.ticket == model.next_ticket()
        waiting, card = model.waiting[grant.ticket], model.cards[grant.gpu]
        price, lane = waiting.ask.price_bytes, waiting.ask.lane
        assert model.count(lane) < model.knobs.whole(f"lanes.{lane}.concurrency")
        assert model.blocked(card, price) is None
        assert not card.lost
        assert not model.stale(card) or model.knobs.word("watermark.on_stale") == "open"
        assert grant.waited_s == model.now_s - waiting.arrived_s
        if price is not None:
            assert grant.promised_bytes == price
        model.start(grant.ticket, grant.gpu, grant.promised_bytes)
        if model.budget:
            assert model.promised(card) <= model.capacity(card)
            assert price is not None or grant.promised_bytes == model.capacity(card)

    def settle(self, ticket: int, *, ok: bool) -> None:
        del self.model.running[ticket]
        self.model.probe_ended(ticket, ok=ok)
        self.finish(ticket, "ended")
        self.follow(self.admission.settle(self.model.now_s, ticket, ok=ok))

    def refuse(self, refusal: Refuse) -> None:
        self.finish(refusal.ticket, refusal.reason)
        assert (refusal.retry_after_s is None) == (refusal.reason is Outcome.TOO_LARGE)
        assert refusal.retry_after_s is None or 0 <= refusal.retry_after_s <= 60
        assert refusal.available_bytes is None or refusal.available_bytes >= 0
        assert refusal.waited_s >= 0

    def refuse_everyone(self, decisions: Sequence[Decision], reason: Outcome) -> None:
        assert sorted(decision.ticket for decision in decisions) == sorted(self.model.waiting)
        self.model.waiting.clear()
        for decision in decisions:
            assert isinstance(decision, Refuse)
            assert decision.reason is reason
            self.refuse(decision)

    def finish(self, ticket: int, how: str) -> None:
        assert ticket not in self.final, f"{ticket} had its answer: {self.final[ticket]}, and now {how}"
        self.final[ticket] = how

    # -- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def slots_and_promises_are_conserved(self) -> None:
        model, admission = self.model, self.admission
        assert admission.in_flight == len(model.running)
        assert admission.waiting == len(model.waiting)
        for lane in LANES:
            real = admission.lanes[lane]
            assert real.running == model.count(lane)
            assert real.orphans == sum(run.orphan for run in model.running.values() if run.lane == lane)
        for index, card in model.cards.items():
            ledger = admission.cards[index].ledger
            assert ledger.promised_bytes == model.promised(card)
            assert ledger.capacity_bytes == model.capacity(card)
            assert admission.cards[index].runs == sum(run.gpu == index for run in model.running.values())

    @invariant()
    def cards_stand_as_they_should(self) -> None:
        for index, card in self.model.cards.items():
            real = self.admission.cards[index]
            assert (real.watermark.pressure is Pressure.HIGH) == card.high
            assert (real.breaker.state, real.breaker.probe) == (card.breaker, card.probe)

    @invariant()
    def every_ticket_stands_in_one_place(self) -> None:
        places = [*self.final, *self.model.running, *self.model.waiting]
        assert len(places) == len(set(places)) == self.asked

    @invariant()
    def lanes_are_described_as_they_are(self) -> None:
        for facts in self.admission.statistics(self.model.now_s):
            limit = self.model.knobs.whole(f"lanes.{facts.name}.concurrency")
            assert facts.waiting == self.model.queued(facts.name)
            assert facts.draining == (facts.running > limit)
            assert (facts.blocked_by is None) == (facts.waiting == 0)
            assert sum(facts.blocked_60s.values()) <= 60

    def teardown(self) -> None:
        if not hasattr(self, "admission"):
            return
        self.admission.drain()
        self.model.draining = True
        for lane in LANES:
            self.ask(lane, 1)
        for ticket in list(self.model.running):
            self.settle(ticket, ok=True)
        self.refuse_everyone(self.admission.shut(self.model.now_s), Outcome.SHUTDOWN)
        for ticket in list(self.model.running):
            self.settle(ticket, ok=True)
        self.slots_and_promises_are_conserved()
        assert self.admission.in_flight == self.admission.waiting == 0
        assert all(card.ledger.promised_bytes == 0 for card in self.admission.cards.values())
        assert len(self.final) == self.asked, "somebody never had an answer"


TestAdmission = Machine.TestCase
TestAdmission.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


@pytest.mark.soak
def test_no_longer_story_breaks_it_either() -> None:
    run_state_machine_as_test(Machine, settings=settings(max_examples=2000, stateful_step_count=80, deadline=None))
