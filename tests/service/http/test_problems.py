"""Each refusal as a client meets it: status, Retry-After and the members of its problem body."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_fakes import GIB, MIB, FakeModel, Held, until
from service_rigs import Service, service

from gpuwatch.service.errors import REFUSALS, Refused
from gpuwatch.service.gpu.base import DeviceLost
from gpuwatch.service.http.problems import refusal
from gpuwatch.storage.records import Outcome

pytestmark = pytest.mark.anyio
ALWAYS = frozenset({"type", "title", "status", "detail", "reason", "request_id"})
ASKED = frozenset({"lane", "price_bytes", "waiting"})
CORE = ASKED | {"available_bytes", "capacity_bytes"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a refusal is brought about, and what the client must get."""

    reason: str
    status: int
    retry: bool = False
    figures: frozenset[str] = frozenset()
    knobs: Mapping[str, object] = field(default_factory=dict)
    model: FakeModel | None = None
    before: Callable[[Service], Awaitable[object]] | None = None
    path: str = "/predict"
    body: bytes = b"x"
    headers: Mapping[str, str] = field(default_factory=dict)


async def high(one: Service) -> None:
    one.card.used_bytes = int(0.9 * GIB)
    await until(lambda: one.runtime.state().gpus[0].pressure == "high")


async def tripped(one: Service) -> None:
    one.card.used_bytes = int(0.96 * GIB)
    await until(lambda: one.runtime.state().gpus[0].breaker == "open")


async def lost(one: Service) -> None:
    one.card.trouble = DeviceLost("gone")
    await until(lambda: one.runtime.state().gpus[0].status == "lost")


async def stale(one: Service) -> None:
    one.card.may_read.clear()
    await until(lambda: one.runtime.state().gpus[0].status == "stale")


async def drained(one: Service) -> None:
    await one.runtime.drain(0)


async def filled(one: Service) -> None:
    model = one.runtime.answering.served["echo"].any_replica
    assert isinstance(model, FakeModel)
    held = Held()
    model.does = held
    model.price_bytes = 500 * MIB
    one.pending.append(asyncio.ensure_future(one.inference.post("/predict", content=b"first")))
    one.releases.append(held.go.set)
    await held.has_begun()


PAUSED: dict[str, float] = {"lanes.default.concurrency": 0}
REFUSE_BYTES = {"budget.action": "refuse"}
REFUSE_HIGH = {"watermark.action": "refuse"}
AT_ONCE: dict[str, float] = {"lanes.default.queue_timeout_s": 0.01}
BLOCKED = CORE | {"blocked_by"}
CASES = [
    Case(
        reason="queue-full",
        status=429,
        retry=True,
        figures=BLOCKED,
        knobs=PAUSED | {"lanes.default.queue_limit": 0},
    ),
    Case(reason="no-room", status=429, retry=True, figures=BLOCKED, knobs=REFUSE_BYTES, before=filled),
    Case(reason="queue-timeout", status=503, retry=True, figures=BLOCKED, knobs=PAUSED | AT_ONCE),
    Case(reason="watermark", status=503, retry=True, figures=BLOCKED, knobs=REFUSE_HIGH, before=high),
    Case(reason="breaker-open", status=503, retry=True, figures=BLOCKED, before=tripped),
    Case(reason="draining", status=503, retry=True, figures=CORE, before=drained),
    Case(
        reason="gpu-stale",
        status=503,
        retry=True,
        figures=BLOCKED,
        knobs=AT_ONCE | {"sampling.stale_after_s": 0.1},
        before=stale,
    ),
    Case(reason="gpu-lost", status=503, retry=True, figures=ASKED, before=lost),
    Case(reason="too-large", status=413, figures=CORE, model=FakeModel(price_bytes=2 * GIB)),
    Case(reason="body-too-large", status=413, body=b"x" * 2000),
    Case(reason="bad-input", status=422, body=b"bad"),
    Case(reason="unknown-model", status=404, path="/v1/models/none/predict"),
    Case(reason="unknown-lane", status=400, headers={"X-Gpuwatch-Lane": "none"}),
    Case(reason="model-error", status=500, model=FakeModel(does=lambda payload: payload[10])),
]


@pytest.mark.parametrize("figures", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.reason)
async def test_each_refusal_says_what_the_contract_says(tmp_path: Path, case: Case, *, figures: bool) -> None:
    async with service(
        tmp_path,
        case.model or FakeModel(),
        knobs=case.knobs,
        inference={"max_body_bytes": 1000, "lane_header": True},
        refusals={"figures": figures},
    ) as one:
        if case.before is not None:
            await case.before(one)
        answer = await one.inference.post(
            case.path, content=case.body, headers={"X-Request-Id": "mine", **case.headers}
        )
        assert_refused(answer, case, figures=figures)
        row = next(row for row in await one.rows() if row["request_id"] == "mine")
        assert (row["outcome"], row["status"]) == (case.reason, case.status)
        if case.reason == "unknown-model":
            assert (row["model"], row["lane"]) == ("none", "")


def assert_refused(answer: httpx.Response, case: Case, *, figures: bool) -> None:
    body: dict[str, Any] = answer.json()
    assert answer.status_code == case.status, body
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == "mine"
    assert body["type"] == f"urn:gpuwatch:{case.reason}"
    assert (body["reason"], body["status"], body["request_id"]) == (case.reason, case.status, "mine")
    assert body["title"] != ""
    assert ("retry-after" in answer.headers) == case.retry
    members = ALWAYS | ({"retry_after_s"} if case.retry else set())
    if case.retry:
        assert answer.headers["retry-after"].isdecimal()
        assert int(answer.headers["retry-after"]) >= max(1, body["retry_after_s"])
    assert body.keys() == (members | case.figures if figures else members)
    if not figures and case.figures:
        assert body["detail"] == body["title"]
    elif not figures:
        assert body["detail"] != body["title"], "what is no figure of the card is told all the same"


async def test_an_out_of_memory_and_a_time_out_name_what_helps_to_look_further(tmp_path: Path) -> None:
    model = FakeModel(price_bytes=3 * MIB)
    async with service(tmp_path, model) as one:
        model.does = lambda _payload: one.card.run_out()
        answer = await one.inference.post("/predict", content=b"x", headers={"X-Request-Id": "mine"})
        case = Case(reason="out-of-memory", status=503, figures=frozenset({"snapshot", "price_bytes", "lane"}))
        assert_refused(answer, case, figures=True)
        found = await one.admin.get(f"/admin/snapshots/{answer.json()['snapshot']}")
        assert found.json()["request_id"] == "mine"
        held = Held()
        model.does = held
        await one.turn({"lanes.default.run_timeout_s": 0.01})
        answer = await one.inference.post("/predict", content=b"x", headers={"X-Request-Id": "mine"})
        assert_refused(answer, Case(reason="run-timeout", status=504), figures=True)
        held.go.set()


async def test_the_end_of_the_grace_refuses_who_waits_and_who_runs(tmp_path: Path) -> None:
    held = Held()
    async with service(tmp_path, FakeModel(does=held), knobs={"lanes.default.concurrency": 1}) as one:
        calls = [asyncio.ensure_future(one.inference.post("/predict", content=b"x")) for _ in range(2)]
        await held.has_begun()
        await until(lambda: one.runtime.state().lanes[0].waiting == 1)
        assert not await one.runtime.drain(0)
        for call in calls:
            answer = await call
            assert (answer.status_code, answer.json()["reason"]) == (503, "shutdown")
            assert int(answer.headers["retry-after"]) >= 1
        held.go.set()
        assert {row["outcome"] for row in await one.rows()} == {"shutdown"}


@pytest.mark.parametrize("outcome", REFUSALS)
def test_every_row_of_the_table_makes_a_whole_answer(outcome: Outcome) -> None:
    refused = Refused(outcome, "why", retry_after_s=1.2, figures={"lane": "a", "waiting": None})
    answer = refusal(refused, "id-1")
    assert answer.status_code == REFUSALS[outcome].status
    assert answer.headers.get("retry-after") == ("2" if REFUSALS[outcome].retry else None)
    assert b'"lane":"a"' in answer.body
    assert b"waiting" not in answer.body, "what is not known is left out"
    assert b'"detail":"why"' in answer.body
