"""Readings and admissions to test the core with: a small card, a small context, plain figures."""

from collections.abc import Iterable, Mapping
from itertools import count

from gpuwatch.service.core.admission import Admission
from gpuwatch.service.core.decisions import Ask, Decision, Grant, Refuse, Wait
from gpuwatch.storage.knobs import GIB, MIB, Knobs
from gpuwatch.storage.records import Reading, Source

TOTAL_BYTES = 8 * GIB
CONTEXT_BYTES = 256 * MIB


def reading(
    foreign_bytes: int = 0,
    *,
    gpu: int = 0,
    total_bytes: int = TOTAL_BYTES,
    reserved_bytes: int | None = None,
    allocated_bytes: int | None = None,
    context_bytes: int = CONTEXT_BYTES,
) -> Reading:
    """Look at a card where neighbours hold ``foreign_bytes``."""
    return Reading(
        at=0.0,
        gpu=gpu,
        source=Source.SIM,
        total_bytes=total_bytes,
        used_bytes=foreign_bytes + context_bytes + (reserved_bytes or 0),
        reserved_bytes=reserved_bytes,
        allocated_bytes=allocated_bytes,
        context_bytes=context_bytes,
    )


class Desk:
    """An admission with its own clock and tickets, for tests that tell a story. Starts with a reading of each card."""

    def __init__(
        self,
        changes: Mapping[str, object] | None = None,
        *,
        lanes: Iterable[str] = ("a", "b"),
        gpus: int = 1,
        read: bool = True,
    ) -> None:
        self.now_s = 100.0
        self.knobs = Knobs.defaults(lanes).turned(changes or {})
        self.admission = Admission(self.knobs, range(gpus))
        self._tickets = count(1)
        if read:
            for gpu in range(gpus):
                self.admission.observe(self.now_s, reading(gpu=gpu))

    def ask(self, price_bytes: int | None = MIB, lane: str = "a") -> Decision:
        """Ask with a fresh ticket; nobody else may be answered by it."""
        own, *others = self.admission.ask(
            self.now_s, Ask(ticket=next(self._tickets), lane=lane, price_bytes=price_bytes)
        )
        assert not others
        return own

    def granted(self, price_bytes: int | None = MIB, lane: str = "a") -> int:
        """Ask, and give the ticket of what must be granted at once."""
        own = self.ask(price_bytes, lane)
        assert isinstance(own, Grant), own
        return own.ticket

    def waits(self, price_bytes: int | None = MIB, lane: str = "a") -> int:
        """Ask, and give the ticket of what must wait."""
        own = self.ask(price_bytes, lane)
        assert isinstance(own, Wait), own
        return own.ticket

    def refused(self, price_bytes: int | None = MIB, lane: str = "a") -> Refuse:
        """Ask, and give the refusal that must come."""
        own = self.ask(price_bytes, lane)
        assert isinstance(own, Refuse), own
        return own

    def settle(self, ticket: int, *, ok: bool = True) -> list[int]:
        """End a run; give the tickets that start then."""
        return tickets(self.admission.settle(self.now_s, ticket, ok=ok))

    def observe(self, foreign_bytes: int = 0, *, gpu: int = 0) -> list[int]:
        """Look at a card; give the tickets that start then."""
        return tickets(self.admission.observe(self.now_s, reading(foreign_bytes, gpu=gpu)).decisions)

    def turn(self, changes: Mapping[str, object]) -> list[int]:
        """Turn knobs; give the tickets that start then."""
        self.knobs = self.knobs.turned(changes)
        return tickets(self.admission.turn(self.now_s, self.knobs))

    @property
    def capacity_bytes(self) -> int:
        """What the first card can promise."""
        return self.admission.cards[0].ledger.capacity_bytes


def tickets(decisions: Iterable[Decision]) -> list[int]:
    """Give the tickets of decisions that must all be grants, in order."""
    grants = [decision for decision in decisions if isinstance(decision, Grant)]
    assert len(grants) == len(list(decisions))
    return [grant.ticket for grant in grants]
