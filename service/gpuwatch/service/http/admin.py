"""The operator's face: state, stream, knobs, requests, samples, snapshots, events.

Rules: its own listener, so that it answers while inference is overloaded. What is read from the database is read on a
thread. A change names who made it: what the caller claims, the token's name and the peer's address.
"""

import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final, TypeVar

from fastapi import FastAPI, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr
from starlette.types import ASGIApp

from gpuwatch.service.http import problems
from gpuwatch.service.http.auth import AdminGuard
from gpuwatch.service.http.problems import problem
from gpuwatch.service.http.stream import stream
from gpuwatch.service.runtime import Runtime
from gpuwatch.service.turning import VersionConflict
from gpuwatch.storage import codec
from gpuwatch.storage.errors import KnobsInvalid, StorageError
from gpuwatch.storage.knobs import keys_of
from gpuwatch.storage.reader import SampleBucket, Spread
from gpuwatch.storage.records import Cause, Outcome, Trigger

T = TypeVar("T")
_LONGEST_NOTE: Final = 1000
_MOST_ROWS: Final = 10_000
_EVENT_ID: Final = re.compile(r"[0-9]{1,18}")
Limit = Annotated[int, Query(ge=1, le=_MOST_ROWS)]
Time = Annotated[float | None, Query(allow_inf_nan=False)]
Number = Annotated[int, Path(ge=0, lt=1 << 63)]


class KnobsPatch(BaseModel):
    """A change of knobs."""

    model_config = ConfigDict(extra="forbid")

    changes: dict[str, StrictBool | StrictInt | StrictFloat | StrictStr] = Field(min_length=1)
    if_version: int | None = None
    note: str | None = Field(default=None, max_length=_LONGEST_NOTE)


def admin_app(runtime: Runtime) -> ASGIApp:
    """Make the app of the admin listener, its guard in front."""
    app = FastAPI(title="gpuwatch admin", docs_url=None, redoc_url=None, openapi_url="/admin/openapi.json")
    problems.install(app)
    _live(app, runtime)
    _knobs(app, runtime)
    _history(app, runtime)
    return AdminGuard(app, tokens=runtime.tokens, allowed_hosts=runtime.settings.admin.allowed_hosts)


def _live(app: FastAPI, runtime: Runtime) -> None:
    @app.get("/admin/state")
    async def state() -> Response:
        """Everything the console shows."""
        return _json(runtime.state())

    @app.get("/admin/stream", response_class=EventSourceResponse)
    async def live(
        hz: Annotated[float, Query(gt=0, le=20)] = 4.0, last_event_id: Annotated[str | None, Header()] = None
    ) -> AsyncIterator[ServerSentEvent]:
        """Send the state and the news, as they happen."""
        last_id = int(last_event_id) if last_event_id and _EVENT_ID.fullmatch(last_event_id) else None
        async for event in stream(runtime, hz, last_id):
            yield event


def _knobs(app: FastAPI, runtime: Runtime) -> None:
    desk = runtime.desk

    @app.get("/admin/knobs")
    async def knobs() -> Response:
        """Values, where they come from, and what they take."""
        return _json(
            {
                "version": desk.version,
                "knobs": dict(desk.knobs.values),
                "origin": {key: desk.origin(key) for key in desk.knobs.values},
                "spec": {key: _spec(spec) for key, spec in keys_of(desk.knobs.lanes)},
            }
        )

    @app.patch("/admin/knobs")
    async def turn(patch: KnobsPatch, request: Request) -> Response:
        """Turn knobs: all or nothing."""
        try:
            turned = await runtime.turn(
                patch.changes, actor=_actor(request), if_version=patch.if_version, note=patch.note
            )
        except KnobsInvalid as bad:
            return problem(422, "The change is not allowed", str(bad), problems=bad.problems)
        except VersionConflict as conflict:
            last = None if conflict.last is None else codec.plain(conflict.last)
            return problem(
                409, "The knobs were turned meanwhile", str(conflict), version=conflict.version, last_change=last
            )
        return _json(
            {
                "version": turned.change.version,
                "knobs": dict(desk.knobs.values),
                "changed": codec.plain(turned.change.changes),
                "warnings": list(turned.warnings),
            }
        )

    @app.get("/admin/knobs/history")
    async def history(limit: Limit = 100) -> Response:
        """All changes, newest first."""
        return _json({"changes": codec.plain(desk.history[:limit])})


def _history(app: FastAPI, runtime: Runtime) -> None:
    reader = runtime.reader

    async def ask(question: Callable[[], T], answer: Callable[[T], Response]) -> Response:
        try:
            found = await runtime.aux.call(question)
        except StorageError as error:
            return problem(503, "The database cannot be read", str(error))
        return answer(found)

    @app.get("/admin/requests")
    async def requests(
        lane: str | None = None, outcome: Outcome | None = None, since: Time = None, limit: Limit = 100
    ) -> Response:
        """Recent records, newest first, and those in flight."""
        in_flight = codec.plain(runtime.state().in_flight)
        return await ask(
            lambda: reader.requests(lane=lane, outcome=outcome, since=since, limit=limit),
            lambda rows: _json({"requests": codec.plain(rows), "in_flight": in_flight}),
        )

    @app.get("/admin/samples")
    async def samples(
        since: Time = None,
        until: Time = None,
        points: Limit = 600,
        gpu: Annotated[int, Query(ge=0, lt=1 << 63)] = 0,
    ) -> Response:
        """Buckets of min, mean and max; the last quarter of an hour where no time is given."""
        end = runtime.wall() if until is None else until
        begin = end - 900 if since is None else since
        return await ask(
            lambda: reader.samples(begin, end, points=points, gpu=gpu),
            lambda buckets: _json({"buckets": [_flat(bucket) for bucket in buckets]}),
        )

    @app.get("/admin/snapshots")
    async def snapshots(limit: Limit = 100, cause: Cause | None = None, trigger: Trigger | None = None) -> Response:
        """Snapshots as a list shows them, newest first."""
        return await ask(
            lambda: reader.snapshots(limit=limit, cause=cause, trigger=trigger),
            lambda heads: _json({"snapshots": codec.plain(heads)}),
        )

    @app.get("/admin/snapshots/{number}")
    async def snapshot(number: Number) -> Response:
        """One whole snapshot; torch's own segments are another path's."""
        return await ask(
            lambda: reader.snapshot(number),
            lambda found: (
                problem(404, "Not found", f"There is no snapshot {number}.")
                if found is None
                else _json({key: value for key, value in codec.plain(found).items() if key != "segments"})
            ),
        )

    @app.get("/admin/events")
    async def events(since: Time = None, limit: Limit = 100) -> Response:
        """List what happened, newest first."""
        return await ask(
            lambda: reader.events(since=since, limit=limit), lambda rows: _json({"events": codec.plain(rows)})
        )


def _spec(spec: Any) -> dict[str, Any]:  # noqa: ANN401 - a row of the knobs' table
    kept = ("unit", "low", "high", "step", "default", "help", "choices")
    return {key: value for key, value in codec.plain(spec).items() if key in kept}


def _flat(bucket: SampleBucket) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name in codec.fields(SampleBucket):
        value = getattr(bucket, name)
        if isinstance(value, Spread):
            flat |= {f"{name}_{part}": getattr(value, part) for part in ("min", "mean", "max")}
        else:
            flat[name] = value
    return flat


def _actor(request: Request) -> str:
    """Who turns: the claim, marked as one, the token's name and the peer's address."""
    claimed = "".join(c for c in request.headers.get("x-gpuwatch-actor", "") if c.isprintable())[:100]
    peer = "unknown peer" if request.client is None else request.client.host
    token = request.scope.get("gpuwatch.role", "admin")
    return f"{claimed} (claimed; {token} token, {peer})" if claimed else f"{token} token, {peer}"


def _json(data: object) -> Response:
    return Response(codec.dumps(data), media_type="application/json")
