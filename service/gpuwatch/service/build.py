"""The one place where edges are chosen: from settings to devices and models."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gpuwatch.service.gpu.base import Device
from gpuwatch.service.models.base import Model
from gpuwatch.service.models.loading import CannotLoad, resolve
from gpuwatch.service.settings import ModelSettings, Settings, SettingsError, SimSettings
from gpuwatch.storage.errors import BadValue
from gpuwatch.storage.units import parse_size

_SMALLEST_SIM_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model to serve: how to make it, and what the configuration says of it."""

    make: Callable[[], Model]
    name: str | None = None
    version: str | None = None
    lane: str | None = None


def targets(settings: Settings) -> tuple[Target, ...]:
    """List what to serve: the command line's targets, then the file's. Raises `SettingsError`."""
    named = [Target(make=_resolved(target)) for target in settings.targets]
    named += [_configured(name, model) for name, model in settings.models.items()]
    if not named:
        raise SettingsError("nothing to serve: name a target such as builtin:detector or package.module:Model")
    return tuple(named)


def _configured(name: str, model: ModelSettings) -> Target:
    return Target(make=_resolved(model.target), name=name, version=model.version, lane=model.lane)


def _resolved(target: str) -> Callable[[], Model]:
    try:
        return resolve(target)
    except CannotLoad as unknown:
        raise SettingsError(str(unknown)) from None


def devices(settings: Settings) -> dict[int, Device]:
    """Open the cards that ``--gpu`` names. Raises `SettingsError` that says what to choose."""
    spec = settings.gpu
    if spec.startswith("sim:"):
        return {0: _simulated(spec.removeprefix("sim:"), settings.sim)}
    if spec == "auto" or spec.startswith("cuda:"):
        return _cuda(spec)
    raise SettingsError(f"--gpu {spec} is not known; choose auto, cuda:0 or sim:SIZE (such as sim:8GiB)")


def _simulated(size: str, sim: SimSettings) -> Device:
    if "," in size:
        raise SettingsError("one simulated card at a time for now: write sim:SIZE")
    try:
        total_bytes = parse_size(size)
    except BadValue as bad:
        raise SettingsError(f"--gpu sim:{size}: {bad}") from None
    if total_bytes < _SMALLEST_SIM_BYTES:
        raise SettingsError(f"--gpu sim:{size}: a card of less than {_SMALLEST_SIM_BYTES >> 20} MiB holds no model")
    from gpuwatch.service.gpu.neighbour import Schedule, ScriptedNeighbour  # noqa: PLC0415 - it may be heavy, and is seldom used
    from gpuwatch.service.gpu.simulated import SimulatedCard  # noqa: PLC0415 - imports torch

    card = SimulatedCard(0, total_bytes, context_bytes=sim.context_bytes)
    if sim.neighbour_bytes:
        schedule = Schedule(
            peak_bytes=sim.neighbour_bytes,
            first_s=sim.neighbour_first_s,
            every_s=sim.neighbour_every_s,
            for_s=sim.neighbour_for_s,
        )
        ScriptedNeighbour(card, schedule).start()
    return card


def _cuda(spec: str) -> dict[int, Device]:
    from gpuwatch.service.gpu.torch_cuda import NoCuda, cuda_cards  # noqa: PLC0415 - imports torch

    try:
        return cuda_cards(spec)
    except NoCuda as none:
        raise SettingsError(str(none)) from None
