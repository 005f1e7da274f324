"""Coming up: which lanes exist, what counts for a knob, and what is in the first event and the run's row."""

from pathlib import Path

import pytest
from service_fakes import FakeDevice, FakeModel
from service_rigs import service, settings_of, targets_of

from gpuwatch.service.settings import SettingsError
from gpuwatch.service.start import start, version
from gpuwatch.storage.datadir import DataDir
from gpuwatch.storage.errors import BadValue, StorageError
from gpuwatch.storage.reader import Reader
from gpuwatch.storage.records import Run
from gpuwatch.storage.writer import Writer

pytestmark = pytest.mark.anyio


async def test_lanes_are_those_of_models_settings_and_knobs_and_default(tmp_path: Path) -> None:
    knobs = {"lanes.extra.concurrency": "2", "budget.margin_bytes": "64MiB", "lanes.image.queue_timeout_s": "500ms"}
    async with service(tmp_path, FakeModel(lane="image"), lanes=("more",), knobs=knobs, name="my service") as one:
        values = one.runtime.desk.knobs.values
        assert {lane.name for lane in one.runtime.state().lanes} == {"image", "more", "extra", "default"}
        assert (values["lanes.extra.concurrency"], values["lanes.image.queue_timeout_s"]) == (2, 0.5)
        assert values["budget.margin_bytes"] == 64 << 20
        assert one.runtime.state().service.name == "my service"
        assert (await one.inference.post("/predict", content=b"x")).status_code == 200


async def test_weights_are_shown_and_count_against_the_card(tmp_path: Path) -> None:
    async with service(tmp_path, FakeModel(), FakeModel("two")) as one:
        (gpu,) = one.runtime.state().gpus
        assert gpu.weights_bytes == 2 << 20


async def test_a_start_is_an_event_and_a_row_with_what_was_set(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        await one.rows()
        (run,) = Reader(one.home.database).runs()
        assert (run.version, run.clean) == (version(), None)
        assert run.gpus[0]["uuid"] == "FAKE-0"
        assert run.settings["gpu"] == "sim:1GiB"
        assert one.runtime.events.recent[0].kind == "started"
        text = one.home.database.read_bytes() + (tmp_path / "telemetry.db-wal").read_bytes()
        assert one.runtime.tokens.admin.encode() not in text


async def test_a_run_is_in_the_database_before_anything_is_served(tmp_path: Path) -> None:
    async with service(tmp_path, wait=False):
        assert [run.id for run in Reader(tmp_path / "telemetry.db").runs()] == [1]


async def test_every_bad_knob_of_the_file_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    home = DataDir(tmp_path)
    home.prepare()
    for knobs, names in (
        ({"watermark.high": 7, "no.knob": 1}, ("watermark.high", "no.knob")),
        ({"watermark.high": "x", "no.knob": "1"}, ("watermark.high", "no.knob")),
        ({"lanes.default.nothing": 1}, ("lanes.default.nothing",)),
    ):
        with pytest.raises(SettingsError) as bad:
            await start(
                settings_of(tmp_path, knobs=knobs), home, cards={0: FakeDevice()}, targets=targets_of([FakeModel()])
            )
        assert all(name in str(bad.value) for name in names)
    with pytest.raises(BadValue, match="no name for a lane"):
        await start(settings_of(tmp_path), home, cards={0: FakeDevice()}, targets=targets_of([FakeModel(lane="a b")]))
    assert not home.database.exists()


async def test_a_run_that_did_not_end_cleanly_is_told_and_closed(tmp_path: Path) -> None:
    home = DataDir(tmp_path)
    home.prepare()
    writer = Writer(home.database)
    writer.start()
    writer.put(Run(id=7, started_at=1.0, pid=4711, version="0", host="box"))
    assert writer.close()
    async with service(tmp_path) as one:
        events = {event.kind: event for event in one.runtime.events.recent}
        assert "run 7 (pid 4711) did not end cleanly" in events["unclean"].message
        await one.rows()
        assert [(run.id, run.clean) for run in Reader(home.database).runs()] == [(8, None), (7, False)]
    async with service(tmp_path) as two:
        assert "unclean" not in {event.kind for event in two.runtime.events.recent}


async def test_lines_of_the_journal_that_are_no_changes_are_told(tmp_path: Path) -> None:
    home = DataDir(tmp_path)
    home.prepare()
    home.journal.write_text('garbage\n{"crc32":"00"')
    async with service(tmp_path) as one:
        events = {event.kind: event for event in one.runtime.events.recent}
        assert "1 lines passed over, 1 torn" in events["journal"].message


async def test_a_database_that_is_none_is_said_before_anything_runs(tmp_path: Path) -> None:
    home = DataDir(tmp_path)
    home.prepare()
    home.database.write_text("this is no database, however long it may be" * 100)
    with pytest.raises(StorageError, match=r"telemetry\.db"):
        await start(settings_of(tmp_path), home, cards={0: FakeDevice()}, targets=targets_of([FakeModel()]))
