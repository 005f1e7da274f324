"""``GET /admin/stream``: the state at a steady rate, and news as they happen, as server-sent events.

Rules: a reader that is slow gets the latest state and a count of the news it missed; nothing is queued for it without
bound. The stream ends when the service stops, so that it holds up no shutdown.
"""

from collections.abc import AsyncIterator
from typing import Final

from fastapi.sse import ServerSentEvent

from gpuwatch.service.runtime import Runtime
from gpuwatch.storage import codec

_LOOK_S: Final = 0.5
"""How often a stream looks whether the service stops, however rarely its reader wants the state."""


async def stream(runtime: Runtime, hz: float, last_id: int | None) -> AsyncIterator[ServerSentEvent]:
    """Give the events: ``state`` at ``hz``, ``event``, ``request``, ``snapshot``, ``knobs``, and ``gap``."""
    period_s = 1 / hz
    watcher = runtime.hub.join(last_id)
    clock = runtime.clock
    due_s = clock()
    try:
        while not runtime.stopping.is_set():
            if clock() >= due_s:
                yield ServerSentEvent(event="state", raw_data=codec.dumps(runtime.state()))
                # The next one counts from now: a reader that was slow gets no backlog of old states.
                due_s = max(due_s + period_s, clock())
            news, left_out = watcher.take()
            if left_out:
                yield ServerSentEvent(event="gap", raw_data=codec.dumps({"left_out": left_out}))
            for item in news:
                yield ServerSentEvent(event=item.kind, id=str(item.id), raw_data=item.text)
            await watcher.wait(min(_LOOK_S, max(0.0, due_s - clock())))
    finally:
        runtime.hub.leave(watcher)
