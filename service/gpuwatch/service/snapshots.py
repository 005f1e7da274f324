"""Snapshots: what was true just before, or at, an out-of-memory or a near-miss.

Rules: called on the event loop's thread; figures of an out-of-memory were read on the allocating thread before its
stack unwound. A snapshot holds plain data only, never a live object. A refusal waits for its snapshot's commit at most
`COMMIT_WAIT_S`; the disk is never waited for longer. Sizes are bytes.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from gpuwatch.service.core.diagnosis import diagnose
from gpuwatch.service.core.neighbours import swing
from gpuwatch.service.gpu.base import OutOfMemory
from gpuwatch.service.requests import Entry
from gpuwatch.storage import codec
from gpuwatch.storage.knobs import Knobs
from gpuwatch.storage.records import OomSnapshot, ProcessUse, Reading, Trigger
from gpuwatch.storage.state import InFlight, LaneState, ModelState, SnapshotHead

COMMIT_WAIT_S: Final = 0.25
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What surrounds a snapshot, as the runtime knows it at that moment."""

    at: float
    run_id: int
    knobs: Knobs
    knobs_version: int
    processes: tuple[ProcessUse, ...]
    in_flight: tuple[InFlight, ...]
    lanes: tuple[LaneState, ...]
    models: tuple[ModelState, ...]
    history: tuple[Mapping[str, Any], ...]
    capacity_bytes: int
    promised_bytes: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot of a request's out-of-memory: its id and the figures of the allocation that failed."""

    snapshot_id: int
    requested_bytes: int
    free_bytes: int
    stored: "Future[None]"


class Snapshots:
    """Takes snapshots. ``scene`` describes a card's surroundings, ``put`` stores and tells when it is committed."""

    def __init__(
        self,
        *,
        first_id: int,
        scene: Callable[[int], Scene],
        put: Callable[[OomSnapshot], "Future[None]"],
        tell: Callable[[SnapshotHead], None],
        last: SnapshotHead | None = None,
        commit_wait_s: float = COMMIT_WAIT_S,
    ) -> None:
        self._next = first_id
        self._scene = scene
        self._put = put
        self._tell = tell
        self._commit_wait_s = commit_wait_s
        self._by_victim: dict[int, Taken] = {}
        self._taken_at: dict[tuple[int, Trigger], float] = {}
        self.last = last
        self.left_out = 0

    def out_of_memory(self, figures: OutOfMemory, victim: Entry | None) -> None:
        """Take the snapshot of an allocation that failed; ``victim`` is the request whose it was."""
        snapshot, stored = self._take(
            Trigger.OUT_OF_MEMORY,
            figures.reading,
            victim=victim,
            requested_bytes=figures.requested_bytes,
            free_bytes=figures.free_bytes,
        )
        if victim is not None:
            self._by_victim[victim.seq] = Taken(snapshot.id, figures.requested_bytes, figures.free_bytes, stored)

    def near_miss(self, trigger: Trigger, reading: Reading, interval_s: float) -> OomSnapshot | None:
        """Take one, unless the card had one of that trigger in the last ``interval_s``: then it is counted."""
        last = self._taken_at.get((reading.gpu, trigger))
        if last is not None and reading.at - last < interval_s:
            self.left_out += 1
            return None
        self._taken_at[reading.gpu, trigger] = reading.at
        return self._take(trigger, reading)[0]

    async def committed(self, victim: Entry) -> Taken | None:
        """Wait until the victim's snapshot is stored, ``commit_wait_s`` at most; ``None`` where none was taken."""
        taken = self._by_victim.pop(victim.seq, None)
        if taken is not None:
            stored = asyncio.wrap_future(taken.stored)
            stored.add_done_callback(lambda done: done.cancelled() or done.exception())  # its losses are counted
            await asyncio.wait([stored], timeout=self._commit_wait_s)
        return taken

    @property
    def kept(self) -> int:
        """Count the victims that were not asked for or forgotten yet."""
        return len(self._by_victim)

    def forget(self, victim: Entry) -> None:
        """Let go of what was kept for a victim that went on: its model caught the error, or its client has left."""
        self._by_victim.pop(victim.seq, None)

    def _take(
        self,
        trigger: Trigger,
        reading: Reading,
        *,
        victim: Entry | None = None,
        requested_bytes: int | None = None,
        free_bytes: int | None = None,
    ) -> tuple[OomSnapshot, "Future[None]"]:
        scene = self._scene(reading.gpu)
        change = _foreign_change(scene.history, reading)
        found = diagnose(
            trigger=trigger,
            reading=reading,
            high_ratio=scene.knobs.number("watermark.high"),
            processes=scene.processes,
            foreign_change_bytes=change,
            requested_bytes=requested_bytes,
            free_bytes=free_bytes,
        )
        snapshot = OomSnapshot(
            id=self._next,
            at=reading.at,
            run_id=scene.run_id,
            gpu=reading.gpu,
            trigger=trigger,
            cause=found.cause,
            headline=found.headline,
            confidence=found.confidence,
            request_id=None if victim is None else victim.request_id,
            requested_bytes=requested_bytes,
            used_bytes=reading.used_bytes,
            total_bytes=reading.total_bytes,
            reserved_bytes=reading.reserved_bytes,
            allocated_bytes=reading.allocated_bytes,
            foreign_bytes=reading.foreign_bytes,
            foreign_change_bytes=change,
            knobs_version=scene.knobs_version,
            payload=_payload(scene, reading, victim, requested_bytes, free_bytes),
        )
        self._next += 1
        self.last = SnapshotHead.of(snapshot)
        who = "" if victim is None else f" (request {victim.request_id})"
        log = _log.error if trigger is Trigger.OUT_OF_MEMORY else _log.warning
        log("snapshot %d%s: %s", snapshot.id, who, snapshot.headline)
        stored = self._put(snapshot)
        self._tell(self.last)
        return snapshot, stored


def _foreign_change(history: tuple[Mapping[str, Any], ...], reading: Reading) -> int | None:
    """How the neighbours changed within the history; ``None`` without one."""
    return swing((int(sample["foreign_bytes"]) for sample in history), reading.foreign_bytes)


def _payload(
    scene: Scene, reading: Reading, victim: Entry | None, requested_bytes: int | None, free_bytes: int | None
) -> dict[str, Any]:
    seen = codec.plain(reading)
    seen |= {
        "foreign_bytes": reading.foreign_bytes,
        "pressure_bytes": reading.pressure_bytes,
        "reclaimable_bytes": reading.reclaimable_bytes,
        "capacity_bytes": scene.capacity_bytes,
        "promised_bytes": scene.promised_bytes,
    }
    seen.pop("processes")
    error = None
    if requested_bytes is not None:
        error = {"type": "OutOfMemoryError", "requested_bytes": requested_bytes, "free_bytes": free_bytes}
    return {
        "reading": seen,
        "processes": codec.plain(scene.processes),
        "in_flight": codec.plain(scene.in_flight),
        "waiting": [
            {
                "lane": lane.name,
                "waiting": lane.waiting,
                "head_price_bytes": lane.head_price_bytes,
                "oldest_wait_ms": lane.oldest_wait_ms,
                "blocked_by": lane.blocked_by,
            }
            for lane in scene.lanes
            if lane.waiting
        ],
        "victim": None if victim is None else {"id": victim.seq, "dims": codec.plain(victim.dims)},
        "models": codec.plain(scene.models),
        "knobs": dict(scene.knobs.values),
        "history": list(scene.history),
        "error": error,
    }
