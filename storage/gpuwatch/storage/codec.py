r"""Record <-> plain data: one definition serves SQLite rows, JSON and the screen.

`plain` gives dicts, lists, numbers and texts that JSON can say; `row` flattens a record to SQLite's types (nested data
becomes JSON text, booleans become 0 and 1); `build` and `unrow` go back and raise `msgspec.ValidationError` where the
data does not fit. Numbers that JSON and SQLite cannot say (NaN, infinity) become ``null``. Text from outside that is
not Unicode (a process name read with ``surrogateescape``) is kept with its bad bytes spelled out (``\udce9``): it must
not cost the record that carries it.
"""

import dataclasses
from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def plain(value: object) -> Any:  # noqa: ANN401 - plain data has no narrower type
    """Give dicts, lists, numbers, texts and ``None`` for any record."""
    return _sayable(msgspec.to_builtins(value))


def dumps(value: object) -> str:
    """Give JSON text for any record or plain data. Raises `TypeError` for what is neither."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        return msgspec.json.encode(plain(value)).decode()


def loads(text: str | bytes) -> Any:  # noqa: ANN401 - JSON has no narrower type
    """Read JSON text. Raises `msgspec.DecodeError`."""
    return msgspec.json.decode(text)


def build(kind: type[T], data: Mapping[str, Any]) -> T:
    """Build a record from plain data; unknown keys are passed over, SQLite's 0 and 1 read as booleans."""
    return msgspec.convert(data, kind, strict=False)


def fields(kind: type) -> tuple[str, ...]:
    """Name a record's columns in order."""
    known = _FIELDS.get(kind)
    if known is None:
        known = _FIELDS[kind] = tuple(field.name for field in dataclasses.fields(kind))
    return known


def row(record: object) -> dict[str, Any]:
    """Flatten a record to what a SQLite column can hold."""
    return {name: _cell(getattr(record, name)) for name in fields(type(record))}


def unrow(kind: type[T], data: Mapping[str, Any]) -> T:
    """Build a record from a SQLite row: JSON text goes back to data where the record holds some."""
    nested = _nested(kind)
    return build(
        kind,
        {k: loads(v) if k in nested and isinstance(v, str) else v for k, v in data.items()},
    )


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if value is None or isinstance(value, int | bytes):
        return value
    if isinstance(value, str):
        return _text(value)
    return dumps(value)


def _text(value: str) -> str:
    """Give a plain ``str`` (also of an enum) that UTF-8 can say."""
    text = str(value)
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _sayable(value: Any) -> Any:  # noqa: ANN401 - plain data has no narrower type
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {_sayable(key): _sayable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_sayable(inner) for inner in value]
    return value


_FIELDS: dict[type, tuple[str, ...]] = {}
_NESTED: dict[type, frozenset[str]] = {}


def _nested(kind: type) -> frozenset[str]:
    """Columns of ``kind`` that hold JSON: those whose type is a mapping or a tuple."""
    known = _NESTED.get(kind)
    if known is None:
        found = msgspec.inspect.type_info(kind)
        assert isinstance(found, msgspec.inspect.DataclassType)  # noqa: S101 - callers pass records only
        known = _NESTED[kind] = frozenset(f.name for f in found.fields if _holds_json(f.type))
    return known


def _holds_json(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(_holds_json(t) for t in kind.types)
    return isinstance(
        kind,
        msgspec.inspect.DictType | msgspec.inspect.CollectionType | msgspec.inspect.TupleType,
    )
