"""A device as the rest of the service sees it: one protocol for every kind of card.

Rules: every method here may block and is called on a thread of its own (the sampler's or an engine's), never on the
event loop. Sizes are bytes.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from gpuwatch.storage.records import Reading, Source


@dataclass(slots=True)
class Measured:
    """What one run did to the card, filled in while it goes on; read it when the run has ended.

    ``peak_bytes`` is the largest sum of live storages that the run itself created (each rounded up to 512 bytes), or
    ``None`` where it could not be told; ``peak_source`` is ``sim``, ``tracked`` or ``alone``.
    """

    peak_bytes: int | None = None
    peak_source: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """Figures of an allocation that failed, seen on the allocating thread before the exception unwinds."""

    gpu: int
    requested_bytes: int
    free_bytes: int
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceInfo:
    """What a card is; it does not change while the service runs."""

    index: int
    uuid: str
    name: str
    source: Source
    simulated: bool
    total_bytes: int
    settings: dict[str, object] = field(default_factory=dict)


class Device(Protocol):
    """One card."""

    @property
    def info(self) -> DeviceInfo:
        """What the card is."""

    @property
    def torch_device(self) -> str:
        """Where tensors live: ``cuda:0``, or ``cpu`` on the simulated card."""

    def read(self) -> Reading:
        """Look at the card now. Raises `DeviceLost` when it is gone."""

    def run(self) -> AbstractContextManager[Measured]:
        """Everything that the calling thread does inside happens on this card and is measured.

        On leaving, the work has really ended: synchronized, results on the host.
        """

    def loading(self) -> AbstractContextManager[Measured]:
        """Like `run`, for loading weights: what stays alive afterwards is the model's."""

    def empty_cache(self) -> None:
        """Give cached blocks back to the driver."""

    def watch_out_of_memory(self, observer: Callable[[OutOfMemory], None]) -> None:
        """Call ``observer`` on the allocating thread before an out-of-memory unwinds. It must not raise."""

    def close(self) -> None:
        """Let the card go."""


class DeviceLost(Exception):
    """The card is gone: the driver no longer answers for it."""
