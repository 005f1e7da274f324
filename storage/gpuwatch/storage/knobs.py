"""The knobs: what an operator may turn at run time. One table that the service, the database and the screen read.

A lane's knobs are written once, as ``lanes.*.NAME``, and exist for every lane. `Knobs` is frozen: a turn gives a new
one or raises `KnobsInvalid` with every bad key, so a change is all or nothing. Units are in the table (``bytes``,
``s``, ``ms``, ``ratio``, ``count``, ``choice``).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Final

from gpuwatch.storage.errors import BadValue, KnobsInvalid
from gpuwatch.storage.records import KnobValue
from gpuwatch.storage.units import parse_duration, parse_size, say_size

GIB: Final = 1 << 30
MIB: Final = 1 << 20
DEFAULT_LANE: Final = "default"
_LANE_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobSpec:
    """One knob: its unit, range, step and default. ``choices`` replaces the range where the value is a word."""

    key: str
    unit: str
    default: KnobValue
    help: str
    low: int | float | None = None
    high: int | float | None = None
    step: int | float | None = None
    choices: tuple[str, ...] = ()

    @property
    def range_text(self) -> str:
        """What the knob takes, in words."""
        if self.choices:
            return " or ".join(self.choices)
        if self.unit == "bytes":
            return f"{say_size(int(_bound(self.low)))} to {say_size(int(_bound(self.high)))}"
        return f"{self.low:g} to {self.high:g}" + ("" if self.unit in {"count", "ratio"} else f" {self.unit}")

    def check(self, value: object) -> KnobValue:
        """Give ``value`` in the knob's own type. Raises `BadValue` with what would be taken."""
        if self.choices:
            if value not in self.choices:
                raise BadValue(f"{value!r} is not {self.range_text}")
            return str(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadValue(f"{value!r} is not a number; it takes {self.range_text}")
        if isinstance(value, float) and not isfinite(value):
            raise BadValue(f"{value!r} is no finite number; it takes {self.range_text}")
        if isinstance(self.default, int) and value != int(value):
            raise BadValue(f"{value!r} is not a whole number; it takes {self.range_text}")
        if not (_bound(self.low) <= value <= _bound(self.high)):
            raise BadValue(f"{value!r} is out of range; it takes {self.range_text}")
        return int(value) if isinstance(self.default, int) else float(value)

    def read(self, text: str) -> KnobValue:
        """Give the value that a person typed: sizes and durations with their units. Raises `BadValue`."""
        if self.choices:
            return self.check(text)
        if self.unit == "bytes":
            return self.check(parse_size(text))
        if self.unit == "s":
            return self.check(parse_duration(text))
        try:
            number = float(text)
        except ValueError:
            if self.unit == "ms":
                return self.check(parse_duration(text) * 1000)
            raise BadValue(f"{text!r} is not a number; it takes {self.range_text}") from None
        return self.check(number)


def _bound(value: float | None) -> float:
    assert value is not None  # noqa: S101 - the table's test holds that each number has a range
    return value


KNOBS: Final[tuple[KnobSpec, ...]] = (
    KnobSpec(key="lanes.*.concurrency", unit="count", default=4, low=0, high=1024, step=1,
             help="Runs at once in this lane, over all cards. 0 pauses the lane."),
    KnobSpec(key="lanes.*.queue_limit", unit="count", default=64, low=0, high=100_000, step=8,
             help="Requests that may wait in this lane; one more is refused with queue-full."),
    KnobSpec(key="lanes.*.queue_timeout_s", unit="s", default=10.0, low=0.0, high=3600.0, step=1.0,
             help="How long a request may wait for its grant before it is refused with queue-timeout."),
    KnobSpec(key="lanes.*.run_timeout_s", unit="s", default=0.0, low=0.0, high=86_400.0, step=5.0,
             help="How long a run may take before its client is answered run-timeout; 0 is no limit. "
                  "Its slot stays held until the work has really ended."),
    KnobSpec(key="lanes.*.priority", unit="count", default=5, low=0, high=9, step=1,
             help="Order among lanes, 0 first. One step is worth queue.ageing_s of waiting."),
    KnobSpec(key="lanes.*.default_price_bytes", unit="bytes", default=0, low=0, high=1 << 50, step=64 * MIB,
             help="Price of a request that has no other; 0 is unknown: such a request runs alone on its card."),
    KnobSpec(key="watermark.high", unit="ratio", default=0.85, low=0.05, high=1.0, step=0.01,
             help="Share of the card at which pressure turns high: new work waits (or is refused)."),
    KnobSpec(key="watermark.low", unit="ratio", default=0.80, low=0.01, high=1.0, step=0.01,
             help="Share of the card at which pressure turns normal again. Below watermark.high."),
    KnobSpec(key="watermark.action", unit="choice", default="queue", choices=("queue", "refuse"),
             help="What new requests meet while pressure is high."),
    KnobSpec(key="watermark.on_stale", unit="choice", default="closed", choices=("closed", "open"),
             help="Whether work is admitted on readings too old to be believed."),
    KnobSpec(key="breaker.trip", unit="ratio", default=0.95, low=0.05, high=1.0, step=0.01,
             help="Share of the card at which the breaker opens and new requests are refused."),
    KnobSpec(key="breaker.cooldown_s", unit="s", default=5.0, low=0.1, high=3600.0, step=1.0,
             help="How long the breaker stays open before it lets one request through."),
    KnobSpec(key="budget.mode", unit="choice", default="on", choices=("on", "off"),
             help="Whether requests must fit the card's capacity in bytes."),
    KnobSpec(key="budget.action", unit="choice", default="queue", choices=("queue", "refuse"),
             help="What a request meets whose price does not fit now."),
    KnobSpec(key="budget.margin_bytes", unit="bytes", default=0, low=0, high=1 << 50, step=64 * MIB,
             help="Bytes of the card kept free; 0 is automatic: the smaller of 512 MiB and 5 % of the card."),
    KnobSpec(key="budget.max_bytes", unit="bytes", default=0, low=0, high=1 << 50, step=256 * MIB,
             help="Our share of the card, context and weights included; 0 is all of it."),
    KnobSpec(key="budget.foreign_reserve_bytes", unit="bytes", default=0, low=0, high=1 << 50, step=256 * MIB,
             help="Neighbours count as holding at least this much."),
    KnobSpec(key="queue.ageing_s", unit="s", default=2.0, low=0.1, high=3600.0, step=0.5,
             help="Seconds that one step of priority is worth; past it a waiter that could fit stops overtaking."),
    KnobSpec(key="sampling.interval_ms", unit="ms", default=100, low=10, high=10_000, step=50,
             help="How often each card is read."),
    KnobSpec(key="sampling.stale_after_s", unit="s", default=2.0, low=0.1, high=600.0, step=0.5,
             help="Age at which a reading is no longer believed (at least two sampling periods)."),
    KnobSpec(key="snapshots.keep", unit="count", default=100, low=1, high=100_000, step=10,
             help="Snapshots kept per trigger; the oldest beyond it go."),
    KnobSpec(key="snapshots.watermark_interval_s", unit="s", default=60.0, low=1.0, high=86_400.0, step=10.0,
             help="At most one near-miss snapshot per card and trigger in this time; the others are counted."),
)  # fmt: skip

_BY_PATTERN: Final[Mapping[str, KnobSpec]] = {spec.key: spec for spec in KNOBS}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneKnobs:
    """One lane's knobs, resolved once so that the core reads plain attributes."""

    concurrency: int
    queue_limit: int
    queue_timeout_s: float
    run_timeout_s: float
    priority: int
    default_price_bytes: int


def spec_of(key: str) -> KnobSpec | None:
    """Find the table's row for ``key``, lanes' keys included; ``None`` for a key that does not exist."""
    found = _BY_PATTERN.get(key)
    if found is not None:
        return None if "*" in key else found
    parts = key.split(".")
    if len(parts) == 3 and parts[0] == "lanes" and parts[1]:  # noqa: PLR2004 - lanes.NAME.KNOB
        return _BY_PATTERN.get(f"lanes.*.{parts[2]}")
    return None


@dataclass(frozen=True)
class Knobs:
    """Every knob's value now. ``values`` holds all keys of `KNOBS`, a lane's once per lane in ``lanes``."""

    lanes: tuple[str, ...]
    values: Mapping[str, KnobValue]

    @classmethod
    def defaults(cls, lanes: Iterable[str] = ()) -> "Knobs":
        """Give the table's defaults for the lanes named and ``default``, which always exists.

        Raises `BadValue` for a lane whose name could not stand in a knob's key.
        """
        names = tuple(dict.fromkeys((*lanes, DEFAULT_LANE)))
        for name in names:
            if not _LANE_NAME.fullmatch(name):
                raise BadValue(f"{name!r} is no name for a lane; use letters, digits, - and _, at most 64")
        return cls(names, {key: spec.default for key, spec in keys_of(names)})

    def turned(self, changes: Mapping[str, object]) -> "Knobs":
        """Give the knobs after ``changes``. Raises `KnobsInvalid` with every bad key; nothing changes then."""
        problems: dict[str, str] = {}
        values = dict(self.values)
        for key, value in changes.items():
            spec = spec_of(key)
            if spec is None or key not in values:
                problems[key] = self._unknown(key)
                continue
            try:
                values[key] = spec.check(value)
            except BadValue as bad:
                problems[key] = str(bad)
        if not problems.keys() & _TOGETHER:  # between two values that stand: each alone is what it should be
            problems.update(_together(values, changes))
        if problems:
            raise KnobsInvalid(problems)
        return Knobs(self.lanes, values)

    def read(self, texts: Mapping[str, str]) -> dict[str, KnobValue]:
        """Give typed values of what a person typed. Raises `KnobsInvalid` with every bad key."""
        problems: dict[str, str] = {}
        values: dict[str, KnobValue] = {}
        for key, text in texts.items():
            spec = spec_of(key)
            if spec is None or key not in self.values:
                problems[key] = self._unknown(key)
                continue
            try:
                values[key] = spec.read(text)
            except BadValue as bad:
                problems[key] = str(bad)
        if problems:
            raise KnobsInvalid(problems)
        return values

    def _unknown(self, key: str) -> str:
        if key.startswith("lanes.") and spec_of(key) is not None:
            return f"there is no such lane; lanes are {', '.join(self.lanes)}"
        return "there is no such knob"

    def changes_from(self, before: "Knobs") -> dict[str, tuple[KnobValue, KnobValue]]:
        """Name what differs from ``before`` as ``{key: (before, after)}``."""
        return {
            key: (before.values[key], after)
            for key, after in self.values.items()
            if before.values.get(key) != after and key in before.values
        }

    def number(self, key: str) -> float:
        """Give a numeric knob's value."""
        value = self.values[key]
        if isinstance(value, str):
            raise TypeError(f"{key} is a word")
        return value

    def whole(self, key: str) -> int:
        """Give the value of a knob that counts something or is a size in bytes."""
        return int(self.number(key))

    def word(self, key: str) -> str:
        """Give the value of a knob that is a word."""
        return str(self.values[key])

    @cached_property
    def by_lane(self) -> Mapping[str, LaneKnobs]:
        """Each lane's knobs as plain attributes."""
        return {
            lane: LaneKnobs(
                concurrency=self.whole(f"lanes.{lane}.concurrency"),
                queue_limit=self.whole(f"lanes.{lane}.queue_limit"),
                queue_timeout_s=self.number(f"lanes.{lane}.queue_timeout_s"),
                run_timeout_s=self.number(f"lanes.{lane}.run_timeout_s"),
                priority=self.whole(f"lanes.{lane}.priority"),
                default_price_bytes=self.whole(f"lanes.{lane}.default_price_bytes"),
            )
            for lane in self.lanes
        }


def keys_of(lanes: Iterable[str]) -> Iterator[tuple[str, KnobSpec]]:
    """Walk every key that exists for ``lanes`` with its row of the table, lanes first."""
    for lane in lanes:
        for spec in KNOBS:
            if "*" in spec.key:
                yield spec.key.replace("*", lane), spec
    for spec in KNOBS:
        if "*" not in spec.key:
            yield spec.key, spec


_TOGETHER: Final = frozenset({"watermark.low", "watermark.high"})


def _together(values: Mapping[str, KnobValue], changes: Iterable[str]) -> dict[str, str]:
    """Rules between knobs, those named in `_TOGETHER`; what breaks one is said of the keys that were turned."""
    low, high = values["watermark.low"], values["watermark.high"]
    if isinstance(low, int | float) and isinstance(high, int | float) and low >= high:
        what = f"watermark.low ({low:g}) must be below watermark.high ({high:g})"
        return dict.fromkeys(_TOGETHER.intersection(changes), what)
    return {}
