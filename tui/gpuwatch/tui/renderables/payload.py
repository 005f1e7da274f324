"""Reads a snapshot's payload: plain JSON of any age, where every value may be absent or of another shape. Pure.

What is not what it should be is as good as absent: a snapshot written by another version must still be seen.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuwatch.tui import format as fmt

Table = Mapping[str, Any]


def number(data: Table, key: str) -> float | None:
    """Give a finite number, else ``None``."""
    value = data.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and fmt.known(value) else None


def table(data: Table, key: str) -> Table:
    """Give an object, an empty one where there is none."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def tables(data: Table, key: str) -> Sequence[Table]:
    """Give the objects of a list."""
    value = data.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def word(data: Table, key: str) -> str:
    """Give a text, a number or a yes and no as text, `format.ABSENT` where there is none."""
    value = data.get(key)
    if isinstance(value, str | bool):
        return str(value) or fmt.ABSENT
    found = number(data, key)
    return fmt.ABSENT if found is None else f"{found:g}" if isinstance(found, float) else str(found)
