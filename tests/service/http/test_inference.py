"""The public face: what goes in and out of it, and one record for whatever comes."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from service_fakes import FakeModel, Held, until
from service_rigs import listening, service

from gpuwatch.service.gpu.base import DeviceLost
from gpuwatch.service.http.inference import inference_app
from gpuwatch.service.models.base import BadInput

pytestmark = pytest.mark.anyio
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_the_answer_is_the_models_with_id_and_timing(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        answer = await one.inference.post(
            "/v1/models/echo/predict", content=b"hello", headers={"X-Request-Id": "a-1._b"}
        )
        assert answer.status_code == 200
        assert answer.json() == {"echo": "hello"}
        assert answer.headers["x-request-id"] == "a-1._b"
        assert answer.headers["content-type"] == "application/json"
        timing = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
        assert timing.keys() == {"queue", "batch", "run"}
        assert all(float(value) >= 0 for value in timing.values())
        assert (await one.inference.post("/predict", content=b"first")).json() == {"echo": "first"}


@pytest.mark.parametrize("given", ["", "white space", "x" * 65, "semi;colon", "a/b"])
async def test_an_id_that_is_none_is_replaced(tmp_path: Path, given: str) -> None:
    async with service(tmp_path) as one:
        answer = await one.inference.post("/predict", content=b"x", headers={"X-Request-Id": given})
        made = answer.headers["x-request-id"]
        assert made != given
        assert made.startswith("r-")
        assert [row["request_id"] for row in await one.rows()] == [made]


async def test_the_same_id_twice_leaves_two_rows_and_the_trace_is_kept(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        for trace in (TRACE, "no trace"):
            await one.inference.post("/predict", content=b"x", headers={"X-Request-Id": "same", "traceparent": trace})
        rows = await one.rows()
        assert [(row["request_id"], row["traceparent"]) for row in rows] == [("same", None), ("same", TRACE)]
        assert rows[0]["seq"] != rows[1]["seq"]
        assert [row["dims"] for row in rows] == [{"bytes": 1}] * 2
        assert {row["price_source"] for row in rows} == {"declared"}


async def test_an_empty_body_is_the_models_matter(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        answer = await one.inference.post("/predict")
        assert (answer.status_code, answer.json()) == (200, {"echo": ""})
        assert (await one.rows())[0]["dims"] == {"bytes": 0}


async def test_the_lane_header_counts_only_where_it_is_allowed(tmp_path: Path) -> None:
    async with service(tmp_path / "on", lanes=("fast",), inference={"lane_header": True}) as one:
        for lane, status in (("fast", 200), ("slow", 400)):
            answer = await one.inference.post("/predict", content=b"x", headers={"X-Gpuwatch-Lane": lane})
            assert answer.status_code == status
        assert "fast" in answer.json()["detail"]
        assert [(row["lane"], row["outcome"]) for row in await one.rows()] == [
            ("default", "unknown-lane"),
            ("fast", "ok"),
        ]
    async with service(tmp_path / "off", lanes=("fast",)) as one:
        answer = await one.inference.post("/predict", content=b"x", headers={"X-Gpuwatch-Lane": "slow"})
        assert answer.status_code == 200
        assert (await one.rows())[0]["lane"] == "default"


async def test_a_body_without_end_is_refused_when_it_has_become_too_large(tmp_path: Path) -> None:
    given = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal given
        for _ in range(1000):
            given += 1
            yield b"x" * 1000

    async with service(tmp_path, inference={"max_body_bytes": "10k"}) as one:
        exact = await one.inference.post("/predict", content=b"x" * 10240)
        assert exact.status_code == 200
        stated = await one.inference.post("/predict", content=b"x" * 10241)
        chunked = await one.inference.post("/predict", content=chunks())
        for answer in (stated, chunked):
            assert answer.status_code == 413
            assert answer.json()["reason"] == "body-too-large"
        assert [row["outcome"] for row in await one.rows()] == ["body-too-large"] * 2 + ["ok"]
    assert given < 20


async def test_models_and_health(tmp_path: Path) -> None:
    async with service(tmp_path, FakeModel(), FakeModel("second", lane="other")) as one:
        models = (await one.inference.get("/v1/models")).json()["models"]
        assert [(model["name"], model["lane"], model["loaded"]) for model in models] == [
            ("echo", "default", True),
            ("second", "other", True),
        ]
        assert (await one.inference.get("/healthz")).json() == {"status": "ok"}
        assert (await one.inference.get("/predict")).headers["content-type"] == "application/problem+json"
        assert (await one.inference.post("/nowhere")).status_code == 404


async def ready(one: Any, status: int, word: str) -> dict[str, Any]:  # noqa: ANN401 - a service
    answer = await one.inference.get("/readyz")
    body: dict[str, Any] = answer.json()
    assert (answer.status_code, body["status"]) == (status, word), body
    return body


async def test_readiness_falls_only_where_nothing_can_be_served(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        await ready(one, 200, "ready")
        one.card.used_bytes = int(0.9 * one.card.info.total_bytes)
        await until(lambda: one.runtime.state().gpus[0].pressure == "high")
        assert "high mark" in (await ready(one, 200, "degraded"))["reason"]
        one.card.used_bytes = int(0.97 * one.card.info.total_bytes)
        await until(lambda: one.runtime.state().gpus[0].breaker == "open")
        assert "breaker" in (await ready(one, 200, "degraded"))["reason"]
        one.card.may_read.clear()
        await one.turn({"sampling.stale_after_s": 0.1})
        await until(lambda: one.runtime.state().gpus[0].status == "stale")
        assert "stale" in (await ready(one, 503, "degraded"))["reason"]
        await one.turn({"watermark.on_stale": "open"})
        await ready(one, 200, "degraded")
        one.card.trouble = DeviceLost("gone")
        one.card.may_read.set()
        await until(lambda: one.runtime.state().gpus[0].status == "lost")
        assert "lost" in (await ready(one, 503, "degraded"))["reason"]
        one.card.trouble = None
        one.card.used_bytes = 0
        await one.turn({"sampling.stale_after_s": 2.0})
        await until(lambda: one.runtime.state().gpus[0].status == "ok")
        await one.runtime.drain(0)
        await ready(one, 503, "draining")
        assert (await one.inference.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    "price",
    ["12", None, -1, float("nan"), float("inf"), object()],
    ids=str,
)
async def test_a_price_that_is_none_costs_its_own_request_and_no_other(tmp_path: Path, price: object) -> None:
    model = FakeModel()
    async with service(tmp_path, model) as one:
        model.price_bytes = price
        answer = await one.inference.post("/predict", content=b"x")
        assert (answer.status_code, answer.json()["reason"]) == (500, "model-error")
        model.price_bytes = 1.5
        assert (await one.inference.post("/predict", content=b"x")).status_code == 200
        state = one.runtime.state()
        assert state.gpus[0].promised_bytes == 0
        assert state.lanes[0].waiting == 0
        assert [row["outcome"] for row in await one.rows()] == ["ok", "model-error"]


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (SystemExit(1), 500, "model-error"),
        (KeyboardInterrupt(), 500, "model-error"),
        (asyncio.CancelledError(), 500, "model-error"),
        (ZeroDivisionError(), 500, "model-error"),
        (BadInput("no image"), 400, "bad-input"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_a_model_raises_before_admission_ends_nothing(
    tmp_path: Path, error: BaseException, status: int, reason: str
) -> None:
    model = FakeModel()
    model.dims_raises = error
    async with service(tmp_path, model) as one:
        answer = await one.inference.post("/predict", content=b"x")
        assert (answer.status_code, answer.json()["reason"]) == (status, reason)
        model.dims_raises = None
        assert (await one.inference.post("/predict", content=b"x")).status_code == 200
        assert [row["outcome"] for row in await one.rows()] == ["ok", reason]


async def test_dims_that_are_none_are_the_models_error(tmp_path: Path) -> None:
    model = FakeModel()
    async with service(tmp_path, model) as one:
        for dims in ({"n": "many"}, {"n": 1.5}, ["n"]):
            model.given_dims = dims
            assert (await one.inference.post("/predict", content=b"x")).status_code == 500
        assert {row["outcome"] for row in await one.rows()} == {"model-error"}


async def test_a_result_that_no_json_can_say_is_the_models_error_and_nan_is_null(tmp_path: Path) -> None:
    model = FakeModel(does=lambda _payload: object())
    async with service(tmp_path, model) as one:
        answer = await one.inference.post("/predict", content=b"x")
        assert (answer.status_code, answer.json()["reason"]) == (500, "model-error")
        model.does = lambda _payload: float("nan")
        assert (await one.inference.post("/predict", content=b"x")).json() == {"echo": None}
        model.does = lambda _payload: "\udce9"
        assert (await one.inference.post("/predict", content=b"x")).status_code == 200


async def test_a_client_that_leaves_mid_body_or_mid_run_is_recorded_and_its_work_ends_by_itself(tmp_path: Path) -> None:
    held = Held()
    async with service(tmp_path, FakeModel(does=held)) as one, listening(inference_app(one.runtime)) as address:
        _, upload = await asyncio.open_connection(*address)
        upload.write(b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Request-Id: upload\r\nContent-Length: 1000\r\n\r\nsome")
        await upload.drain()
        await until(lambda: len(one.runtime.requests.open_entries) == 1)
        upload.close()
        await until(lambda: not one.runtime.requests.open_entries)

        _, run = await asyncio.open_connection(*address)
        run.write(b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Request-Id: run\r\nContent-Length: 4\r\n\r\nwork")
        await run.drain()
        await held.has_begun()
        run.close()
        await until(lambda: one.runtime.state().lanes[0].orphans == 1)
        assert one.runtime.state().in_flight[0].orphan
        held.go.set()
        await until(lambda: one.runtime.state().lanes[0].in_flight == 0)

        # A connection that is used again after an answer works as ever.
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(2):
            writer.write(b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Request-Id: kept\r\nContent-Length: 2\r\n\r\nok")
            assert b" 200 " in await reader.readline()
            while (await reader.readline()).strip():
                pass
            assert json.loads(await reader.readexactly(len('{"echo":"ok"}'))) == {"echo": "ok"}
        writer.close()
        rows = await one.rows()
        assert [(row["request_id"], row["outcome"], row["status"]) for row in rows] == [
            ("kept", "ok", 200),
            ("kept", "ok", 200),
            ("run", "client-gone", 499),
            ("upload", "client-gone", 499),
        ]
        assert rows[2]["peak_bytes"] is not None


@pytest.mark.parametrize("where", ["waiting", "running", "pricing"])
async def test_a_handler_that_the_server_cancels_has_one_outcome_and_leaves_no_loose_end(
    tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    model = FakeModel(does=held)
    async with service(tmp_path, model, knobs={"lanes.default.concurrency": 0 if where == "waiting" else 4}) as one:
        if where == "pricing":
            model.given_dims = Slow(held)
        call = asyncio.ensure_future(one.inference.post("/predict", content=b"x"))
        if where == "waiting":
            await until(lambda: one.runtime.state().lanes[0].waiting == 1)
        else:
            await held.has_begun()
        with caplog.at_level(logging.ERROR):
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            held.go.set()
            await until(lambda: one.runtime.state().lanes[0].in_flight == 0)
        assert caplog.records == []
        (row,) = await one.rows()
        assert row["outcome"] == ("shutdown" if where == "pricing" else "client-gone")
        assert one.runtime.requests.open_entries == ()


class Slow(dict[str, int]):
    """Dims that take as long as the test wants."""

    def __init__(self, held: Held) -> None:
        super().__init__(n=1)
        self._held = held

    def items(self) -> Any:  # noqa: ANN401 - as a dict's
        self._held()
        return super().items()


async def test_an_error_of_our_own_is_answered_and_recorded(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        one.runtime.answering.served["echo"].lane = "nowhere"  # anything that must not be
        answer = await one.inference.post("/predict", content=b"x")
        assert (answer.status_code, answer.json()["reason"]) == (500, "model-error")
        (row,) = await one.rows()
        assert (row["outcome"], row["error"]) == ("model-error", "KeyError")


async def test_a_body_that_does_not_arrive_is_refused_and_recorded(tmp_path: Path) -> None:
    async def half() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    async with service(tmp_path, inference={"body_timeout_s": 0.01}) as one:
        answer = await one.inference.post("/predict", content=half())
        assert (answer.status_code, answer.json()["reason"]) == (400, "bad-input")
        assert "within 0.01 s" in answer.json()["detail"]
        assert [row["outcome"] for row in await one.rows()] == ["bad-input"]


async def test_health_answers_head(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        assert [(await one.inference.head(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]
