"""A small bounded load client: what the demo sends, and what its summary is counted from.

Rules: open loop. Arrivals come from a seeded Poisson process and never wait for answers, as real clients do not: a
closed loop slows down with the service and hides its queue (Tene, "How NOT to measure latency": coordinated omission).
In flight is bounded; an arrival beyond the bound is not sent and counted as such. Every request sent ends in exactly
one `Answer`: the service's outcome, or the kind of transport error. Times are seconds, ``at_s`` since the start.
"""

import asyncio
import itertools
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final

import httpx

from gpuwatch.storage.records import Outcome

OK_STATUS: Final = 200
TIMEOUT_S: Final = 120.0
"""Longer than any queue and run time-out of the demo: the service decides how a request ends, not the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """One request's body; ``weight`` is its share of the mix."""

    name: str
    content: bytes
    content_type: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to send: when, and which of the bodies."""

    at_s: float
    body: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one request ended for the client. ``outcome`` is the service's word, or ``error`` names what broke."""

    request_id: str
    latency_s: float
    outcome: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the client saw. Latencies are of ``ok`` answers, ``None`` without any."""

    arrivals: int
    sent: int
    not_sent: int
    outcomes: Mapping[str, int]
    errors: Mapping[str, int]
    p50_ms: float | None
    p99_ms: float | None
    by_id: Mapping[str, str]


def arrivals(*, rate_per_s: float, duration_s: float, weights: Sequence[float], seed: int) -> Iterator[Arrival]:
    """Give a Poisson process of ``rate_per_s`` over ``duration_s`` (may be infinite), bodies drawn by weight.

    Gaps between the arrivals of a Poisson process are exponential with mean 1 / rate; the same seed gives the same
    arrivals. Raises `ValueError` for a rate or weights that are not positive.
    """
    if rate_per_s <= 0 or not weights or min(weights) < 0 or sum(weights) <= 0:
        raise ValueError("traffic needs a positive rate and bodies with positive weights")
    dice = Random(seed)  # noqa: S311 - arrivals, no secrets
    bodies = range(len(weights))
    at_s = dice.expovariate(rate_per_s)
    while at_s < duration_s:
        yield Arrival(at_s, dice.choices(bodies, weights)[0])
        at_s += dice.expovariate(rate_per_s)


def quantile(values: Sequence[float], q: float) -> float | None:
    """Give the smallest value that at least a share ``q`` of ``values`` does not exceed; ``None`` without any."""
    if not values:
        return None
    ranked = sorted(values)
    return ranked[max(0, math.ceil(q * len(ranked)) - 1)]


def summarize(answers: Sequence[Answer], *, not_sent: int) -> Summary:
    """Count the answers."""
    ok = [a.latency_s * 1000 for a in answers if a.outcome == Outcome.OK]
    return Summary(
        arrivals=len(answers) + not_sent,
        sent=len(answers),
        not_sent=not_sent,
        outcomes=dict(Counter(a.outcome for a in answers if a.outcome is not None).most_common()),
        errors=dict(Counter(a.error for a in answers if a.error is not None).most_common()),
        p50_ms=quantile(ok, 0.50),
        p99_ms=quantile(ok, 0.99),
        by_id={a.request_id: a.outcome or f"transport: {a.error}" for a in answers},
    )


def outcome_of(response: httpx.Response) -> str:
    """Give the outcome as the service's records name it: ``ok``, the problem's reason, or ``http-STATUS``."""
    if response.status_code == OK_STATUS:
        return Outcome.OK.value
    try:
        reason = response.json().get("reason")
    except (ValueError, AttributeError):
        reason = None
    return reason if isinstance(reason, str) else f"http-{response.status_code}"


class Traffic:
    """Sends ``bodies`` to ``url`` at ``rate_per_s`` for ``duration_s`` and waits for what is in flight.

    ``client``, ``clock`` and ``sleep`` can be handed in; a client handed in stays open. Request ids are
    ``PREFIX-N`` and so tell this run's requests from others'.
    """

    def __init__(
        self,
        url: str,
        bodies: Sequence[Body],
        *,
        rate_per_s: float,
        duration_s: float,
        max_in_flight: int = 64,
        seed: int = 1,
        prefix: str = "traffic",
        client: httpx.AsyncClient | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._url = url
        self._bodies = bodies
        self._arrivals = arrivals(
            rate_per_s=rate_per_s, duration_s=duration_s, weights=[b.weight for b in bodies], seed=seed
        )
        self._max_in_flight = max_in_flight
        self._prefix = prefix
        self._given = client
        self._clock = clock
        self._sleep = sleep
        self._stop = asyncio.Event()
        self._numbers = itertools.count(1)
        self._answers: list[Answer] = []
        self._not_sent = 0

    def stop(self) -> None:
        """Let no further request go; those in flight are still waited for."""
        self._stop.set()

    async def run(self) -> Summary:
        """Send until the duration is over or `stop`, wait for the stragglers, count."""
        started_s = self._clock()
        in_flight: set[asyncio.Task[None]] = set()
        async with self._client() as client:
            for arrival in self._arrivals:
                await self._until(started_s + arrival.at_s)
                if self._stop.is_set():
                    break
                if len(in_flight) >= self._max_in_flight:
                    self._not_sent += 1
                    continue
                task = asyncio.create_task(self._send(client, self._bodies[arrival.body]))
                in_flight.add(task)
                task.add_done_callback(in_flight.discard)
            await asyncio.gather(*in_flight)
        return summarize(self._answers, not_sent=self._not_sent)

    async def _until(self, at_s: float) -> None:
        """Wait for ``at_s`` or for `stop`, whichever comes first."""
        wait_s = at_s - self._clock()
        if wait_s <= 0 or self._stop.is_set():
            return
        stopped = asyncio.create_task(self._stop.wait())
        slept = asyncio.ensure_future(self._sleep(wait_s))
        try:
            await asyncio.wait({stopped, slept}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            slept.cancel()

    async def _send(self, client: httpx.AsyncClient, body: Body) -> None:
        request_id = f"{self._prefix}-{next(self._numbers)}"
        headers = {"Content-Type": body.content_type, "X-Request-Id": request_id}
        started_s = self._clock()
        outcome: str | None = None
        error: str | None = None
        try:
            outcome = outcome_of(await client.post(self._url, content=body.content, headers=headers))
        except httpx.HTTPError as broken:
            error = type(broken).__name__
        latency_s = self._clock() - started_s
        self._answers.append(Answer(request_id=request_id, latency_s=latency_s, outcome=outcome, error=error))

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        if self._given is not None:
            yield self._given
            return
        limits = httpx.Limits(max_connections=self._max_in_flight, max_keepalive_connections=self._max_in_flight)
        async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits, trust_env=False) as client:
            yield client
