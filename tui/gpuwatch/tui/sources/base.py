"""What the console asks of a source, wherever its news come from: one protocol for all of them."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpuwatch.storage.records import KnobChange, KnobValue, OomSnapshot
from gpuwatch.storage.state import SnapshotHead
from gpuwatch.tui.view import News


@dataclass(frozen=True, slots=True, kw_only=True)
class Turned:
    """What became of a change: ``change`` where it was made, else ``problem`` in words for a person."""

    change: KnobChange | None = None
    warnings: tuple[str, ...] = ()
    problem: str = ""


class SourceUnavailable(Exception):
    """The source cannot answer now; the message says why."""


class Source(Protocol):
    """Where news come from and changes go."""

    def news(self) -> AsyncIterator[News]:
        """Give news until closed. Trouble is news, too: this raises nothing."""

    async def turn(self, changes: Mapping[str, KnobValue], if_version: int) -> Turned:
        """Turn knobs, if they are still at ``if_version``. Raises nothing: what went wrong is in the answer."""

    async def snapshots(self) -> tuple[SnapshotHead, ...]:
        """List the snapshots, newest first. Raises `SourceUnavailable`."""

    async def snapshot(self, number: int) -> OomSnapshot:
        """Give one whole snapshot. Raises `SourceUnavailable`."""

    async def close(self) -> None:
        """Let go of what is held."""
