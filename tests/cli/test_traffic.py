"""The load client: arrivals, answers and their count."""

import asyncio
import math

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.cli.traffic import Answer, Body, Traffic, arrivals, outcome_of, quantile, summarize

BODIES = [
    Body(name="small", content=b"s", content_type="image/jpeg"),
    Body(name="big", content=b"b", content_type="image/png"),
]
URL = "http://service/predict"

weights = st.lists(st.floats(min_value=0, max_value=100), min_size=1, max_size=8).filter(lambda w: sum(w) > 0.001)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@given(st.floats(min_value=0.1, max_value=50), st.floats(min_value=0.1, max_value=20), weights, st.integers())
def test_arrivals_are_in_order_within_the_duration_and_of_bodies_with_weight(
    rate_per_s: float, duration_s: float, shares: list[float], seed: int
) -> None:
    got = list(arrivals(rate_per_s=rate_per_s, duration_s=duration_s, weights=shares, seed=seed))
    times = [a.at_s for a in got]
    assert times == sorted(times)
    assert all(0 <= t < duration_s for t in times)
    assert all(shares[a.body] > 0 for a in got)


@given(st.integers(), st.floats(min_value=1, max_value=50))
def test_the_same_seed_gives_the_same_arrivals(seed: int, rate_per_s: float) -> None:
    first, second = (list(arrivals(rate_per_s=rate_per_s, duration_s=5, weights=[1, 2], seed=seed)) for _ in range(2))
    assert first == second


@given(st.integers(min_value=0, max_value=10_000))
def test_the_number_of_arrivals_is_poisson_with_the_rate_asked_for(seed: int) -> None:
    count = sum(1 for _ in arrivals(rate_per_s=10, duration_s=100, weights=[1], seed=seed))
    assert abs(count - 1000) < 7 * math.sqrt(1000)


@pytest.mark.parametrize(("rate", "shares"), [(0.0, [1.0]), (1.0, []), (1.0, [0.0]), (1.0, [-1.0, 2.0])])
def test_traffic_without_a_rate_or_bodies_is_refused(rate: float, shares: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        next(arrivals(rate_per_s=rate, duration_s=1, weights=shares, seed=1))


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1), st.floats(min_value=0.01, max_value=1))
def test_a_quantile_is_the_smallest_value_that_covers_its_share(values: list[float], q: float) -> None:
    found = quantile(values, q)
    assert found in values
    assert sum(v <= found for v in values) >= q * len(values) - 1e-9 * len(values)
    below = [v for v in values if v < found]
    assert len(below) < q * len(values) + 1e-9 * len(values)


def test_latencies_are_those_of_ok_answers_only() -> None:
    answers = [
        Answer(request_id="1", latency_s=0.1, outcome="ok"),
        Answer(request_id="2", latency_s=9.0, outcome="queue-timeout"),
        Answer(request_id="3", latency_s=60.0, error="ReadTimeout"),
    ]
    summary = summarize(answers, not_sent=2)
    assert summary.p50_ms == pytest.approx(100.0)
    assert summary.p99_ms == pytest.approx(100.0)
    assert (summary.arrivals, summary.sent, summary.not_sent) == (5, 3, 2)
    assert (summary.outcomes, summary.errors) == ({"ok": 1, "queue-timeout": 1}, {"ReadTimeout": 1})
    assert summary.by_id == {"1": "ok", "2": "queue-timeout", "3": "transport: ReadTimeout"}


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        (httpx.Response(200, json={"faces": []}), "ok"),
        (httpx.Response(503, json={"reason": "queue-timeout"}), "queue-timeout"),
        (httpx.Response(502, text="<html>"), "http-502"),
        (httpx.Response(500, json=[1]), "http-500"),
        (httpx.Response(500, json={"reason": 3}), "http-500"),
    ],
)
def test_an_answer_is_named_as_the_services_records_name_it(response: httpx.Response, outcome: str) -> None:
    assert outcome_of(response) == outcome


class Clock:
    """Time that passes only by sleeping on it; other tasks get their turn before it moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await others()
        self.now += seconds


async def others() -> None:
    """Let every task that can go on do so."""
    for _ in range(50):
        await asyncio.sleep(0)


class Service:
    """A service that answers small bodies, refuses big ones, and holds all of them until ``gate`` is set."""

    def __init__(self, *, held: bool = False) -> None:
        self.gate = asyncio.Event()
        self.arrived = asyncio.Event()
        if not held:
            self.gate.set()
        self.app = FastAPI()
        self.app.post("/predict")(self.predict)

    async def predict(self, request: Request) -> JSONResponse:
        self.arrived.set()
        await self.gate.wait()
        if await request.body() == b"b":
            return JSONResponse({"reason": "too-large"}, status_code=413, media_type="application/problem+json")
        return JSONResponse({"faces": []})


def traffic(
    transport: httpx.AsyncBaseTransport, clock: Clock, *, duration_s: float = 20.0, max_in_flight: int = 64
) -> Traffic:
    return Traffic(
        URL,
        BODIES,
        rate_per_s=2,
        duration_s=duration_s,
        max_in_flight=max_in_flight,
        prefix="t",
        client=httpx.AsyncClient(transport=transport),
        clock=clock,
        sleep=clock.sleep,
    )


EXPECTED = list(arrivals(rate_per_s=2, duration_s=20, weights=[1, 1], seed=1))


@pytest.mark.anyio
async def test_every_request_sent_is_counted_once_under_the_services_word() -> None:
    summary = await traffic(httpx.ASGITransport(Service().app), Clock()).run()
    assert summary.outcomes == {
        "ok": sum(a.body == 0 for a in EXPECTED),
        "too-large": sum(a.body == 1 for a in EXPECTED),
    }
    assert summary.sent == len(EXPECTED)
    assert set(summary.by_id) == {f"t-{n}" for n in range(1, len(EXPECTED) + 1)}


@pytest.mark.anyio
async def test_arrivals_never_wait_for_answers_and_those_beyond_the_bound_are_counted_as_not_sent() -> None:
    service, clock = Service(held=True), Clock()
    task = asyncio.create_task(traffic(httpx.ASGITransport(service.app), clock, max_in_flight=3).run())
    for _ in range(2 * len(EXPECTED)):
        await others()
    assert clock.now == pytest.approx(EXPECTED[-1].at_s)
    service.gate.set()
    summary = await task
    assert (summary.sent, summary.not_sent, summary.arrivals) == (3, len(EXPECTED) - 3, len(EXPECTED))


@pytest.mark.anyio
async def test_a_stop_ends_the_sending_and_still_waits_for_what_is_in_flight() -> None:
    service = Service(held=True)
    running = traffic(httpx.ASGITransport(service.app), Clock(), duration_s=math.inf)
    task = asyncio.create_task(running.run())
    await service.arrived.wait()
    running.stop()
    await others()
    assert not task.done()
    service.gate.set()
    summary = await task
    assert summary.sent == sum(summary.outcomes.values()) >= 1


@pytest.mark.anyio
async def test_a_connection_that_breaks_is_an_error_and_no_outcome() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    summary = await traffic(httpx.MockTransport(refuse), Clock()).run()
    assert summary.outcomes == {}
    assert summary.errors == {"ConnectError": len(EXPECTED)}
