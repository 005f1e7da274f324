"""Turning knobs: all or nothing, one version a change, in the journal before it is acknowledged.

Rules: on the event loop's thread; turns come one after the other. The journal's disk is waited for at most
`JOURNAL_WAIT_S`: a disk that is full or hangs stops no knob, and the answer says that the change will not outlive a
restart. A knob turned at run time wins over the configuration file at the next start.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuwatch.service.engines.threads import ThreadEngine
from gpuwatch.storage.errors import JournalUnwritable, KnobsInvalid
from gpuwatch.storage.journal import Journal, overrides
from gpuwatch.storage.knobs import Knobs
from gpuwatch.storage.records import KnobChange, KnobValue
from gpuwatch.storage.state import Origin

JOURNAL_WAIT_S: Final = 1.0
_log = logging.getLogger(__name__)


class VersionConflict(Exception):
    """Somebody else turned a knob in between. ``version`` is the one in force, ``last`` what made it."""

    def __init__(self, asked: int, version: int, last: KnobChange | None) -> None:
        who = "" if last is None else f" (by {last.actor})"
        super().__init__(f"the knobs are at version {version}{who}, not {asked}")
        self.version = version
        self.last = last


@dataclass(frozen=True, slots=True)
class Turned:
    """A change that is in force, with what the operator should know of it."""

    change: KnobChange
    warnings: tuple[str, ...]


class KnobDesk:
    """The knobs in force. ``apply`` puts new ones to work, ``keep`` stores a change."""

    def __init__(
        self,
        *,
        lanes: Sequence[str],
        from_file: Mapping[str, KnobValue],
        journal: Journal,
        past: Sequence[KnobChange],
        engine: ThreadEngine,
        wall: Callable[[], float],
    ) -> None:
        start = Knobs.defaults(lanes).turned(from_file)
        self._from_file = frozenset(from_file)
        self._journal = journal
        self._engine = engine
        self._wall = wall
        self._turning = asyncio.Lock()
        # By version: those who waited for a slow disk together may stand in the file in another order.
        past = sorted(past, key=lambda change: change.version)
        self._history = past
        # An override for a lane that is gone, or out of a range that has changed, must not keep us from starting.
        self._turned: set[str] = set()
        self.knobs = start
        for key, value in overrides(past).items():
            try:
                self.knobs = self.knobs.turned({key: value})
                self._turned.add(key)
            except KnobsInvalid as stale:
                _log.warning("an earlier change is passed over: %s", stale)
        self.version = past[-1].version if past else 0

    @property
    def history(self) -> tuple[KnobChange, ...]:
        """All changes, newest first."""
        return tuple(reversed(self._history))

    @property
    def last(self) -> KnobChange | None:
        """The newest change."""
        return self._history[-1] if self._history else None

    def origin(self, key: str) -> Origin:
        """Tell where a knob's value comes from."""
        if key in self._turned:
            return Origin.OVERRIDE
        return Origin.FILE if key in self._from_file else Origin.DEFAULT

    async def turn(
        self,
        changes: Mapping[str, object],
        *,
        actor: str,
        apply: Callable[[KnobChange], Sequence[str]],
        if_version: int | None = None,
        note: str | None = None,
    ) -> Turned:
        """Turn knobs. ``apply`` takes the change up and gives its warnings.

        Raises `KnobsInvalid` with every bad key, or `VersionConflict`; nothing has changed then.
        """
        async with self._turning:
            if if_version is not None and if_version != self.version:
                raise VersionConflict(if_version, self.version, self.last)
            after = self.knobs.turned(changes)
            change = KnobChange(
                version=self.version + 1,
                at=self._wall(),
                actor=actor,
                note=note,
                changes={key: (self.knobs.values[key], after.values[key]) for key in changes},
            )
            trouble = await self._written(change)
            self.knobs = after
            self.version = change.version
            self._turned.update(changes)
            self._history.append(change)
            warnings = [*apply(change)]
            if trouble is not None:
                warnings.append(f"in force, but a restart may forget it: {trouble}")
            return Turned(change, tuple(warnings))

    async def _written(self, change: KnobChange) -> str | None:
        """Append to the journal; give what went wrong."""
        writing = asyncio.ensure_future(self._engine.call(lambda: self._journal.append(change)))
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(JOURNAL_WAIT_S):
                await asyncio.shield(writing)
        except TimeoutError:
            return f"the journal did not answer within {JOURNAL_WAIT_S:g} s"
        except JournalUnwritable as error:
            return str(error)
        return None
