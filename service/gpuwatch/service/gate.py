"""The gate: ask the core without awaiting, then wait.

Rules: every method is called on the event loop's thread. A decision is taken in one synchronous call; what follows is
only waiting for it. A `Lease` ends exactly once, when the work has really ended, whoever has left in the meantime.
Times on this clock are monotonic seconds.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from gpuwatch.service.core.admission import Admission, Observed
from gpuwatch.service.core.decisions import Ask, Decision, Grant, Refuse, Wait
from gpuwatch.service.errors import refused
from gpuwatch.storage.knobs import Knobs
from gpuwatch.storage.records import Reading


class Lease:
    """A slot and a promise. `end` gives them back; calling it again changes nothing."""

    __slots__ = ("_gate", "ended", "grant", "lane")

    def __init__(self, gate: "Gate", lane: str, grant: Grant) -> None:
        self._gate = gate
        self.lane = lane
        self.grant = grant
        self.ended = False

    def end(self, *, ok: bool) -> None:
        """Give back what was held: the work has really ended."""
        if not self.ended:
            self.ended = True
            self._gate.settle(self.grant.ticket, ok=ok)

    def orphan(self) -> None:
        """Note that nobody waits for the work any more; it holds what it holds until it ends."""
        if not self.ended:
            self._gate.orphan(self.grant.ticket)


class Gate:
    """The async face of `Admission`. ``clock`` gives the seconds that the core's times are on."""

    def __init__(self, admission: Admission, clock: Callable[[], float]) -> None:
        self.admission = admission
        self._clock = clock
        self._waiters: dict[int, asyncio.Future[Grant | Refuse]] = {}

    async def enter(self, ask: Ask) -> Lease:
        """Wait for the grant. Raises `Refused`; a cancelled wait leaves nothing behind."""
        own, *others = self.admission.ask(self._clock(), ask)
        self._deliver(others)
        if isinstance(own, Wait):
            own = await self._wait(ask, own)
        if isinstance(own, Refuse):
            raise refused(own, ask.lane)
        return Lease(self, ask.lane, own)

    async def _wait(self, ask: Ask, wait: Wait) -> Grant | Refuse:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Grant | Refuse] = loop.create_future()
        self._waiters[ask.ticket] = answer
        timer = loop.call_later(wait.deadline_s - self._clock(), self._expire, ask.ticket)
        try:
            return await answer
        except asyncio.CancelledError:
            # The grant may have come in the same tick as the cancellation: then it goes back at once.
            if answer.done() and not answer.cancelled() and isinstance(answer.result(), Grant):
                self.settle(ask.ticket, ok=False)
            else:
                self._deliver(self.admission.leave(self._clock(), ask.ticket))
            raise
        finally:
            timer.cancel()
            self._waiters.pop(ask.ticket, None)

    def _expire(self, ticket: int) -> None:
        self._deliver(self.admission.expire(self._clock(), ticket))

    def _deliver(self, decisions: Iterable[Decision]) -> None:
        news = deque(decisions)
        while news:
            decision = news.popleft()
            answer = self._waiters.get(decision.ticket)
            if isinstance(decision, Wait):
                continue
            if answer is not None and not answer.done():
                answer.set_result(decision)
            elif isinstance(decision, Grant):
                # Cancelled, but its task has not run yet: it must not keep what it will never use. A list and no
                # recursion, since thousands may leave in one tick.
                news.extend(self.admission.settle(self._clock(), decision.ticket, ok=False))

    def settle(self, ticket: int, *, ok: bool) -> None:
        """Give back slot and promise and wake whoever fits now."""
        self._deliver(self.admission.settle(self._clock(), ticket, ok=ok))

    def orphan(self, ticket: int) -> None:
        """Note that the run's client is gone."""
        self.admission.orphan(self._clock(), ticket)

    def observe(self, reading: Reading) -> Observed:
        """Take in a reading and wake whoever fits now."""
        seen = self.admission.observe(self._clock(), reading)
        self._deliver(seen.decisions)
        return seen

    def lose(self, gpu: int) -> None:
        """Note that a card is gone."""
        self._deliver(self.admission.lose(self._clock(), gpu))

    def turn(self, knobs: Knobs) -> None:
        """Take new knobs and wake whoever fits now."""
        self._deliver(self.admission.turn(self._clock(), knobs))

    def drain(self) -> None:
        """Take no new requests."""
        self.admission.drain()

    def shut(self) -> None:
        """Refuse everyone who still waits."""
        self._deliver(self.admission.shut(self._clock()))
