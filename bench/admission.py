"""What admission costs on the event loop with 10,000 waiters: microseconds a call, the best of several rounds.

Two situations: every slot taken; and slots free but bytes short, where waiters are looked at that cannot start.
Run it as ``python bench/admission.py``.
"""

import gc
from collections import deque
from collections.abc import Callable
from itertools import count
from time import perf_counter

from gpuwatch.service.core.admission import Admission
from gpuwatch.service.core.decisions import Ask, Grant, Wait
from gpuwatch.storage.knobs import GIB, MIB, Knobs
from gpuwatch.storage.records import Reading, Source

WAITERS = 10_000
CALLS = 2_000
ROUNDS = 7
LANES = ("image", "text", "long")
NOW_S = 1.0  # below queue.ageing_s for all that follows: nobody stops the overtaking, so the walk is the longest


def _admission(
    changes: dict[str, int], price_bytes: int, *, waiters: int = WAITERS
) -> tuple[Admission, deque[int], "count[int]"]:
    """Fill the lanes and the waitlist; give the tickets that run and where the next tickets start."""
    knobs = Knobs.defaults(LANES).turned({f"lanes.{lane}.queue_limit": 100_000 for lane in LANES} | changes)
    admission = Admission(knobs, [0])
    reading = Reading(at=0.0, gpu=0, source=Source.SIM, total_bytes=80 * GIB, used_bytes=GIB, context_bytes=GIB)
    admission.observe(0.0, reading)
    tickets = count()
    running: deque[int] = deque()
    while admission.waiting < waiters:
        ticket = next(tickets)
        own, *_ = admission.ask(0.0, Ask(ticket=ticket, lane=LANES[ticket % len(LANES)], price_bytes=price_bytes))
        if isinstance(own, Grant):
            running.append(ticket)
    return admission, running, tickets


def _best_us(call: Callable[[], None]) -> float:
    """Time ``CALLS`` calls at a time; the best round is the one the other processes disturbed least."""
    best_s = float("inf")
    gc.disable()
    for _ in range(ROUNDS):
        start_s = perf_counter()
        for _ in range(CALLS):
            call()
        best_s = min(best_s, perf_counter() - start_s)
    gc.enable()
    return best_s / CALLS * 1e6


def _ask_and_leave(changes: dict[str, int], price_bytes: int) -> float:
    admission, _, tickets = _admission(changes, price_bytes)

    def call() -> None:
        ticket = next(tickets)
        own, *others = admission.ask(NOW_S, Ask(ticket=ticket, lane="image", price_bytes=price_bytes))
        assert isinstance(own, Wait)
        assert not others
        assert not admission.leave(NOW_S, ticket)

    return _best_us(call)


def _settle_and_grant(changes: dict[str, int], price_bytes: int) -> float:
    """Each call ends one run, which starts the next waiter."""
    admission, running, _ = _admission(changes, price_bytes, waiters=WAITERS + ROUNDS * CALLS)

    def call() -> None:
        (grant,) = admission.settle(NOW_S, running.popleft(), ok=True)
        assert isinstance(grant, Grant)
        running.append(grant.ticket)

    return _best_us(call)


if __name__ == "__main__":
    many = {f"lanes.{lane}.concurrency": 1024 for lane in LANES}
    print(f"{WAITERS} waiters in {len(LANES)} lanes, one card")
    print(f"ask that must wait for a slot + leave    {_ask_and_leave({}, MIB):7.1f} us")
    print(f"ask that must wait for bytes + leave     {_ask_and_leave(many, 3 * GIB):7.1f} us")
    print(f"settle + grant, by slots                 {_settle_and_grant({}, MIB):7.1f} us")
    print(f"settle + grant, by bytes                 {_settle_and_grant(many, 3 * GIB):7.1f} us")
