"""Any record that the types allow, and plain ones by hand: shared by the storage tests."""

import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any

from hypothesis import strategies as st

from gpuwatch.storage.records import (
    Breaker,
    Cause,
    Event,
    OomSnapshot,
    Outcome,
    Pressure,
    RequestRecord,
    Sample,
    Severity,
    Trigger,
)

INTEGERS = st.integers(min_value=-(2**63), max_value=2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_PLAIN: dict[object, st.SearchStrategy[Any]] = {
    int: INTEGERS,
    float: FLOATS,
    bool: st.booleans(),
    str: st.text(),
    bytes: st.binary(),
    Any: JSON,
    type(None): st.none(),
}


def of(hint: object) -> st.SearchStrategy[Any]:
    """Give a strategy for a type as the records use them."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return st.sampled_from(hint)
    if is_dataclass(hint):
        return _facts(hint)
    return _generic(typing.get_origin(hint), typing.get_args(hint))


def _facts(kind: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401 - a dataclass, whichever
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{field.name: of(hints[field.name]) for field in fields(kind)})


def _generic(origin: object, arguments: tuple[object, ...]) -> st.SearchStrategy[Any]:
    if origin in {types.UnionType, typing.Union}:
        return st.one_of([of(argument) for argument in arguments])
    if origin is Mapping:
        return st.dictionaries(of(arguments[0]), of(arguments[1]), max_size=3)
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, arguments))
    raise TypeError(f"no strategy for {origin}")


def _any(given: dict[str, Any], over: dict[str, object]) -> dict[str, Any]:
    return {**given, **over}


def request(seq: int, **over: object) -> RequestRecord:
    given: dict[str, Any] = {
        "seq": seq,
        "request_id": f"r{seq}",
        "at": float(seq),
        "run_id": 1,
        "lane": "default",
        "model": "m",
        "outcome": Outcome.OK,
        "status": 200,
        "total_ms": 1.5,
    }
    return RequestRecord(**_any(given, over))


def sample(at: float, **over: object) -> Sample:
    given: dict[str, Any] = {
        "at": at,
        "run_id": 1,
        "gpu": 0,
        "total_bytes": 1000,
        "used_bytes": 500,
        "reserved_bytes": None,
        "allocated_bytes": None,
        "pressure_bytes": 500,
        "promised_bytes": 0,
        "foreign_bytes": 0,
        "fragmentation_ratio": None,
        "alloc_retries": None,
        "util_pct": None,
        "temperature_c": None,
        "power_w": None,
        "in_flight": 0,
        "waiting": 0,
        "loop_lag_ms": None,
        "pressure": Pressure.NORMAL,
        "breaker": Breaker.CLOSED,
    }
    return Sample(**_any(given, over))


def snapshot(number: int, **over: object) -> OomSnapshot:
    given: dict[str, Any] = {
        "id": number,
        "at": float(number),
        "run_id": 1,
        "gpu": 0,
        "trigger": Trigger.WATERMARK,
        "cause": Cause.UNKNOWN,
        "headline": "h",
        "knobs_version": 1,
    }
    return OomSnapshot(**_any(given, over))


def event(number: int, **over: object) -> Event:
    given: dict[str, Any] = {
        "id": number,
        "at": float(number),
        "run_id": 1,
        "kind": "started",
        "severity": Severity.INFO,
        "message": "m",
    }
    return Event(**_any(given, over))
