"""What `gpuwatch doctor` thinks of a machine: pure rules over gathered `Facts`.

Rules: a finding says what is so, why it matters and what to do. ``problem`` means that serving will fail or die;
``warning`` that it will work worse than it could; ``note`` that something is worth knowing; ``ok`` that it was looked
at. Absent facts are ``None`` and never a problem by themselves: a box that only runs the console needs no torch.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

GIB: Final = 1 << 30
MIB: Final = 1 << 20
LOW_DISK_BYTES: Final = GIB
NO_DISK_BYTES: Final = 100 * MIB
OLDEST_PYTHON: Final = (3, 11)
OLDEST_TORCH: Final = (2, 6)
OLDEST_SQLITE: Final = (3, 37, 0)
"""The first with STRICT tables (https://www.sqlite.org/stricttables.html)."""
SANE_CLOCK_S: Final = 1_735_689_600.0
"""2025-01-01: an earlier clock was never set."""
CLOCK_SLACK_S: Final = 60.0
ALLOC_CONF: Final = "PYTORCH_ALLOC_CONF"
CUDA_ALLOC_CONF: Final = "PYTORCH_CUDA_ALLOC_CONF"


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ``remedy`` is ``None`` where nothing needs doing."""

    check: str
    level: Level
    text: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was found on this machine. ``*_error`` holds what an attempt said; sizes are bytes, times Unix seconds."""

    python: tuple[int, int, int]
    torch_version: str | None = None
    torch_error: str | None = None
    torch_cuda_build: str | None = None
    torch_cuda_available: bool = False
    nvml_driver: str | None = None
    nvml_cards: tuple[str, ...] = ()
    nvml_error: str | None = None
    nvml_no_driver: bool = False
    old_pynvml_version: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    data_dir: str = ""
    data_dir_error: str | None = None
    free_disk_bytes: int | None = None
    sqlite: tuple[int, int, int] = (0, 0, 0)
    now: float = 0.0
    last_written_at: float | None = None
    detector_weights: bool | None = None


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Judge every fact, in the order in which a person would fix them."""
    return tuple(
        found
        for rule in (_python, _torch, _nvml, _old_pynvml, _allocator, _workers, _data_dir, _sqlite, _clock, _weights)
        for found in rule(facts)
    )


def worst(found: tuple[Finding, ...]) -> Level:
    """Give the gravest level among ``found``; ``ok`` without any."""
    order = list(Level)
    return max((f.level for f in found), key=order.index, default=Level.OK)


def _python(facts: Facts) -> Iterator[Finding]:
    text = "Python " + ".".join(map(str, facts.python))
    if facts.python[:2] < OLDEST_PYTHON:
        yield Finding(
            "python",
            Level.PROBLEM,
            f"{text} is older than 3.11",
            "make a virtual environment with Python 3.11 or newer",
        )
    else:
        yield Finding("python", Level.OK, text)


def _torch(facts: Facts) -> Iterator[Finding]:
    if facts.torch_version is None:
        if facts.torch_error is not None:
            yield Finding(
                "torch",
                Level.PROBLEM,
                f"torch is installed but does not import: {facts.torch_error}",
                "install it anew: pip install --force-reinstall torch",
            )
        else:
            yield Finding(
                "torch",
                Level.NOTE,
                "torch is not installed: the console works, models do not run here",
                "to serve models: pip install 'gpuwatch-dashboard[torch]'",
            )
        return
    build = f"CUDA {facts.torch_cuda_build} build" if facts.torch_cuda_build else "CPU build"
    text = f"torch {facts.torch_version}, {build}"
    old = _version(facts.torch_version) < OLDEST_TORCH
    if old:
        yield Finding("torch", Level.PROBLEM, f"{text}, is older than 2.6", "pip install --upgrade 'torch>=2.6'")
    else:
        yield Finding("torch", Level.OK, text)
    yield _cuda(facts)


def _cuda(facts: Facts) -> Finding:
    if facts.torch_cuda_available:
        return Finding("cuda", Level.OK, "torch sees a CUDA device")
    if not facts.nvml_cards:
        return Finding(
            "cuda", Level.NOTE, "no CUDA device: models run on a simulated card only", "gpuwatch serve … --gpu sim:8GiB"
        )
    if facts.torch_cuda_build is None:
        return Finding(
            "cuda",
            Level.WARNING,
            "there is a card, but this torch is a CPU build and cannot use it",
            "install a CUDA build of torch (https://pytorch.org/get-started/locally/)",
        )
    hidden = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in {"", "-1"}:
        return Finding(
            "cuda",
            Level.PROBLEM,
            f"CUDA_VISIBLE_DEVICES={hidden!r} hides every card from torch",
            "unset CUDA_VISIBLE_DEVICES, or name a card: CUDA_VISIBLE_DEVICES=0",
        )
    return Finding(
        "cuda",
        Level.PROBLEM,
        f"there is a card, but torch (CUDA {facts.torch_cuda_build}) cannot use it",
        "usually the driver is too old for this torch: update the driver, or install a torch built for an "
        "older CUDA; in a container, start it with the NVIDIA runtime",
    )


def _nvml(facts: Facts) -> Iterator[Finding]:
    if facts.nvml_no_driver:
        yield Finding(
            "nvml",
            Level.NOTE,
            "no NVIDIA driver on this machine (libnvidia-ml.so.1 is not there)",
            "with a card: install the NVIDIA driver; in a container, start it with the NVIDIA runtime",
        )
    elif facts.nvml_error is not None:
        yield Finding(
            "nvml",
            Level.PROBLEM,
            f"NVML does not answer: {facts.nvml_error}",
            "run nvidia-smi: it fails, too; after a driver update the kernel module and the library differ "
            "until a reboot",
        )
    else:
        cards = ", ".join(facts.nvml_cards) or "no card"
        yield Finding("nvml", Level.OK, f"driver {facts.nvml_driver}: {cards}")


def _old_pynvml(facts: Facts) -> Iterator[Finding]:
    if facts.old_pynvml_version is not None:
        yield Finding(
            "pynvml",
            Level.WARNING,
            f"the deprecated package pynvml {facts.old_pynvml_version} is installed beside nvidia-ml-py: both "
            "bring the module `pynvml`, and torch warns at every start",
            "pip uninstall pynvml; then pip install --force-reinstall nvidia-ml-py",
        )


def _allocator(facts: Facts) -> Iterator[Finding]:
    new, old = facts.environment.get(ALLOC_CONF), facts.environment.get(CUDA_ALLOC_CONF)
    if new is not None and old is not None:
        yield Finding(
            "allocator",
            Level.WARNING,
            f"both {ALLOC_CONF} ({new}) and {CUDA_ALLOC_CONF} ({old}) are set; the second is the first one's old name",
            f"keep one: unset {CUDA_ALLOC_CONF}",
        )
    harmful = False
    for name, value in ((ALLOC_CONF, new), (CUDA_ALLOC_CONF, old)):
        options = _options(value or "")
        if options.get("expandable_segments", "").lower() == "true" and "max_split_size_mb" in options:
            harmful = True
            yield Finding(
                "allocator",
                Level.PROBLEM,
                f"{name} sets expandable_segments together with max_split_size_mb: cached blocks above the split "
                "size are never split and cannot be used again (GBs reserved with little allocated)",
                f"keep one of the two: {name}=expandable_segments:True",
            )
    if new is None and old is None:
        yield Finding("allocator", Level.OK, "torch's allocator has its default settings")
    elif not harmful and (new is None or old is None):
        name, value = (ALLOC_CONF, new) if new is not None else (CUDA_ALLOC_CONF, old)
        yield Finding("allocator", Level.OK, f"{name}={value}")


def _workers(facts: Facts) -> Iterator[Finding]:
    for name in ("WEB_CONCURRENCY", "UVICORN_WORKERS"):
        value = facts.environment.get(name)
        if value is not None and value.strip() not in {"", "0", "1"}:
            yield Finding(
                "workers",
                Level.WARNING,
                f"{name}={value}: uvicorn would start {value} processes, each with its own weights, CUDA context "
                "and limits on the same card",
                f"unset {name}; raise lanes.*.concurrency instead",
            )


def _data_dir(facts: Facts) -> Iterator[Finding]:
    if facts.data_dir_error is not None:
        yield Finding(
            "data-dir",
            Level.PROBLEM,
            f"{facts.data_dir} cannot be written: {facts.data_dir_error}",
            "give it to this user, or choose another: GPUWATCH_DATA_DIR=/path, or --data-dir",
        )
        return
    free = facts.free_disk_bytes
    if free is None:
        yield Finding("data-dir", Level.OK, f"{facts.data_dir} can be written")
    elif free < LOW_DISK_BYTES:
        yield Finding(
            "data-dir",
            Level.PROBLEM if free < NO_DISK_BYTES else Level.WARNING,
            f"only {free // MIB} MiB are free where {facts.data_dir} lies: records will be dropped when it is full",
            "free some disk, or choose another place: GPUWATCH_DATA_DIR=/path",
        )
    else:
        yield Finding("data-dir", Level.OK, f"{facts.data_dir} can be written, {free / GIB:.1f} GiB free")


def _sqlite(facts: Facts) -> Iterator[Finding]:
    text = "SQLite " + ".".join(map(str, facts.sqlite))
    if facts.sqlite < OLDEST_SQLITE:
        yield Finding(
            "sqlite", Level.PROBLEM, f"{text} has no STRICT tables", "use a Python built with SQLite 3.37 or newer"
        )
    else:
        yield Finding("sqlite", Level.OK, text)


def _clock(facts: Facts) -> Iterator[Finding]:
    if facts.now < SANE_CLOCK_S:
        yield Finding(
            "clock",
            Level.PROBLEM,
            "the clock stands before 2025: records would sort wrongly and `--since` would find nothing",
            "set the clock: timedatectl set-ntp true",
        )
    elif facts.last_written_at is not None and facts.last_written_at > facts.now + CLOCK_SLACK_S:
        ahead = facts.last_written_at - facts.now
        yield Finding(
            "clock",
            Level.WARNING,
            f"the database was last written {ahead:.0f} s in the future: the clock has been turned back",
            "check the clock: timedatectl",
        )
    else:
        yield Finding("clock", Level.OK, "the clock is plausible")


def _weights(facts: Facts) -> Iterator[Finding]:
    if facts.detector_weights is False:
        yield Finding(
            "weights",
            Level.NOTE,
            "builtin:detector has no weights here, so neither it nor the demo can run",
            "from a checkout: make install; else: pip install --no-deps facenet-pytorch==2.6.0",
        )
    elif facts.detector_weights:
        yield Finding("weights", Level.OK, "the weights of builtin:detector are here")


def _options(text: str) -> dict[str, str]:
    """Read ``a:1,b:True``, as torch reads it."""
    pairs = (part.split(":", 1) for part in text.split(",") if ":" in part)
    return {name.strip(): value.strip() for name, value in pairs}


def _version(text: str) -> tuple[int, int]:
    """Read the first two numbers of ``2.13.0+cu126``; ``(0, 0)`` where there are none."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
