"""What storage raises."""

from collections.abc import Mapping


class StorageError(Exception):
    """Base of everything that storage raises."""


class BadValue(StorageError, ValueError):
    """A text that is no size, duration or knob value. The message says what would be."""


class KnobsInvalid(StorageError, ValueError):
    """A change that is not allowed. ``problems`` holds every bad key with what is wrong and its range."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{key}: {what}" for key, what in problems.items()))
        self.problems = dict(problems)


class SchemaTooNew(StorageError):
    """The database was written by a newer gpuwatch; it is left alone."""


class AlreadyServing(StorageError):
    """Another living service holds this data directory."""

    def __init__(self, directory: str, pid: int | None) -> None:
        who = f"pid {pid}" if pid else "another process"
        super().__init__(f"a service already runs on {directory} ({who}); stop it or choose another --data-dir")
        self.pid = pid
