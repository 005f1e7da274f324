"""What the demo plays: card, limits, traffic and neighbour. Pure; sizes are bytes, times seconds.

Theory: a detector's live peak grows by about 50 MiB a megapixel, so on a card of several GiB photographs are never the
limit. The simulated card is therefore small (`CARD_BYTES`), and the neighbour wants most of it. It gets what torch's
cache has not taken: pressure then stands at (total - unused cache), above the high mark of 85 % unless more than 15 %
of the card is unused cache. A fast machine runs few at once, has a small cache and crosses the mark; on a slow one the
requests queue up, more run at once, and bytes or slots are the limit: each machine shows something at each visit.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuwatch.storage.errors import BadValue
from gpuwatch.storage.records import KnobValue
from gpuwatch.storage.units import parse_size

MIB: Final = 1 << 20
CARD_BYTES: Final = 640 * MIB
NEIGHBOUR_SHARE: Final = 0.7
RATE_PER_S: Final = 3.0
KNOBS: Final[Mapping[str, KnobValue]] = {
    "lanes.image.concurrency": 6,
    "lanes.image.queue_limit": 16,
    "lanes.image.queue_timeout_s": 8.0,
    "lanes.image.run_timeout_s": 30.0,
    "snapshots.watermark_interval_s": 10.0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Another process on the simulated card: scripted, and named so everywhere."""

    size_bytes: int
    first_s: float = 4.0
    every_s: float = 12.0
    for_s: float = 4.0

    @property
    def text(self) -> str:
        """Say what it does."""
        return f"SCRIPTED: takes {self.size_bytes // MIB} MiB for {self.for_s:g} s every {self.every_s:g} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """One demo: the card's spec, start values of knobs, arrivals a second, and the neighbour on a simulated card."""

    gpu: str
    neighbour: Neighbour | None
    rate_per_s: float = RATE_PER_S

    @property
    def simulated(self) -> bool:
        """Whether the card is a simulated one."""
        return self.gpu.startswith("sim:")

    @property
    def stragglers_s(self) -> float:
        """How long the last request may take to be answered."""
        return float(KNOBS["lanes.image.queue_timeout_s"]) + float(KNOBS["lanes.image.run_timeout_s"])

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """Give the service's environment: what was ``given``, with the demo's own settings over it."""
        ours = {"GPUWATCH_KNOBS": json.dumps(KNOBS)}
        if self.neighbour is not None:
            ours |= {
                "GPUWATCH_SIM__NEIGHBOUR_BYTES": str(self.neighbour.size_bytes),
                "GPUWATCH_SIM__NEIGHBOUR_FIRST_S": str(self.neighbour.first_s),
                "GPUWATCH_SIM__NEIGHBOUR_EVERY_S": str(self.neighbour.every_s),
                "GPUWATCH_SIM__NEIGHBOUR_FOR_S": str(self.neighbour.for_s),
            }
        return {**given, **ours}


def play_on(gpu: str | None, *, has_cuda: Callable[[], bool]) -> Play:
    """Choose the play for a card; without a spec the CUDA devices, else a simulated card. Raises `BadValue`."""
    if gpu is None:
        gpu = "auto" if has_cuda() else f"sim:{CARD_BYTES // MIB}MiB"
    if not gpu.startswith("sim:"):
        return Play(gpu=gpu, neighbour=None)
    sizes = gpu.removeprefix("sim:")
    if "," in sizes:
        raise BadValue(f"the demo plays on one card, not on {gpu}")
    return Play(gpu=gpu, neighbour=Neighbour(size_bytes=int(parse_size(sizes) * NEIGHBOUR_SHARE)))
