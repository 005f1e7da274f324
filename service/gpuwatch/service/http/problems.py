"""Refusals as ``application/problem+json`` (RFC 9457)."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gpuwatch.service.errors import Refused
from gpuwatch.storage import codec

MEDIA_TYPE = "application/problem+json"


def problem(status: int, title: str, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:  # noqa: ANN401 - any figure
    """Give a problem response; ``more`` are its own members, those that are ``None`` left out."""
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    body |= {key: value for key, value in more.items() if value is not None}
    return Response(codec.dumps(body), status, dict(headers or {}), MEDIA_TYPE)


def refusal(refused: Refused, request_id: str, *, figures: bool = True) -> Response:
    """Give a refusal's response; without ``figures`` nothing of the card or the queue is told.

    A detail without figures (what is wrong with the body) is told always.
    """
    headers = {"X-Request-Id": request_id}
    if refused.retry_after_header is not None:
        headers["Retry-After"] = refused.retry_after_header
    return problem(
        refused.status,
        refused.title,
        refused.detail if figures or not refused.figures else refused.title,
        headers,
        type=f"urn:gpuwatch:{refused.reason}",
        reason=refused.reason,
        request_id=request_id,
        retry_after_s=refused.retry_after_s,
        **(refused.figures if figures else {}),
    )


def install(app: FastAPI) -> None:
    """Make what the framework refuses by itself a problem, too."""

    @app.exception_handler(HTTPException)
    async def _http(_request: Request, error: HTTPException) -> Response:
        return problem(error.status_code, str(error.detail), str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_request: Request, error: RequestValidationError) -> Response:
        found = {".".join(str(part) for part in e["loc"]): e["msg"] for e in error.errors()}
        detail = "; ".join(f"{where}: {what}" for where, what in found.items())
        return problem(422, "The request is not what this path takes", detail, problems=found)
