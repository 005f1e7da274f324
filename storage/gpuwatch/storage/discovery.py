"""Find the service that an operator means, and say where ours is.

Rules: what the operator names (an address, a data directory) is looked at alone: a knob must never turn on another
service than the one named. Only then come the default data directory and the run directories. An announcement whose
process is dead is passed over. Whoever can write an announcement could send a token elsewhere, so a token file named by
one is read only if the announcement's owner is root, the reader, or the token's owner.
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

from gpuwatch.storage import codec
from gpuwatch.storage.datadir import APP, DataDir, ServiceInfo, alive, read_token, write_whole

SYSTEM_RUN_DIR: Final = Path("/run/gpuwatch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What lies in a run directory: the service, and where the files are that let one in."""

    service: ServiceInfo
    data_dir: str
    admin_token: str
    read_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A service to talk to. ``token`` is the strongest that may be read; ``where`` says in words how it was found."""

    admin_url: str
    token: str | None
    info: ServiceInfo | None
    where: str


def run_directories(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Give the directories for announcements, the machine's first; ``GPUWATCH_RUN_DIR`` replaces them."""
    given = environ.get("GPUWATCH_RUN_DIR")
    if given:
        return (Path(given),)
    directories = [] if os.name == "nt" else [SYSTEM_RUN_DIR]
    with warnings.catch_warnings(), suppress(OSError):  # no usable runtime directory: it is not ours to complain
        warnings.simplefilter("ignore")
        directories.append(platformdirs.user_runtime_path(APP))
    return tuple(directories)


def announce(info: ServiceInfo, home: DataDir, run_dirs: tuple[Path, ...]) -> Path | None:
    """Announce a service in the first run directory that takes it; give the file to withdraw, ``None`` if none did."""
    told = Announcement(
        service=info,
        data_dir=str(home.path.absolute()),
        admin_token=str(home.admin_token.absolute()),
        read_token=str(home.read_token.absolute()),
    )
    for directory in run_dirs:
        with suppress(OSError):
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            path = directory / f"{info.pid}.json"
            write_whole(path, codec.dumps(told).encode(), mode=0o644)
            return path
    return None


def withdraw(path: Path | None) -> None:
    """Take an announcement back; one that is gone already is no error."""
    if path is not None:
        with suppress(OSError):
            path.unlink()


def find(
    url: str | None = None,
    data_dir: Path | None = None,
    *,
    environ: Mapping[str, str],
    run_dirs: tuple[Path, ...] | None = None,
) -> Found | None:
    """Find the service that ``--url``, ``GPUWATCH_ADMIN_URL`` or ``--data-dir`` names, else one that runs here.

    Reads files only; whether it answers is for the caller to see. ``None`` when there is none.
    """
    runs = run_directories(environ) if run_dirs is None else run_dirs
    home = DataDir.default(environ) if data_dir is None else DataDir(data_dir)
    named = url or environ.get("GPUWATCH_ADMIN_URL")
    if named:
        where = "--url" if url else "GPUWATCH_ADMIN_URL"
        return _at(named, where, _here(home, runs))
    if data_dir is not None:
        return _in_data_dir(home)
    return next(_here(home, runs), None)


def _at(url: str, where: str, here: Iterable[Found]) -> Found:
    """Give the service at ``url``, with its token where it is one of this machine's."""
    same = next((found for found in here if found.admin_url.rstrip("/") == url.rstrip("/")), None)
    return Found(admin_url=url, token=same.token if same else None, info=same.info if same else None, where=where)


def _here(home: DataDir, run_dirs: tuple[Path, ...]) -> Iterator[Found]:
    """Walk the living services of this machine that can be seen, in the order in which they are taken."""
    found = _in_data_dir(home)
    if found is not None:
        yield found
    for directory in run_dirs:
        yield from _in_run_dir(directory)


def _in_data_dir(home: DataDir) -> Found | None:
    info = home.service()
    if info is None or not alive(info):
        return None
    token = _strongest(home.admin_token, home.read_token)
    return Found(admin_url=info.admin_url, token=token, info=info, where=str(home.path))


def _in_run_dir(directory: Path) -> list[Found]:
    """Give the living services announced in ``directory``, the youngest first."""
    found: list[tuple[float, Found]] = []
    with suppress(OSError):
        for path in directory.glob("*.json"):
            with suppress(OSError, msgspec.DecodeError):
                told = codec.build(Announcement, codec.loads(path.read_bytes()))
                if alive(told.service):
                    found.append((told.service.started_at, _announced(path, told)))
    return [service for _, service in sorted(found, key=lambda pair: -pair[0])]


def _announced(path: Path, told: Announcement) -> Found:
    owner = path.stat().st_uid
    trusted = [file for file in (Path(told.admin_token), Path(told.read_token)) if _may_name(owner, file)]
    return Found(
        admin_url=told.service.admin_url, token=_strongest(*trusted), info=told.service, where=str(path.parent)
    )


def _may_name(owner: int, token_file: Path) -> bool:
    if os.name == "nt" or owner in {0, os.geteuid()}:
        return True
    try:
        return token_file.stat().st_uid == owner
    except OSError:
        return False


def _strongest(*files: Path) -> str | None:
    for file in files:
        with suppress(OSError, UnicodeDecodeError):
            token = read_token(file)
            if token is not None:
                return token
    return None
