"""The live source against what is no service of ours, or half of one: trouble is told, nothing is raised."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest
from service_fakes import until
from service_rigs import listening
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tui_eyes import Watching, at, watching

from gpuwatch.storage import codec
from gpuwatch.storage.discovery import Found
from gpuwatch.tui.sources import scene
from gpuwatch.tui.sources.base import SourceUnavailable
from gpuwatch.tui.view import Link, RequestNews

pytestmark = pytest.mark.anyio
LANE = "lanes.image.concurrency"


def told(kind: str, data: object) -> str:
    return f"event: {kind}\ndata: {codec.dumps(data)}\n\n"


def state(version: int = 41) -> str:
    return told("state", replace(scene.state(), knobs_version=version))


@dataclass
class Face:
    """An admin face that answers what the test says: ``answers`` by path, ``stream`` event by event, then silence."""

    answers: dict[str, Response | Any] = field(default_factory=dict)
    stream: list[str] = field(default_factory=lambda: [state()])
    knobs: dict[str, Any] = field(default_factory=lambda: {"version": 41, "knobs": dict(scene.KNOBS.values)})
    ended: anyio.Event = field(default_factory=anyio.Event)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/admin/{path:path}", self._answer, methods=["GET", "PATCH"])])

    async def _answer(self, request: Request) -> Response:
        path = request.path_params["path"]
        if path == "stream" and path not in self.answers:
            return StreamingResponse(self._told(), media_type="text/event-stream")
        found = self.knobs if (request.method, path) == ("GET", "knobs") else self.answers.get(path)
        if found is None:
            found = JSONResponse({"detail": "the database is locked"}, 503)
        return found if isinstance(found, Response) else JSONResponse(found)

    async def _told(self) -> AsyncIterator[str]:
        for event in self.stream:
            yield event
        await self.ended.wait()


@asynccontextmanager
async def faced(face: Face, *, silence_s: float = 20.0) -> AsyncIterator[Watching]:
    async with listening(face.app()) as address, watching(lambda: at(address, "t"), silence_s=silence_s) as eyes:
        try:
            yield eyes
        finally:
            face.ended.set()


async def live(eyes: Watching) -> None:
    await until(lambda: eyes.linked(Link.LIVE) and eyes.view.state is not None)


async def test_without_its_database_the_service_still_has_a_present() -> None:
    async with faced(Face()) as eyes:
        await live(eyes)
        assert eyes.view.knobs[LANE] == 6
        assert eyes.view.points[0][-1].used == scene.state().gpus[0].used_bytes
        with pytest.raises(SourceUnavailable, match="the database is locked"):
            await eyes.source.snapshots()


async def test_a_stream_that_says_nothing_is_given_up_and_tried_again() -> None:
    async with faced(Face(), silence_s=0.2) as eyes:
        await until(lambda: "says nothing" in eyes.view.link_why and eyes.linked(Link.RETRYING))
        await until(lambda: sum(1 for item in eyes.seen if item == eyes.seen[0]) > 1)


async def test_gaps_and_requests_are_told_and_unknown_kinds_are_passed_over() -> None:
    request = {"seq": 1, "request_id": "r", "at": 1.0, "run_id": 1, "lane": "image", "model": "m", "outcome": "ok"}
    request |= {"status": 200, "total_ms": 2.0}
    events = [told("request", request), told("gap", {"left_out": 3}), told("news-of-2030", {"a": 1}), state()]
    async with faced(Face(stream=events)) as eyes:
        await live(eyes)
        assert eyes.view.left_out == 3
        assert any(isinstance(item, RequestNews) for item in eyes.seen)


async def test_a_change_whose_news_were_lost_is_asked_for() -> None:
    face = Face(stream=[state(), state(43), state(43)])
    async with faced(face) as eyes:
        face.knobs = {"version": 43, "knobs": dict(scene.KNOBS.values) | {LANE: 2}}
        await until(lambda: eyes.view.knobs_version == 43)
        assert eyes.view.knobs[LANE] == 2


@pytest.mark.parametrize(
    "event",
    [told("gap", []), told("state", []), told("state", {"gpus": [{"index": "x"}]}), "event: knobs\ndata: {\n\n"],
    ids=["list", "no-object", "no-card", "no-json"],
)
async def test_news_that_are_not_understood_are_trouble_in_words(event: str) -> None:
    async with faced(Face(stream=[event])) as eyes:
        await until(lambda: eyes.linked(Link.RETRYING))
        assert eyes.view.link_why.removeprefix("http://127.0.0.1:").strip("0123456789: ")


TURNS = [
    (HTMLResponse("<h1>Bad Gateway</h1>", 502), "answers 502"),
    (HTMLResponse("<h1>Hello</h1>"), "not understood"),
    (JSONResponse([1, 2]), "not understood"),
    (JSONResponse({"version": 42, "changed": 7}), "not understood"),
    (JSONResponse({"detail": [{"loc": ["changes"]}], "problems": ["a"]}, 422), "loc"),
    (JSONResponse({"last_change": "x", "version": 50}, 409), "changed meanwhile by somebody: now v50"),
    (JSONResponse({"detail": "[/] no"}, 403), "[/] no"),
]
SNAPSHOTS = [
    HTMLResponse("<h1>Bad Gateway</h1>", 502),
    HTMLResponse("<h1>Hello</h1>"),
    JSONResponse([]),
    JSONResponse({"id": 1, "at": 0.0, "trigger": "a trigger of 2030"}),
]


async def test_whatever_answers_a_turn_it_is_told_and_nothing_is_raised() -> None:
    face = Face()
    async with faced(face) as eyes:
        await live(eyes)
        for answer, said in TURNS:
            face.answers = {"knobs": answer}
            turned = await eyes.source.turn({LANE: 7}, 41)
            assert turned.change is None
            assert said in turned.problem


async def test_a_snapshot_that_is_not_understood_is_unavailable() -> None:
    face = Face()
    async with faced(face) as eyes:
        await live(eyes)
        for answer in SNAPSHOTS:
            face.answers = {"snapshots/1": answer, "snapshots": answer}
            with pytest.raises(SourceUnavailable, match=r"not understood|answers 502"):
                await eyes.source.snapshot(1)
            with pytest.raises(SourceUnavailable, match=r"not understood|answers 502"):
                await eyes.source.snapshots()


async def test_a_service_that_does_not_answer_a_turn_is_told_by_name() -> None:
    class Slow(Face):
        async def _answer(self, request: Request) -> Response:
            if request.method == "PATCH":
                await self.ended.wait()
            return await super()._answer(request)

    face = Slow(stream=[state()] * 3)
    async with faced(face, silence_s=0.3) as eyes:
        await live(eyes)
        turned = await eyes.source.turn({LANE: 7}, 41)
        assert turned.problem.removeprefix("the service does not answer: ")


@pytest.mark.parametrize("url", ["::::", "http://127.0.0.1:99999", "http://[", "ftp://x", "http://127.0.0.1:1"])
async def test_an_address_that_is_none_is_told_in_words(url: str) -> None:
    async with watching(lambda: Found(admin_url=url, token=None, info=None, where="test")) as eyes:
        await until(lambda: eyes.linked(Link.RETRYING))
        assert eyes.view.link_why.startswith(url)
        assert eyes.view.link_why != f"{url}: "


async def test_a_face_that_is_no_stream_is_told_in_words() -> None:
    async with faced(Face(answers={"stream": HTMLResponse("hello")})) as eyes:
        await until(lambda: eyes.linked(Link.RETRYING))
        assert "text/event-stream" in eyes.view.link_why
