"""The whole process: ready, alone, drained on SIGTERM, killed and started again; and one line for what fails."""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from service_fakes import PATIENCE_S, until

from gpuwatch.service.serving import serve
from gpuwatch.service.settings import Settings
from gpuwatch.storage.datadir import DataDir
from gpuwatch.storage.reader import Reader
from gpuwatch.storage.records import Outcome

MODEL = """
import pathlib, threading

class Held:
    name = "held"
    lane = "default"
    def load(self, device): pass
    def dims(self, body, content_type): return {"bytes": len(body)}
    def price(self, dims): return 1 << 20
    def decode(self, body, content_type): return pathlib.Path(body.decode())
    def infer(self, batch):
        (place,) = batch
        place.with_suffix(".begun").touch()
        while not place.with_name("go").exists():
            threading.Event().wait(0.002)
        return ["done"]
    def encode(self, result): return result
"""
SLOW_MODEL = """
class Slow(Held):
    def load(self, device):
        pathlib.Path("loading").touch()
        threading.Event().wait()
"""
START = """
import json, sys
from gpuwatch.service.serving import serve
from gpuwatch.service.settings import Settings
sys.exit(serve(Settings.load(None, json.loads(sys.argv[1]))))
"""


class Process:
    """A service in a process of its own, in ``place``; its model waits for the file ``go`` there."""

    def __init__(self, place: Path, process: asyncio.subprocess.Process, ready: str) -> None:
        self.place = place
        self.home = DataDir(place / "data")
        self.process = process
        self.ready = ready
        info = self.home.service()
        assert info is not None
        self.info = info
        token = self.home.admin_token.read_text().strip()
        self.inference = httpx.AsyncClient(base_url=info.inference_url, timeout=PATIENCE_S)
        self.admin = httpx.AsyncClient(base_url=info.admin_url, headers={"Authorization": f"Bearer {token}"})

    def ask(self, name: str) -> "asyncio.Task[httpx.Response]":
        body = str(self.place / name)
        return asyncio.ensure_future(self.inference.post("/predict", content=body, headers={"X-Request-Id": name}))

    async def begun(self, *names: str) -> None:
        await until(lambda: all((self.place / f"{name}.begun").exists() for name in names))

    async def state(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.admin.get("/admin/state")).json()
        return found

    async def waiting(self, count: int) -> None:
        await self.comes(lambda state: state["lanes"][0]["waiting"] == count)

    async def status(self, status: str) -> None:
        await self.comes(lambda state: state["service"]["status"] == status)

    async def comes(self, true: Callable[[dict[str, Any]], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not true(await self.state()):  # noqa: ASYNC110 - another process has no event of ours
                await asyncio.sleep(0.01)

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await self.process.wait()

    def outcomes(self) -> dict[str, Outcome]:
        return {record.request_id: record.outcome for record in Reader(self.home.database).requests()}


@asynccontextmanager
async def started(place: Path, **given: object) -> AsyncIterator[asyncio.subprocess.Process]:
    (place / "held_model.py").write_text(MODEL + SLOW_MODEL)
    settings = {
        "targets": ["held_model:Held"],
        "gpu": "sim:256MiB",
        "port": 0,
        "admin_port": 0,
        "data_dir": str(place / "data"),
        **given,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        START,
        json.dumps(settings),
        cwd=place,
        env={**os.environ, "GPUWATCH_RUN_DIR": str(place / "run")},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@asynccontextmanager
async def serving(place: Path, **given: object) -> AsyncIterator[Process]:
    async with started(place, **given) as process:
        assert process.stderr is not None
        lines: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while not (line := (await process.stderr.readline()).decode()).startswith("gpuwatch: ready"):
                assert line, f"it ended: {''.join(lines)}"
                lines.append(line)
        drain = asyncio.ensure_future(process.stderr.read())
        one = Process(place, process, line)
        async with one.inference, one.admin:
            yield one
        await drain


@pytest.mark.anyio
async def test_a_service_is_ready_alone_and_ends_on_sigterm_when_all_under_way_has_finished(tmp_path: Path) -> None:
    async with serving(tmp_path, knobs={"lanes.default.concurrency": 2}) as one:
        assert one.info.inference_url in one.ready
        assert one.info.admin_url in one.ready
        assert "SIMULATED" in one.ready
        assert one.info.pid == one.process.pid
        assert (await one.inference.get("/readyz")).status_code == 200
        assert len(list((tmp_path / "run").iterdir())) == 1

        calls = {name: one.ask(name) for name in ("a", "b")}
        await one.begun("a", "b")
        calls |= {name: one.ask(name) for name in ("c", "d", "e")}
        await one.waiting(3)
        one.process.send_signal(signal.SIGTERM)
        await one.status("draining")
        late = await one.ask("late")
        assert (late.status_code, late.json()["reason"]) == (503, "draining")
        assert (await one.inference.get("/readyz")).status_code == 503
        (tmp_path / "go").touch()
        answers = await asyncio.gather(*calls.values())
        assert [answer.status_code for answer in answers] == [200] * 5
        assert await one.ended() == 0
        assert not one.home.service_file.exists()
        assert list((tmp_path / "run").iterdir()) == []
        assert one.outcomes() == dict.fromkeys("abcde", Outcome.OK) | {"late": Outcome.DRAINING}
        (run,) = Reader(one.home.database).runs()
        assert run.clean is True
        assert run.ended_at is not None


@pytest.mark.anyio
async def test_one_that_was_killed_starts_again_and_a_second_signal_ends_the_grace(tmp_path: Path) -> None:
    async with serving(tmp_path) as one:
        turned = await one.admin.patch("/admin/knobs", json={"changes": {"lanes.default.concurrency": 1}})
        assert turned.status_code == 200
        call = one.ask("killed")
        await one.begun("killed")
        one.process.kill()
        await one.ended()
        with pytest.raises(httpx.HTTPError):
            await call
        assert one.home.service_file.exists(), "nobody could take it back"
    async with serving(tmp_path) as two:
        assert two.info.pid == two.process.pid
        state = await two.state()
        assert (state["lanes"][0]["limit"], state["knobs_version"]) == (1, 1)
        running = two.ask("running")
        await two.begun("running")
        waiting = two.ask("waiting")
        await two.waiting(1)
        two.process.send_signal(signal.SIGTERM)
        await two.status("draining")
        two.process.send_signal(signal.SIGINT)
        for call in (running, waiting):
            answer = await call
            assert (answer.status_code, answer.json()["reason"]) == (503, "shutdown")
        assert await two.ended() == 1
        assert not two.home.service_file.exists()
        assert two.outcomes() == {"running": Outcome.SHUTDOWN, "waiting": Outcome.SHUTDOWN}
        last, first = Reader(two.home.database).runs()
        assert (last.clean, first.clean) == (False, False)
        events = [event.message for event in Reader(two.home.database).events()]
        assert any("1 runs were still under way" in message for message in events)


@pytest.mark.anyio
async def test_a_signal_while_weights_are_loaded_is_not_made_to_wait_for_them(tmp_path: Path) -> None:
    async with started(tmp_path, targets=["held_model:Slow"]) as process:
        await until((tmp_path / "loading").exists)
        process.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == 0
        assert b"gpuwatch: stopped before it was ready" in said
        assert not (tmp_path / "data" / "service.json").exists()


@pytest.fixture
def own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"targets": ["builtin:nothing"]}, "there is no builtin:nothing"),
        ({"targets": ["no_such_module:Model"]}, "cannot import no_such_module"),
        ({"targets": []}, "nothing to serve"),
        ({"gpu": "sim:1MiB"}, "64 MiB"),
        ({"gpu": "sim:much"}, "sim:much"),
        ({"gpu": "tpu:0"}, "tpu:0"),
        ({"gpu": "cuda:99"}, "CUDA"),
        ({"knobs": {"watermark.high": 7}}, "watermark.high"),
        ({"knobs": {"watermark.high": "lots", "no.knob": "1"}}, "no.knob"),
        ({"knobs": {"lanes.a b.concurrency": 1}}, "'a b'"),
        ({"lanes": ("no lane",)}, "'no lane'"),
        ({"host": "192.0.2.1"}, "cannot listen on 192.0.2.1"),
        ({"data_dir": Path("/proc/nowhere")}, "/proc/nowhere"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_started_says_why_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], given: dict[str, object], says: str
) -> None:
    asked_wrongly = not given.keys() & {"host", "data_dir"}
    assert serve(failing(tmp_path, given)) == (2 if asked_wrongly else 1)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("gpuwatch: ")]
    assert len(lines) == 1
    assert says in lines[0]
    assert not (tmp_path / "service.json").exists()


@pytest.mark.usefixtures("own_logging")
def test_a_port_in_use_is_named_and_a_second_service_names_the_first(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve(failing(tmp_path, {"port": port})) == 1
    assert f"gpuwatch: cannot listen on 127.0.0.1:{port}: Address already in use" in capfd.readouterr().err
    home = DataDir(tmp_path)
    home.prepare()
    with home.hold():
        assert serve(failing(tmp_path)) == 1
    assert f"(pid {os.getpid()})" in capfd.readouterr().err


def failing(data_dir: Path, given: dict[str, object] | None = None) -> Settings:
    plain: dict[str, object] = {
        "targets": ["builtin:detector"],
        "gpu": "sim:256MiB",
        "port": 0,
        "admin_port": 0,
        "data_dir": data_dir,
    }
    return Settings.load(None, plain | (given or {}))
