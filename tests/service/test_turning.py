"""Turning knobs: all or nothing, one version a change, durable before it is acknowledged, held up by no disk."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from service_fakes import until
from service_rigs import service

from gpuwatch.service.engines.threads import ThreadEngine
from gpuwatch.service.turning import KnobDesk, Turned, VersionConflict
from gpuwatch.storage.errors import KnobsInvalid
from gpuwatch.storage.journal import Journal
from gpuwatch.storage.records import KnobChange, KnobValue
from gpuwatch.storage.state import Origin

pytestmark = pytest.mark.anyio
LIMIT = "lanes.default.concurrency"


def desk_of(
    path: Path, *past: KnobChange, engine: ThreadEngine | None = None, file: Mapping[str, KnobValue] | None = None
) -> KnobDesk:
    return KnobDesk(
        lanes=["default"],
        from_file=file or {},
        journal=Journal(path / "knobs.journal"),
        past=past,
        engine=engine or ThreadEngine("test"),
        wall=lambda: 5.0,
    )


def change_of(version: int, **changes: tuple[KnobValue, KnobValue]) -> KnobChange:
    named = {key.replace("__", "."): pair for key, pair in changes.items()}
    return KnobChange(version=version, at=1.0, actor="before", changes=named)


async def turned(desk: KnobDesk, changes: Mapping[str, object], **more: Any) -> Turned:  # noqa: ANN401 - of `turn`
    applied: list[KnobChange] = []

    def apply(change: KnobChange) -> Sequence[str]:
        assert desk.knobs.values[next(iter(changes))] == change.changes[next(iter(changes))][1]
        applied.append(change)
        return ("mind the gap",)

    result = await desk.turn(changes, actor="me", apply=apply, **more)
    assert applied == [result.change]
    return result


async def test_a_turn_is_in_the_journal_before_it_is_in_force_and_acknowledged(tmp_path: Path) -> None:
    desk = desk_of(tmp_path)
    in_journal: list[tuple[KnobChange, ...]] = []

    def apply(_change: KnobChange) -> Sequence[str]:
        in_journal.append(Journal(tmp_path / "knobs.journal").replay())
        return ()

    result = await desk.turn({LIMIT: 9}, actor="me", note="why", apply=apply)
    assert in_journal == [(result.change,)]
    assert result.change == KnobChange(version=1, at=5.0, actor="me", note="why", changes={LIMIT: (4, 9)})
    assert (desk.version, desk.last, desk.history) == (1, result.change, (result.change,))
    assert desk.origin(LIMIT) is Origin.OVERRIDE


async def test_a_change_that_is_not_allowed_changes_nothing(tmp_path: Path) -> None:
    desk = desk_of(tmp_path)
    with pytest.raises(KnobsInvalid) as invalid:
        await turned(desk, {LIMIT: 9, "watermark.low": 2.0})
    assert invalid.value.problems.keys() == {"watermark.low"}
    with pytest.raises(VersionConflict):
        await turned(desk, {LIMIT: 9}, if_version=7)
    assert (desk.version, desk.knobs.values[LIMIT], desk.history) == (0, 4, ())
    assert not (tmp_path / "knobs.journal").exists()
    assert desk.origin(LIMIT) is Origin.DEFAULT


async def test_turns_come_one_after_the_other_each_with_its_own_version(tmp_path: Path) -> None:
    desk = desk_of(tmp_path)
    results = await asyncio.gather(*(turned(desk, {LIMIT: number}) for number in range(1, 9)))
    assert [result.change.version for result in results] == list(range(1, 9))
    pairs = [change.changes[LIMIT] for change in Journal(tmp_path / "knobs.journal").replay()]
    assert pairs == list(zip((4, *range(1, 8)), range(1, 9), strict=True))


async def test_a_disk_that_hangs_stops_no_knob(tmp_path: Path) -> None:
    engine = ThreadEngine("test", most=1)
    hang = asyncio.Event()
    loop = asyncio.get_running_loop()
    engine.submit(lambda: asyncio.run_coroutine_threadsafe(hang.wait(), loop).result(), lambda _result: None)
    desk = desk_of(tmp_path, engine=engine)
    result = await turned(desk, {LIMIT: 9})
    assert result.warnings[0] == "mind the gap"
    assert "did not answer" in result.warnings[1]
    assert (desk.version, desk.knobs.values[LIMIT]) == (1, 9)
    hang.set()


async def test_what_an_earlier_life_left_that_no_longer_fits_is_passed_over(tmp_path: Path) -> None:
    desk = desk_of(
        tmp_path,
        change_of(1, lanes__default__concurrency=(4, 7)),
        change_of(2, lanes__gone__concurrency=(4, 7), watermark__high=(0.85, 7.0)),
        file={LIMIT: 3, "lanes.default.queue_limit": 5},
    )
    assert desk.knobs.values[LIMIT] == 7
    assert desk.knobs.values["watermark.high"] == 0.85
    assert desk.version == 2
    assert desk.origin("watermark.high") is Origin.DEFAULT
    assert desk.origin("lanes.default.queue_limit") is Origin.FILE


async def test_what_was_turned_wins_over_the_file_at_the_next_start(tmp_path: Path) -> None:
    file = {"lanes.default.concurrency": 2, "lanes.default.queue_limit": 9}
    async with service(tmp_path, knobs=file) as one:
        await one.admin.patch("/admin/knobs", json={"changes": {"lanes.default.concurrency": 6}})
    async with service(tmp_path, knobs=file) as one:
        found = (await one.admin.get("/admin/knobs")).json()
        assert found["version"] == 1
        assert found["knobs"]["lanes.default.concurrency"] == 6
        assert found["origin"]["lanes.default.concurrency"] == "override"
        assert found["origin"]["lanes.default.queue_limit"] == "file"
        assert one.runtime.state().lanes[0].limit == 6
        answer = await one.admin.patch("/admin/knobs", json={"changes": {"lanes.default.concurrency": 7}})
        assert answer.json()["version"] == 2


async def test_a_change_that_only_the_journal_knows_is_in_force_and_reaches_the_database(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "knobs.journal")
    for version, after in ((2, 8), (1, 3)):  # written by two that waited for a slow disk together
        changes: dict[str, Any] = {"lanes.default.concurrency": (4, after)}
        journal.append(KnobChange(version=version, at=1.0, actor="x", changes=changes))
    async with service(tmp_path) as one:
        assert one.runtime.desk.knobs.values["lanes.default.concurrency"] == 8
        assert one.runtime.desk.version == 2
        await until(lambda: len(one.runtime.reader.knob_changes()) == 2)


async def test_a_journal_that_cannot_be_written_stops_no_knob_and_says_so(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        one.home.journal.mkdir()  # as good as a full disk: it cannot be appended to
        answer = await one.admin.patch("/admin/knobs", json={"changes": {"lanes.default.concurrency": 9}})
        assert answer.status_code == 200
        assert "restart" in answer.json()["warnings"][0]
        assert one.runtime.state().lanes[0].limit == 9
        one.home.journal.rmdir()
        assert (await one.admin.patch("/admin/knobs", json={"changes": {"watermark.low": 0.1}})).json()[
            "warnings"
        ] == []
