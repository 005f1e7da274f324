"""A living service over its admin API.

Rules: one stream at a time; when it breaks, or says nothing for `SILENCE_S`, the service is looked for again (it may
have come back on another port) with growing pauses up to `PAUSE_MOST_S`. httpx is imported when first needed: the
console starts without it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatch.storage import codec
from gpuwatch.storage.discovery import Found
from gpuwatch.storage.records import Event, KnobChange, KnobValue, OomSnapshot, RequestRecord
from gpuwatch.storage.state import SnapshotHead, State
from gpuwatch.tui.sources.base import SourceUnavailable, Turned
from gpuwatch.tui.view import (
    HISTORY_S,
    ChangeNews,
    EventNews,
    GapNews,
    KnobsNews,
    Link,
    LinkNews,
    News,
    PastNews,
    Point,
    RequestNews,
    SnapshotNews,
    StateNews,
)

if TYPE_CHECKING:
    import httpx

HZ: Final = 4
SILENCE_S: Final = 3.0
PAUSE_MOST_S: Final = 2.0
_PAUSE_FIRST_S: Final = 0.2
_POINTS: Final = 900
_CONFLICT: Final = 409


class LiveSource:
    """News of the service that ``find`` finds; ``actor`` is what changes are signed with."""

    def __init__(self, find: Callable[[], Found | None], *, actor: str, clock: Callable[[], float] = time.time) -> None:
        self._find = find
        self._actor = actor
        self._clock = clock
        self._client: httpx.AsyncClient | None = None
        self._closed = False

    async def news(self) -> AsyncIterator[News]:
        """Give news until closed."""
        pause_s = _PAUSE_FIRST_S
        while not self._closed:
            why = "none found"
            try:
                found = await asyncio.to_thread(self._find)
            except Exception as trouble:  # noqa: BLE001 - whatever keeps it from being found is shown, and tried again
                found, why = None, str(trouble) or type(trouble).__name__
            if found is not None:
                yield LinkNews(Link.CONNECTING, f"connecting to {found.admin_url}", found.where)
                try:
                    async for item in self._connected(found):
                        pause_s = _PAUSE_FIRST_S
                        yield item
                    why = f"{found.admin_url} has ended the stream"
                except _troubles() as trouble:
                    why = _why(found, trouble)
            yield LinkNews(Link.RETRYING, why)
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MOST_S, pause_s * 2)

    async def _connected(self, found: Found) -> AsyncIterator[News]:
        import httpx  # noqa: PLC0415 - the console starts without it
        from httpx_sse import aconnect_sse  # noqa: PLC0415 - the same

        headers = {"X-Gpuwatch-Actor": self._actor.encode("ascii", "replace").decode()}
        if found.token is not None:
            headers["Authorization"] = f"Bearer {found.token}"
        timeout = httpx.Timeout(5.0, read=SILENCE_S)
        async with httpx.AsyncClient(
            base_url=found.admin_url, headers=headers, timeout=timeout, trust_env=False
        ) as client:
            for item in await _past(client):
                yield item
            self._client = client
            try:
                async with aconnect_sse(client, "GET", "/admin/stream", params={"hz": HZ}) as stream:
                    stream.response.raise_for_status()
                    yield LinkNews(Link.LIVE, where=found.where)
                    async for event in stream.aiter_sse():
                        news = _read(event.event, event.data)
                        if news is not None:
                            yield news
            finally:
                self._client = None

    async def turn(self, changes: Mapping[str, KnobValue], if_version: int) -> Turned:
        """Turn knobs, if they are still at ``if_version``."""
        try:
            answer = await self._ask("PATCH", "/admin/knobs", json={"changes": dict(changes), "if_version": if_version})
        except SourceUnavailable as trouble:
            return Turned(problem=str(trouble))
        data = answer.json()
        if answer.status_code == _CONFLICT:
            last = data.get("last_change") or {}
            return Turned(problem=f"changed meanwhile by {last.get('actor', 'somebody')}: now v{data.get('version')}")
        if answer.is_error:
            problems = data.get("problems") or {}
            return Turned(problem="; ".join(str(p) for p in problems.values()) or str(data.get("detail", answer)))
        change = KnobChange(
            version=data["version"],
            at=self._clock(),
            actor=self._actor,
            changes={key: (before, after) for key, (before, after) in data["changed"].items()},
        )
        return Turned(change=change, warnings=tuple(data.get("warnings", ())))

    async def snapshots(self) -> tuple[SnapshotHead, ...]:
        """List the snapshots, newest first. Raises `SourceUnavailable`."""
        data = await self._get("/admin/snapshots", limit=200)
        return tuple(codec.build(SnapshotHead, head) for head in data["snapshots"])

    async def snapshot(self, number: int) -> OomSnapshot:
        """Give one whole snapshot. Raises `SourceUnavailable`."""
        return codec.build(OomSnapshot, await self._get(f"/admin/snapshots/{number}"))

    async def close(self) -> None:
        """Look for a service no more."""
        self._closed = True

    async def _get(self, path: str, **params: int) -> Any:  # noqa: ANN401 - JSON
        answer = await self._ask("GET", path, params=params)
        if answer.is_error:
            raise SourceUnavailable(str(answer.json().get("detail", answer)))
        return answer.json()

    async def _ask(self, method: str, path: str, **more: Any) -> "httpx.Response":  # noqa: ANN401 - httpx's own
        client = self._client
        if client is None:
            raise SourceUnavailable("not connected")
        try:
            return await client.request(method, path, **more)
        except _troubles() as trouble:
            raise SourceUnavailable(f"the service does not answer: {trouble or type(trouble).__name__}") from None


async def _past(client: "httpx.AsyncClient") -> tuple[News, ...]:
    """Ask once for what the stream does not tell: the knobs, and what was before."""
    knobs = (await client.get("/admin/knobs")).raise_for_status().json()
    first: list[News] = [KnobsNews(knobs["knobs"], knobs["version"])]
    with contextlib.suppress(*_troubles()):  # without its database the service still has a present
        history = (await client.get("/admin/knobs/history")).raise_for_status().json()["changes"]
        snapshots = (await client.get("/admin/snapshots", params={"limit": 200})).raise_for_status().json()["snapshots"]
        events = (await client.get("/admin/events", params={"limit": 50})).raise_for_status().json()["events"]
        state = codec.build(State, (await client.get("/admin/state")).raise_for_status().json())
        since = {"since": state.at - HISTORY_S, "until": state.at, "points": _POINTS}
        points: dict[int, tuple[Point, ...]] = {}
        for gpu in state.gpus:
            answer = await client.get("/admin/samples", params={**since, "gpu": gpu.index})
            points[gpu.index] = tuple(_point(bucket) for bucket in answer.raise_for_status().json()["buckets"])
        first.append(
            PastNews(
                points=points,
                snapshots=tuple(codec.build(SnapshotHead, head) for head in snapshots),
                changes=tuple(codec.build(KnobChange, change) for change in history),
                events=tuple(codec.build(Event, event) for event in events),
            )
        )
    return tuple(first)


def _point(bucket: Mapping[str, Any]) -> Point:
    names = ("used", "reserved", "allocated", "promised", "foreign")
    return Point(bucket["at"], *(bucket.get(f"{name}_bytes_max") for name in names))


def _read(kind: str, text: str) -> News | None:  # noqa: PLR0911 - one way out a kind of news
    """Make news of one event; kinds that this console does not know are passed over."""
    data = codec.loads(text)
    match kind:
        case "state":
            return StateNews(codec.build(State, data))
        case "event":
            return EventNews(codec.build(Event, data))
        case "request":
            return RequestNews(codec.build(RequestRecord, data))
        case "snapshot":
            return SnapshotNews(codec.build(SnapshotHead, data))
        case "knobs":
            return ChangeNews(codec.build(KnobChange, data))
        case "gap":
            return GapNews(int(data["left_out"]))
        case _:
            return None


def _troubles() -> tuple[type[Exception], ...]:
    """List what a connection may raise; known only once httpx is loaded."""
    import httpx  # noqa: PLC0415 - the console starts without it
    from httpx_sse import SSEError  # noqa: PLC0415 - the same

    return (httpx.HTTPError, SSEError, msgspec.MsgspecError, OSError, KeyError, ValueError)


def _why(found: Found, trouble: Exception) -> str:
    import httpx  # noqa: PLC0415 - the console starts without it

    if isinstance(trouble, httpx.HTTPStatusError):
        if trouble.response.status_code in {401, 403}:
            return f"{found.admin_url} refuses the token" if found.token else f"no token for {found.admin_url}"
        return f"{found.admin_url} answers {trouble.response.status_code}"
    if isinstance(trouble, httpx.ReadTimeout):
        return f"{found.admin_url} says nothing"
    return f"{found.admin_url}: {trouble or type(trouble).__name__}"
