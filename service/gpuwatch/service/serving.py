"""``gpuwatch serve``: listeners, signals, and the way down.

Rules: signals are our own (uvicorn would answer them by itself and leave 143). On the first SIGTERM or SIGINT nothing
new is taken and what is under way may finish, up to ``grace_s``; a second one ends the grace. The ports are bound
before anything is announced, and ``service.json`` is gone before the process is.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from gpuwatch.service import logs
from gpuwatch.service.http.admin import admin_app
from gpuwatch.service.http.inference import inference_app
from gpuwatch.service.models.loading import CannotLoad
from gpuwatch.service.runtime import Runtime
from gpuwatch.service.settings import Settings, SettingsError
from gpuwatch.service.start import start
from gpuwatch.storage import discovery
from gpuwatch.storage.datadir import DataDir, ServiceInfo
from gpuwatch.storage.errors import BadValue, StorageError

WRONG_USAGE: Final = 2
_LISTENERS_END_S: Final = 3
_log = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to us."""
        yield


def serve(settings: Settings) -> int:
    """Serve until a signal comes; give the exit status, 2 for what was asked wrongly. Why is said on stderr."""
    listener = logs.start(settings.log_level)
    home = DataDir(settings.data_dir) if settings.data_dir else DataDir.default(os.environ)
    try:
        home.prepare()
        with (
            home.hold(),
            asyncio.Runner(loop_factory=uvicorn.Config(app="", log_config=None).get_loop_factory()) as runner,
        ):
            return runner.run(_serve(settings, home))
    except (SettingsError, BadValue) as error:
        _say(f"gpuwatch: {error}")
        return WRONG_USAGE
    except (CannotLoad, StorageError, OSError) as error:
        _say(f"gpuwatch: {error}")
        return 1
    finally:
        listener.stop()


async def _serve(settings: Settings, home: DataDir) -> int:
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, signals.put_nowait, one)
    inference = _bind(settings.host, settings.port)
    admin = _bind(settings.admin_host, settings.admin_port)
    runtime = await _started(settings, home, signals)
    if runtime is None:
        _say("gpuwatch: stopped before it was ready")
        return 0
    servers = (_server(inference_app(runtime)), _server(admin_app(runtime)))
    tasks = [
        asyncio.ensure_future(server.serve(sockets=[sock]))
        for server, sock in zip(servers, (inference, admin), strict=True)
    ]
    info = ServiceInfo(
        pid=os.getpid(),
        name=runtime.state().service.name,
        inference_url=_url(inference),
        admin_url=_url(admin),
        db=str(home.database.absolute()),
        gpu=settings.gpu,
        started_at=runtime.state().service.started_at,
    )
    clean = False
    announced = None
    try:
        await _listening(servers, tasks)
        home.announce(info)
        announced = discovery.announce(info, home, discovery.run_directories(os.environ))
        simulated = " (SIMULATED card)" if runtime.state().service.simulated else ""
        _say(f"gpuwatch: ready: inference {info.inference_url}, admin {info.admin_url}{simulated}, data {home.path}")
        clean = await _until_stopped(runtime, signals, settings.grace_s)
    finally:
        runtime.stopping.set()
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks, return_exceptions=True)
        await runtime.close(clean=clean)
        discovery.withdraw(announced)
        home.withdraw()
    return 0 if clean else 1


async def _until_stopped(runtime: Runtime, signals: "asyncio.Queue[signal.Signals]", grace_s: float) -> bool:
    """Wait for a signal, then for what is under way; a second signal ends the wait. Tell whether all finished."""
    _log.info("%s: stopping", (await signals.get()).name)
    drained = asyncio.ensure_future(runtime.drain(grace_s))
    impatient = asyncio.ensure_future(signals.get())
    await asyncio.wait({drained, impatient}, return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()
    if drained.done():
        return drained.result()
    drained.cancel()
    await asyncio.wait({drained})
    return False


async def _started(settings: Settings, home: DataDir, signals: "asyncio.Queue[signal.Signals]") -> Runtime | None:
    """Bring the service up; ``None`` when a signal came first: weights may take minutes to load."""
    starting = asyncio.ensure_future(start(settings, home))
    stopped = asyncio.ensure_future(signals.get())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return None
    if stopped.done():
        signals.put_nowait(stopped.result())
    stopped.cancel()
    return starting.result()


async def _listening(servers: Sequence[uvicorn.Server], tasks: Sequence["asyncio.Future[None]"]) -> None:
    """Wait until both listeners accept. Raises `OSError` when one ended instead."""
    while not all(server.started for server in servers):
        for task in tasks:
            if task.done():
                raise OSError(f"a listener could not be started: {task.exception() or 'it ended'}")
        await asyncio.sleep(0.005)


def _server(app: ASGIApp) -> uvicorn.Server:
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=_LISTENERS_END_S
    )
    return _Server(config)


def _bind(host: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 takes a free one. Raises `OSError` that names the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return sock


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
