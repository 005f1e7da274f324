"""What happened, in plain sentences: each event is stored, logged and told to those who watch."""

import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuwatch.storage.records import Event, Severity

KEEP: Final = 200
_LEVELS: Final = {Severity.INFO: logging.INFO, Severity.WARNING: logging.WARNING, Severity.ERROR: logging.ERROR}
_log = logging.getLogger(__name__)


class Events:
    """The events of one run; on the event loop's thread."""

    def __init__(
        self,
        *,
        run_id: int,
        first_id: int,
        wall: Callable[[], float],
        put: Callable[[Event], None],
        tell: Callable[[Event], None],
    ) -> None:
        self._run_id = run_id
        self._next = first_id
        self._wall = wall
        self._put = put
        self._tell = tell
        self.recent: deque[Event] = deque(maxlen=KEEP)

    def happened(
        self, kind: str, message: str, *, severity: Severity = Severity.INFO, data: Mapping[str, Any] | None = None
    ) -> Event:
        """Note one event."""
        event = Event(
            id=self._next,
            at=self._wall(),
            run_id=self._run_id,
            kind=kind,
            severity=severity,
            message=message,
            data=dict(data or {}),
        )
        self._next += 1
        self.recent.append(event)
        _log.log(_LEVELS[severity], "%s: %s", kind, message)
        self._put(event)
        self._tell(event)
        return event
