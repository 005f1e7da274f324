"""Record <-> plain data: one definition serves SQLite rows, JSON and the screen.

`plain` gives dicts, lists, numbers and texts; `row` flattens a record to SQLite's types (nested data becomes JSON text,
booleans become 0 and 1); `build` goes back from either and raises `msgspec.ValidationError` where the data does not
fit. Numbers that JSON cannot say (NaN, infinity) become ``null``.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def plain(value: object) -> Any:  # noqa: ANN401 - plain data has no narrower type
    """Give dicts, lists, numbers, texts and ``None`` for any record."""
    return msgspec.to_builtins(value)


def dumps(value: object) -> str:
    """Give JSON text for any record or plain data."""
    return msgspec.json.encode(value).decode()


def loads(text: str | bytes) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Read JSON text. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(text)


def build(kind: type[T], data: Mapping[str, Any]) -> T:
    """Build a record from plain data; unknown keys are passed over, SQLite's 0 and 1 read as booleans."""
    return msgspec.convert(data, kind, strict=False)


def fields(kind: type) -> tuple[str, ...]:
    """Name a record's columns in order."""
    return tuple(kind.__dataclass_fields__)


def row(record: object) -> dict[str, Any]:
    """Flatten a record to what a SQLite column can hold."""
    return {name: _cell(getattr(record, name)) for name in fields(type(record))}


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, int | float | bytes):
        return value
    if isinstance(value, str):
        return str(value)  # an enum's text, too
    return dumps(value)


def unrow(kind: type[T], data: Mapping[str, Any]) -> T:
    """Build a record from a SQLite row: JSON text goes back to data where the record holds some."""
    nested = _nested(kind)
    return build(
        kind,
        {k: loads(v) if k in nested and isinstance(v, str) else v for k, v in data.items()},
    )


_NESTED: dict[type, frozenset[str]] = {}


def _nested(kind: type) -> frozenset[str]:
    """Columns of ``kind`` that hold JSON: those whose type is a mapping or a tuple."""
    known = _NESTED.get(kind)
    if known is None:
        found = msgspec.inspect.type_info(kind)
        assert isinstance(found, msgspec.inspect.DataclassType)  # noqa: S101 - callers pass records only
        known = frozenset(f.name for f in found.fields if _holds_json(f.type))
        _NESTED[kind] = known
    return known


def _holds_json(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(_holds_json(t) for t in kind.types)
    return isinstance(kind, msgspec.inspect.DictType | msgspec.inspect.CollectionType)
