"""The knobs' journal: every change on disk before it is acknowledged, and found again after any crash.

Rules: one line a change, ``{"crc32":"89abcdef","change":{…}}``, written by one `write`, then fsynced (the directory,
too, when the file is new); a line counts only if it is whole, ends in a newline and its CRC-32 agrees. What a crash
left at the end is set aside and counted, and can never become valid: the next append closes it with ``#torn``. A line
in the middle that is not ours is passed over and reported. Nothing is ever rewritten.
"""

import os
import threading
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final

import msgspec

from gpuwatch.storage import codec
from gpuwatch.storage.errors import JournalUnwritable
from gpuwatch.storage.records import KnobChange, KnobValue

_TORN: Final = b"#torn\n"


class _Line(msgspec.Struct):
    crc32: str
    change: msgspec.Raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What the journal holds.

    ``torn`` is 1 when a crash left a torn last line, ``skipped`` the numbers (from 1) of lines that are no changes.
    """

    changes: tuple[KnobChange, ...]
    torn: int = 0
    skipped: tuple[int, ...] = ()


class Journal:
    """The journal at ``path``. One process writes it; `append` may be called from several threads."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()

    def append(self, change: KnobChange) -> None:
        """Make ``change`` durable. Blocks for the disk. Raises `JournalUnwritable`; then it must not take effect."""
        line = _line(change)
        with self._lock:
            try:
                self._append(line)
            except OSError as error:
                raise JournalUnwritable(f"cannot write {self._path}: {error.strerror or error}") from error

    def replay(self) -> tuple[KnobChange, ...]:
        """Give every whole change in the order written; none where there is no journal yet."""
        return self.read().changes

    def read(self) -> Replay:
        """Give every whole change, and what was not one. Raises `JournalUnwritable` where the file cannot be read."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return Replay(changes=())
        except OSError as error:
            raise JournalUnwritable(f"cannot read {self._path}: {error.strerror or error}") from error
        *lines, tail = data.split(b"\n")
        changes: list[KnobChange] = []
        skipped: list[int] = []
        for number, line in enumerate(lines, start=1):
            change = _parse(line)
            if change is None:
                skipped.append(number)
            else:
                changes.append(change)
        return Replay(changes=tuple(changes), torn=int(bool(tail)), skipped=tuple(skipped))

    def _append(self, line: bytes) -> None:
        new = not self._path.exists()
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            size = os.lseek(fd, 0, os.SEEK_END)
            if size and _last_byte(fd, size) != b"\n":
                line = _TORN + line
            try:
                _write_all(fd, line)
                os.fsync(fd)
            except OSError:
                os.ftruncate(fd, size)  # an unacknowledged change must not come back at the next start
                raise
        finally:
            os.close(fd)
        if new:
            sync_directory(self._path.parent)


def overrides(changes: Iterable[KnobChange]) -> dict[str, KnobValue]:
    """Give the last value of every key that was ever turned."""
    return {key: after for change in changes for key, (_, after) in change.changes.items()}


def sync_directory(path: Path) -> None:
    """Make a new name in ``path`` survive a power cut; where a directory cannot be opened (Windows) this is nothing."""
    if os.name == "nt":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _line(change: KnobChange) -> bytes:
    body = codec.dumps(change).encode()
    return b'{"crc32":"%08x","change":%b}\n' % (zlib.crc32(body), body)


def _parse(line: bytes) -> KnobChange | None:
    try:
        found = msgspec.json.decode(line, type=_Line)
        body = bytes(found.change)
        if found.crc32 != f"{zlib.crc32(body):08x}":
            return None
        return codec.build(KnobChange, codec.loads(body))
    except msgspec.DecodeError:
        return None


def _last_byte(fd: int, size: int) -> bytes:
    os.lseek(fd, size - 1, os.SEEK_SET)
    return os.read(fd, 1)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
