"""The edge of the demo: starts its children, shows what goes on, ends them, and settles the account.

Rules: every child is ended on every way out (an answer, an error, Ctrl-C, SIGTERM; a kill ends them by their leash).
The first Ctrl-C ends the sending and goes on to the summary; the second leaves at once.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from gpuwatch.cli.children import Child
from gpuwatch.cli.client import Admin
from gpuwatch.cli.errors import FAILED, CommandFailed
from gpuwatch.cli.play import Play
from gpuwatch.cli.tally import Peak, second_line, summary_lines, tally
from gpuwatch.cli.traffic import Summary
from gpuwatch.storage import codec
from gpuwatch.storage.datadir import DataDir, ServiceInfo
from gpuwatch.storage.discovery import Found, find
from gpuwatch.storage.reader import Reader
from gpuwatch.storage.state import State

START_S: Final = 120.0
LOOK_S: Final = 0.1
HEADLESS_S: Final = 30.0
SERVICE_GRACE_S: Final = 45.0
TRAFFIC_GRACE_S: Final = 2.0
ENOUGH_ROWS: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A running demo."""

    service: Child
    traffic: Child
    found: Found


class Stage:
    """One demo in ``data_dir``. ``say`` prints a line; ``console`` shows a service until it is left."""

    def __init__(
        self,
        play: Play,
        *,
        data_dir: Path,
        port: int,
        admin_port: int,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        console: Callable[[Found], object],
    ) -> None:
        self._play = play
        self._home = DataDir(data_dir.resolve())
        self._ports = (port, admin_port)
        self._environment = environment
        self._say = say
        self._open_console = console
        self._prefix = f"demo-{time.time_ns() // 1_000_000}"
        self._state: State | None = None

    def run(self, *, seconds: float | None, screen: bool) -> int:
        """Play until the seconds are over or the console is left; give the exit status."""
        self._home.prepare()
        self._say(f"starting the service on {self._play.gpu} ({self._home.path}) …")
        with self._service() as service:
            info = self._ready(service)
            found = find(data_dir=self._home.path, environ={}, run_dirs=())
            if found is None:
                raise CommandFailed(f"the service has ended\n{service.last_words()}")
            limit_s = seconds if seconds is not None or screen else HEADLESS_S
            with self._traffic(info, limit_s) as traffic:
                scene = Scene(service=service, traffic=traffic, found=found)
                self._console(scene) if screen else self._watch(scene)
                summary = self._ended(scene)
            status = service.end()
        if status != 0:
            self._say(f"the service ended with status {status}\n{service.last_words()}")
        return self._account(summary, info) or (FAILED if status else 0)

    def _service(self) -> Child:
        port, admin_port = self._ports
        arguments = ["serve", "builtin:detector", "--gpu", self._play.gpu, "--data-dir", str(self._home.path)]
        arguments += ["--port", str(port), "--admin-port", str(admin_port)]
        return Child(
            "gpuwatch.cli",
            arguments,
            output=self._home.path / "service.out",
            errors=self._home.path / "service.log",
            environment=self._play.environment(self._environment),
            folder=self._home.path,  # a gpuwatch.toml where the user stands is not the demo's
            grace_s=SERVICE_GRACE_S,
        )

    def _traffic(self, info: ServiceInfo, seconds: float | None) -> Child:
        arguments = ["--url", f"{info.inference_url}/predict", "--prefix", self._prefix]
        arguments += ["--rate", str(self._play.rate_per_s)]
        if seconds is not None:
            arguments += ["--seconds", str(seconds)]
        return Child(
            "gpuwatch.cli.crowd",
            arguments,
            output=self._summary_file,
            errors=self._home.path / "traffic.log",
            environment=self._environment,
            folder=self._home.path,
            grace_s=TRAFFIC_GRACE_S,
        )

    @property
    def _summary_file(self) -> Path:
        return self._home.path / "traffic.json"

    def _ready(self, service: Child) -> ServiceInfo:
        """Wait until the service says that it is ready. Raises `CommandFailed` when it ends or takes too long."""
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            if service.wait(LOOK_S) is not None:
                raise CommandFailed(f"the service did not start\n{service.last_words()}")
            info = self._home.service()
            if info is not None and info.pid == service.pid and _answers(info):
                return info
        raise CommandFailed(f"the service was not ready within {START_S:g} s\n{service.last_words()}")

    def _console(self, scene: Scene) -> None:
        self._open_console(scene.found)
        self._look(scene.found)
        scene.traffic.ask_to_end()
        self._say("the last requests are answered …")

    def _watch(self, scene: Scene) -> None:
        """Print a line a second until the traffic has ended."""
        started_s = time.monotonic()
        try:
            for second in range(1, sys.maxsize):
                if scene.traffic.wait(max(0.0, started_s + second - time.monotonic())) is not None:
                    break
                if scene.service.status is not None:
                    raise CommandFailed(f"the service has ended\n{scene.service.last_words()}")
                self._look(scene.found)
                if self._state is not None:
                    self._say(second_line(second, self._state))
        except KeyboardInterrupt:
            scene.traffic.ask_to_end()
            self._say("the last requests are answered … (Ctrl-C again leaves at once)")

    def _look(self, found: Found) -> None:
        """Look at the state; one that cannot be had leaves the last one."""
        try:
            with Admin(found.admin_url, found.token) as admin:
                self._state = codec.build(State, admin.get("/state"))
        except CommandFailed as failed:
            self._say(f"no state: {failed}")

    def _ended(self, scene: Scene) -> Summary:
        """Wait for the last answers and give what the client counted."""
        status = scene.traffic.wait(self._play.stragglers_s)
        if status != 0:
            how = "did not end" if status is None else f"ended with status {status}"
            raise CommandFailed(f"the traffic {how}\n{scene.traffic.last_words()}")
        return codec.build(Summary, json.loads(self._summary_file.read_bytes()))

    def _account(self, summary: Summary, info: ServiceInfo) -> int:
        reader = Reader(info.db)
        records = reader.requests(since=info.started_at, limit=ENOUGH_ROWS)
        counted = tally(summary, records, prefix=self._prefix)
        lines = summary_lines(
            counted,
            summary,
            card=self._state.gpus[0].name if self._state and self._state.gpus else self._play.gpu,
            simulated=self._play.simulated,
            peak=_peak(reader, info),
            snapshots=[s for s in reader.snapshots(limit=100) if s.at >= info.started_at][::-1],
            blocked=Counter(r.blocked_by.value for r in records if r.blocked_by is not None),
            neighbour=self._play.neighbour.text if self._play.neighbour else None,
            database=info.db,
        )
        self._say("\n".join(lines))
        self._say(f"look again with: gpuwatch snapshots list --data-dir {self._home.path}")
        return 0 if counted.equal and counted.ok else FAILED


def has_cuda() -> bool:
    """Tell whether torch sees a CUDA device; asked in a process of its own, since the console needs no torch."""
    import pynvml  # type: ignore[import-untyped]  # nvidia-ml-py has no types  # noqa: PLC0415 - only when no card was named

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    question = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", question], check=False, capture_output=True).returncode == 0  # noqa: S603 - our own text


def _answers(info: ServiceInfo) -> bool:
    try:
        return httpx.get(f"{info.inference_url}/readyz", timeout=START_S, trust_env=False).is_success
    except httpx.TransportError:
        return False


def _peak(reader: Reader, info: ServiceInfo) -> Peak | None:
    buckets = reader.samples(info.started_at, time.time(), points=1)
    if not buckets:
        return None
    bucket = buckets[0]
    return Peak(
        used_bytes=int(bucket.used_bytes.max),
        total_bytes=bucket.total_bytes,
        foreign_bytes=int(bucket.foreign_bytes.max),
    )
