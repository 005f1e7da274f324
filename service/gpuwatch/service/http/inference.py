"""The public face: models answer, or a refusal says why.

Rules: every request that names a model path gets one record, whatever becomes of it. The body is read here; decoding,
inference and encoding happen under the lease, on a thread. A client that leaves cancels its wait at once; work already
on the card goes on as an orphan.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Request, Response
from starlette.requests import ClientDisconnect

from gpuwatch.service.answering import Served
from gpuwatch.service.dispatch import CLIENT_CLOSED
from gpuwatch.service.errors import Refused
from gpuwatch.service.http import problems
from gpuwatch.service.requests import Entry
from gpuwatch.service.runtime import Runtime
from gpuwatch.service.settings import InferenceSettings
from gpuwatch.storage import codec
from gpuwatch.storage.records import Outcome
from gpuwatch.storage.state import GpuStatus, State, Status

T = TypeVar("T")
_log = logging.getLogger(__name__)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9\-_.]{1,64}")
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class _ClientGone(Exception):
    """Nobody waits for the answer any more."""


def inference_app(runtime: Runtime) -> FastAPI:
    """Make the app of the inference listener."""
    app = FastAPI(title="gpuwatch inference", docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    problems.install(app)

    @app.post("/predict")
    async def predict_first(request: Request) -> Response:
        """Ask the first model."""
        return await _predict(runtime, next(iter(runtime.answering.served)), request)

    @app.post("/v1/models/{model}/predict")
    async def predict(model: str, request: Request) -> Response:
        """Ask a model by name."""
        return await _predict(runtime, model, request)

    @app.get("/v1/models")
    async def models() -> Response:
        """List the models."""
        return _json({"models": [codec.plain(served.state()) for served in runtime.answering.served.values()]})

    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def healthz() -> Response:
        """Say that the process lives."""
        return _json({"status": "ok"})

    @app.api_route("/readyz", methods=["GET", "HEAD"])
    async def readyz() -> Response:
        """Say whether requests can be served, and why not."""
        state = runtime.state()
        return _json(
            {"status": state.service.status, "reason": state.service.reason, "verdict": state.verdict},
            200 if _serves(state, fails_open=runtime.desk.knobs.word("watermark.on_stale") == "open") else 503,
        )

    return app


def _serves(state: State, *, fails_open: bool) -> bool:
    if state.service.status in {Status.DRAINING, Status.FATAL} or not state.models:
        return False
    usable = {GpuStatus.OK, GpuStatus.STALE} if fails_open else {GpuStatus.OK}
    return any(gpu.status in usable for gpu in state.gpus)


async def _predict(runtime: Runtime, model: str, request: Request) -> Response:
    served = runtime.answering.served.get(model)
    entry = runtime.requests.open(
        request_id=_request_id(request),
        lane=served.lane if served else "",
        model=model[:200],
        version=served.version if served else None,
        traceparent=_traceparent(request),
    )
    try:
        served = _known(runtime, model)
        _choose_lane(runtime, entry, request)
        body = await _body(request, runtime.settings.inference)
        text = await _while_connected(request, _answer(runtime, served, entry, body, request))
    except Refused as refused:
        if entry.record is None:
            runtime.requests.end(entry, refused.reason, refused.status)
        return problems.refusal(refused, entry.request_id, figures=runtime.settings.refusals.figures)
    except (ClientDisconnect, _ClientGone):
        if entry.record is None:
            runtime.requests.end(entry, Outcome.CLIENT_GONE, CLIENT_CLOSED)
        return Response(status_code=CLIENT_CLOSED)
    except asyncio.CancelledError:
        # The server cancels handlers when it gives up on them: this request, too, has its one outcome.
        if entry.record is None:
            runtime.requests.end(entry, Outcome.SHUTDOWN, 503)
        raise
    except Exception as error:  # noqa: BLE001 - our own fault, whatever it is: one outcome and a whole answer all the same
        _log.exception("request %s failed in the service itself", entry.request_id)
        if entry.record is None:
            runtime.requests.end(entry, Outcome.MODEL_ERROR, 500, type(error).__name__)
        return problems.refusal(Refused(Outcome.MODEL_ERROR, "The service failed; its log says how."), entry.request_id)
    return Response(text, headers=_headers(entry), media_type="application/json")


def _known(runtime: Runtime, model: str) -> Served:
    served = runtime.answering.served.get(model)
    if served is None:
        names = ", ".join(runtime.answering.served)
        raise Refused(Outcome.UNKNOWN_MODEL, f"There is no model {model[:200]!r}; there are: {names}.")
    return served


async def _answer(runtime: Runtime, served: Served, entry: Entry, body: bytes, request: Request) -> bytes:
    content_type = request.headers.get("content-type", "")
    return await runtime.answering.answer(served, entry, body, content_type, runtime.desk.knobs)


def _choose_lane(runtime: Runtime, entry: Entry, request: Request) -> None:
    wanted = request.headers.get("x-gpuwatch-lane")
    if wanted is None or not runtime.settings.inference.lane_header:
        return
    if wanted not in runtime.desk.knobs.lanes:
        lanes = ", ".join(runtime.desk.knobs.lanes)
        raise Refused(Outcome.UNKNOWN_LANE, f"There is no lane {wanted[:200]!r}; there are: {lanes}.")
    entry.lane = wanted


async def _body(request: Request, limits: InferenceSettings) -> bytes:
    """Read the body within its limits of size and time. Raises `Refused`, or `ClientDisconnect`."""
    try:
        async with asyncio.timeout(limits.body_timeout_s or None):
            return await _all_of(request, limits.max_body_bytes)
    except TimeoutError:
        raise Refused(Outcome.BAD_INPUT, f"The body did not arrive within {limits.body_timeout_s:g} s.") from None


async def _all_of(request: Request, most_bytes: int) -> bytes:
    refused = Refused(Outcome.BODY_TOO_LARGE, f"A body may have {most_bytes} bytes at most.")
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > most_bytes:
        raise refused
    chunks, size_bytes = [], 0
    async for chunk in request.stream():
        size_bytes += len(chunk)
        if size_bytes > most_bytes:
            raise refused
        chunks.append(chunk)
    return b"".join(chunks)


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, and cancel it when the client leaves. Raises `_ClientGone` then."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})  # whoever cancels us meets a request that has its outcome
    if task.cancelled():
        raise _ClientGone
    return task.result()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"r-{secrets.token_hex(6)}"


def _traceparent(request: Request) -> str | None:
    given = request.headers.get("traceparent", "")
    return given if _TRACEPARENT.fullmatch(given) else None


def _headers(entry: Entry) -> dict[str, str]:
    timing = f"queue;dur={entry.queue_ms or 0:.1f}, batch;dur=0.0, run;dur={entry.run_ms or 0:.1f}"
    return {"X-Request-Id": entry.request_id, "Server-Timing": timing}


def _json(data: object, status: int = 200) -> Response:
    return Response(codec.dumps(data), status, media_type="application/json")
