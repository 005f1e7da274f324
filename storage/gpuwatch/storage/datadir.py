"""The data directory: where a service keeps its files, who serves there now, and the tokens.

Rules: the directory is the owner's (0700), the token files too (0600); files that others read appear whole or not at
all (written beside, then renamed). A second service is kept out by an advisory lock on an open file, which the kernel
lets go however its holder dies; the pid written in that file only serves the message.
"""

import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
import platformdirs
import psutil  # type: ignore[import-untyped] # it ships no types

from gpuwatch.storage import codec
from gpuwatch.storage.errors import AlreadyServing, DataDirUnusable
from gpuwatch.storage.journal import sync_directory

APP: Final = "gpuwatch"
_TOKEN_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceInfo:
    """A living service as it announces itself; ``started_at`` is Unix seconds, ``gpu`` the spec it was started with."""

    pid: int
    name: str
    inference_url: str
    admin_url: str
    db: str
    gpu: str
    started_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What opens the admin listener; kept out of every ``repr``."""

    admin: str = field(repr=False)
    read: str = field(repr=False)


class Hold:
    """The exclusive right to serve on a data directory, held until `release` or the end of the process."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let another service serve here. Safe to call again."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.ftruncate(fd, 0)
            os.close(fd)


@dataclass(frozen=True, slots=True)
class DataDir:
    """One data directory at ``path``."""

    path: Path

    @classmethod
    def default(cls, environ: Mapping[str, str]) -> "DataDir":
        """Give the directory used where none is named: systemd's, ours from the environment, else the user's."""
        given = environ.get("STATE_DIRECTORY", "").split(":")[0] or environ.get("GPUWATCH_DATA_DIR", "")
        return cls(Path(given) if given else platformdirs.user_data_path(APP))

    @property
    def database(self) -> Path:
        """Where the telemetry is."""
        return self.path / "telemetry.db"

    @property
    def journal(self) -> Path:
        """Where knob changes are made durable."""
        return self.path / "knobs.journal"

    @property
    def blackbox(self) -> Path:
        """Where the flight recorder writes."""
        return self.path / "blackbox.bin"

    @property
    def service_file(self) -> Path:
        """Where a living service says who it is."""
        return self.path / "service.json"

    @property
    def admin_token(self) -> Path:
        """Where the token is that may do everything."""
        return self.path / "admin.token"

    @property
    def read_token(self) -> Path:
        """Where the token is that may only look."""
        return self.path / "read.token"

    def prepare(self) -> None:
        """Make the directory, for the owner alone, and try to write there. Raises `DataDirUnusable`."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as probe:
                probe.write(b"\0")
        except OSError as error:
            why = error.strerror or str(error)
            raise DataDirUnusable(
                f"cannot use {self.path} as data directory ({why}); choose another --data-dir"
            ) from error

    def tokens(self) -> Tokens:
        """Give the tokens, made when there are none. Raises `DataDirUnusable`."""
        try:
            return Tokens(admin=_token(self.admin_token), read=_token(self.read_token))
        except (OSError, UnicodeDecodeError) as error:
            raise DataDirUnusable(f"cannot keep tokens in {self.path}: {error}") from error

    def hold(self) -> Hold:
        """Keep every other service out. Raises `AlreadyServing` with its pid, or `DataDirUnusable`."""
        try:
            fd = os.open(self.path / "service.lock", os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise DataDirUnusable(f"cannot lock {self.path}: {error.strerror or error}") from error
        try:
            if _lock(fd):
                os.ftruncate(fd, 0)
                os.lseek(fd, 0, os.SEEK_SET)
                os.write(fd, str(os.getpid()).encode())
                return Hold(fd)
            pid = _pid_in(fd)
        except OSError as error:  # a file system without locks, or a full one
            os.close(fd)
            raise DataDirUnusable(f"cannot lock {self.path}: {error.strerror or error}") from error
        os.close(fd)
        raise AlreadyServing(str(self.path), pid)

    def announce(self, info: ServiceInfo) -> None:
        """Say who serves here. Raises `DataDirUnusable`."""
        try:
            write_whole(self.service_file, codec.dumps(info).encode(), mode=0o644)
        except OSError as error:
            raise DataDirUnusable(f"cannot write {self.service_file}: {error.strerror or error}") from error

    def withdraw(self) -> None:
        """Take the announcement back; a directory that is gone already is no error."""
        with suppress(OSError):
            self.service_file.unlink()

    def service(self) -> ServiceInfo | None:
        """Give who last said that it serves here; it may be dead (see `alive`)."""
        try:
            return codec.build(ServiceInfo, codec.loads(self.service_file.read_bytes()))
        except (OSError, msgspec.DecodeError):
            return None


_CLOCK_SLACK_S: Final = 2.0  # the kernel tells the boot time in whole seconds, and process starts relative to it


def alive(info: ServiceInfo) -> bool:
    """Tell whether the announcing process still lives.

    A process that began after the service did only has its pid; one that is dead but not yet collected lives no more.
    """
    try:
        process = psutil.Process(info.pid)
        since = process.create_time() <= info.started_at + _CLOCK_SLACK_S
        return bool(since and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.AccessDenied:
        return True
    except (psutil.Error, ValueError, OverflowError):
        return False


def write_whole(path: Path, data: bytes, *, mode: int) -> None:
    """Put ``data`` at ``path`` so that a reader sees all of it or what was there before. Raises `OSError`."""
    temporary = _beside(path, data, mode)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _token(path: Path) -> str:
    known = read_token(path)
    if known is not None:
        return known
    temporary = _beside(path, (secrets.token_urlsafe(_TOKEN_BYTES) + "\n").encode(), 0o600)
    try:
        path.hardlink_to(temporary)  # unlike a rename, this fails when another process was first
    except FileExistsError:
        if read_token(path) is None:  # emptied by hand: an empty token must never open anything
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return path.read_text(encoding="ascii").strip()


def read_token(path: Path) -> str | None:
    """Give the token in a file, ``None`` where there is none. Raises `OSError` where it may not be read."""
    with suppress(FileNotFoundError):
        return path.read_text(encoding="ascii").strip() or None
    return None


def _beside(path: Path, data: bytes, mode: int) -> Path:
    """Write a finished, synced file next to ``path`` under a name of its own."""
    fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        Path(name).chmod(mode)
    except BaseException:
        Path(name).unlink()
        raise
    return Path(name)


def _pid_in(fd: int) -> int | None:
    """Give the pid that a lock file names, unless it is a dead one's: its successor may not have written yet."""
    os.lseek(fd, 0, os.SEEK_SET)
    text = os.read(fd, 32)
    pid = int(text) if text.isdigit() else None
    return pid if pid is not None and psutil.pid_exists(pid) else None


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> bool:
        """Lock one byte far behind the text, since Windows also keeps readers from what is locked."""
        os.lseek(fd, 1 << 30, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _lock(fd: int) -> bool:
        """Take the lock of this open file, or tell that another process has it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
