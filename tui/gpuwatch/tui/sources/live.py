"""A living service over its admin API.

Rules: one stream at a time; when it breaks, or says nothing for ``silence_s``, the service is looked for again (it may
have come back on another port) with growing pauses up to `PAUSE_MOST_S`. What is at the address need be no service of
ours: an answer that is not understood is trouble told in words, like any other. httpx is imported when first needed:
the console starts without it.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

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

T = TypeVar("T")

HZ: Final = 4
SILENCE_S: Final = 3.0
PAUSE_MOST_S: Final = 2.0
_PAUSE_FIRST_S: Final = 0.2
_POINTS: Final = 900
_CONFLICT: Final = 409


class LiveSource:
    """News of the service that ``find`` finds; ``actor`` is what changes are signed with."""

    def __init__(
        self,
        find: Callable[[], Found | None],
        *,
        actor: str,
        clock: Callable[[], float] = time.time,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._find = find
        self._actor = actor
        self._clock = clock
        self._silence_s = silence_s
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
                except Exception as trouble:  # noqa: BLE001 - whatever is at the address, the console outlives it
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
        timeout = httpx.Timeout(5.0, read=self._silence_s)
        async with httpx.AsyncClient(
            base_url=found.admin_url, headers=headers, timeout=timeout, trust_env=False
        ) as client:
            knobs = await _knobs(client)
            version = knobs.version
            yield knobs
            past = await _past(client)
            if past is not None:
                yield past
            self._client = client
            try:
                async with aconnect_sse(client, "GET", "/admin/stream", params={"hz": HZ}) as stream:
                    stream.response.raise_for_status()
                    yield LinkNews(Link.LIVE, where=found.where)
                    async for event in stream.aiter_sse():
                        news = _read(event.event, event.data)
                        if news is None:
                            continue
                        yield news
                        if isinstance(news, ChangeNews) and news.change.version == version + 1:
                            version += 1
                        elif isinstance(news, StateNews) and news.state.knobs_version != version:
                            # A change whose news were lost (or are on their way): without it every turn is too late.
                            knobs = await _knobs(client)
                            version = knobs.version
                            yield knobs
            finally:
                self._client = None

    async def turn(self, changes: Mapping[str, KnobValue], if_version: int) -> Turned:
        """Turn knobs, if they are still at ``if_version``."""
        try:
            answer = await self._ask("PATCH", "/admin/knobs", json={"changes": dict(changes), "if_version": if_version})
        except SourceUnavailable as trouble:
            return Turned(problem=str(trouble))
        data = _data(answer)
        if answer.status_code == _CONFLICT:
            last = data.get("last_change")
            who = last.get("actor") if isinstance(last, dict) else None
            return Turned(problem=f"changed meanwhile by {who or 'somebody'}: now v{data.get('version')}")
        if answer.is_error:
            problems = data.get("problems")
            told = problems.values() if isinstance(problems, dict) else ()
            return Turned(problem="; ".join(str(problem) for problem in told) or _detail(answer))
        made = {
            "version": data.get("version"),
            "at": self._clock(),
            "actor": self._actor,
            "changes": data.get("changed"),
        }
        try:
            return Turned(change=codec.build(KnobChange, made), warnings=tuple(data.get("warnings", ())))
        except msgspec.ValidationError as trouble:
            return Turned(problem=f"the answer is not understood: {trouble}")

    async def snapshots(self) -> tuple[SnapshotHead, ...]:
        """List the snapshots, newest first. Raises `SourceUnavailable`."""
        return _built(_Heads, await self._get("/admin/snapshots", limit=200)).snapshots

    async def snapshot(self, number: int) -> OomSnapshot:
        """Give one whole snapshot. Raises `SourceUnavailable`."""
        return _built(OomSnapshot, await self._get(f"/admin/snapshots/{number}"))

    async def close(self) -> None:
        """Look for a service no more."""
        self._closed = True

    async def _get(self, path: str, **params: int) -> Mapping[str, Any]:
        answer = await self._ask("GET", path, params=params)
        if answer.is_error:
            raise SourceUnavailable(_detail(answer))
        return _data(answer)

    async def _ask(self, method: str, path: str, **more: Any) -> "httpx.Response":  # noqa: ANN401 - httpx's own
        client = self._client
        if client is None:
            raise SourceUnavailable("not connected")
        try:
            return await client.request(method, path, **more)
        except _troubles() as trouble:
            raise SourceUnavailable(f"the service does not answer: {str(trouble) or type(trouble).__name__}") from None


@dataclass(frozen=True, slots=True)
class _Heads:
    """The answer of ``GET /admin/snapshots``."""

    snapshots: tuple[SnapshotHead, ...]


def _built(kind: type[T], data: Mapping[str, Any]) -> T:
    try:
        return codec.build(kind, data)
    except msgspec.ValidationError as trouble:
        raise SourceUnavailable(f"the answer is not understood: {trouble}") from None


def _data(answer: "httpx.Response") -> Mapping[str, Any]:
    """Give the JSON object in an answer, an empty one where there is none: a proxy answers in HTML."""
    try:
        data = answer.json()
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _detail(answer: "httpx.Response") -> str:
    return str(_data(answer).get("detail") or f"the service answers {answer.status_code}")


async def _knobs(client: "httpx.AsyncClient") -> KnobsNews:
    knobs = (await client.get("/admin/knobs")).raise_for_status().json()
    return KnobsNews(knobs["knobs"], knobs["version"])


async def _past(client: "httpx.AsyncClient") -> PastNews | None:
    """Ask once for what the stream does not tell: what was before; ``None`` where the database does not answer."""
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
        return PastNews(
            points=points,
            snapshots=tuple(codec.build(SnapshotHead, head) for head in snapshots),
            changes=tuple(codec.build(KnobChange, change) for change in history),
            events=tuple(codec.build(Event, event) for event in events),
        )
    return None


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

    shape = (AttributeError, LookupError, TypeError, ValueError)  # JSON of another shape than ours
    return (httpx.HTTPError, SSEError, msgspec.MsgspecError, OSError, *shape)


def _why(found: Found, trouble: Exception) -> str:
    import httpx  # noqa: PLC0415 - the console starts without it

    if isinstance(trouble, httpx.HTTPStatusError):
        if trouble.response.status_code in {401, 403}:
            return f"{found.admin_url} refuses the token" if found.token else f"no token for {found.admin_url}"
        return f"{found.admin_url} answers {trouble.response.status_code}"
    if isinstance(trouble, httpx.ReadTimeout):
        return f"{found.admin_url} says nothing"
    return f"{found.admin_url}: {str(trouble) or type(trouble).__name__}"
