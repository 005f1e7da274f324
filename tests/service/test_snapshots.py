"""Snapshots: plain data of the moment, ids that grow, near-misses that are counted, and nobody waits for the disk."""

from concurrent.futures import Future

import pytest
from service_fakes import MIB, reading_of, until
from service_rigs import scene_of

from gpuwatch.service.gpu.base import OutOfMemory
from gpuwatch.service.requests import Entry
from gpuwatch.service.snapshots import Scene, Snapshots
from gpuwatch.storage import codec
from gpuwatch.storage.errors import WriterClosed
from gpuwatch.storage.records import BlockedBy, Cause, OomSnapshot, ProcessUse, Trigger
from gpuwatch.storage.state import LaneState, SnapshotHead

NEIGHBOUR = ProcessUse(pid=9, name="train", used_bytes=500 * MIB, change_60s_bytes=400 * MIB)


class Album:
    def __init__(self, scene: Scene | None = None) -> None:
        self.stored: list[OomSnapshot] = []
        self.told: list[SnapshotHead] = []
        self.futures: list[Future[None]] = []
        self.snapshots = Snapshots(
            first_id=41, scene=lambda _gpu: scene or scene_of(), put=self._put, tell=self.told.append
        )

    def _put(self, snapshot: OomSnapshot) -> "Future[None]":
        self.stored.append(snapshot)
        self.futures.append(Future())
        return self.futures[-1]


def victim_of(seq: int = 7) -> Entry:
    return Entry(seq=seq, request_id="mine", at=0.0, began_s=0.0, lane="image", model="m", dims={"pixels": 9})


def figures_of(requested_bytes: int = 300 * MIB, free_bytes: int = 10 * MIB) -> OutOfMemory:
    reading = reading_of(used_bytes=900 * MIB)
    return OutOfMemory(gpu=0, requested_bytes=requested_bytes, free_bytes=free_bytes, reading=reading)


def test_an_out_of_memory_is_written_down_with_its_surroundings() -> None:
    lanes = (
        LaneState(name="idle"),
        LaneState(name="image", waiting=3, head_price_bytes=5, oldest_wait_ms=1.5, blocked_by=BlockedBy.BYTES),
    )
    history = ({"at": 0.0, "foreign_bytes": 400 * MIB},)
    album = Album(scene_of(processes=(NEIGHBOUR,), lanes=lanes, history=history, capacity_bytes=1, promised_bytes=2))
    album.snapshots.out_of_memory(figures_of(), victim_of())
    (snapshot,) = album.stored
    assert (snapshot.id, snapshot.trigger, snapshot.request_id) == (41, Trigger.OUT_OF_MEMORY, "mine")
    assert (snapshot.cause, snapshot.foreign_change_bytes) == (Cause.OTHER_PROCESS, 500 * MIB)
    assert (snapshot.requested_bytes, snapshot.used_bytes, snapshot.knobs_version) == (300 * MIB, 900 * MIB, 3)
    payload = snapshot.payload
    assert payload["victim"] == {"id": 7, "dims": {"pixels": 9}}
    assert payload["waiting"] == [
        {"lane": "image", "waiting": 3, "head_price_bytes": 5, "oldest_wait_ms": 1.5, "blocked_by": "bytes"}
    ]
    assert payload["processes"][0]["name"] == "train"
    assert payload["reading"]["capacity_bytes"] == 1
    assert payload["history"] == list(history)
    assert payload["knobs"]["watermark.high"] == 0.85
    assert codec.loads(codec.dumps(payload)) == payload, "plain data only"
    assert album.told == [album.snapshots.last]
    assert album.told[0].headline == snapshot.headline


def test_one_without_a_victim_is_taken_too_and_keeps_nothing() -> None:
    album = Album()
    album.snapshots.out_of_memory(figures_of(), None)
    assert album.stored[0].request_id is None
    assert album.stored[0].payload["victim"] is None
    assert album.snapshots.kept == 0


def test_without_a_history_no_change_is_claimed() -> None:
    album = Album(scene_of(processes=(NEIGHBOUR,)))
    album.snapshots.out_of_memory(figures_of(), victim_of())
    assert (album.stored[0].foreign_change_bytes, album.stored[0].cause) == (None, Cause.UNKNOWN)


def test_near_misses_of_one_trigger_and_card_are_spaced_and_those_between_are_counted() -> None:
    album = Album()
    times = (0.0, 59.9, 60.0, 61.0)
    taken = [
        album.snapshots.near_miss(Trigger.WATERMARK, codec.build(type(reading_of()), {**plain(), "at": at}), 60.0)
        for at in times
    ]
    assert [one is not None for one in taken] == [True, False, True, False]
    assert album.snapshots.left_out == 2
    assert album.snapshots.near_miss(Trigger.BREAKER, reading_of(), 60.0) is not None
    assert album.snapshots.near_miss(Trigger.WATERMARK, reading_of(1), 60.0) is not None
    assert [snapshot.id for snapshot in album.stored] == [41, 42, 43, 44]


def plain() -> dict[str, object]:
    found: dict[str, object] = codec.plain(reading_of())
    return found


@pytest.mark.anyio
async def test_committed_gives_the_figures_once_and_waits_no_longer_than_its_time() -> None:
    album = Album()
    album.snapshots.out_of_memory(figures_of(), victim_of())
    taken = await album.snapshots.committed(victim_of())
    assert taken is not None
    assert (taken.snapshot_id, taken.requested_bytes, taken.free_bytes) == (41, 300 * MIB, 10 * MIB)
    assert not album.futures[0].done()
    assert await album.snapshots.committed(victim_of()) is None
    album.futures[0].set_result(None)


@pytest.mark.anyio
async def test_a_snapshot_that_is_lost_is_no_error_of_the_request() -> None:
    album = Album()
    album.snapshots.out_of_memory(figures_of(), victim_of())
    album.futures[0].set_exception(WriterClosed("the writer has ended"))
    assert await album.snapshots.committed(victim_of()) is not None


@pytest.mark.anyio
async def test_the_last_of_several_is_the_one_a_victim_is_told_of() -> None:
    album = Album()
    for _ in range(3):  # a model that tries again by itself
        album.snapshots.out_of_memory(figures_of(), victim_of())
    for future in album.futures:
        future.set_result(None)
    taken = await album.snapshots.committed(victim_of())
    assert taken is not None
    assert taken.snapshot_id == 43
    assert album.snapshots.kept == 0
    album.snapshots.out_of_memory(figures_of(), victim_of())
    album.snapshots.forget(victim_of())
    album.snapshots.forget(victim_of())
    await until(lambda: album.snapshots.kept == 0)
