"""Text that a person types, as numbers: sizes in bytes and durations in seconds. 1024-based, whatever is written.

`say_size` goes back exactly, for messages and files; the screen rounds in its own way.
"""

import re

from gpuwatch.storage.errors import BadValue

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?\s*$", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*$", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: str) -> int:
    """Bytes of ``24GiB``, ``24G``, ``24576MiB``, ``512M`` or plain bytes. Raises `BadValue`."""
    found = _SIZE.match(text)
    if found is None:
        raise BadValue(f"{text!r} is not a size; write it like 24GiB, 512M or 1073741824")
    number, prefix = found.groups()
    return int(float(number) * 1024 ** _POWERS[prefix.lower()]) if "." in number else _whole(number, prefix)


def _whole(number: str, prefix: str) -> int:
    return int(number) * int(1024 ** _POWERS[prefix.lower()])


def say_size(size_bytes: int) -> str:
    """Give the shortest text that `parse_size` reads as exactly ``size_bytes``: ``64MiB``, ``1PiB``, ``1000``."""
    power = 0
    while size_bytes and power < len(_POWERS) - 1 and size_bytes % 1024 == 0:
        size_bytes //= 1024
        power += 1
    prefix = next(prefix for prefix, known in _POWERS.items() if known == power)
    return f"{size_bytes}{prefix.upper()}iB" if power else str(size_bytes)


def parse_duration(text: str) -> float:
    """Seconds of ``30m``, ``1h``, ``90s``, ``250ms`` or plain seconds. Raises `BadValue`."""
    found = _DURATION.match(text)
    if found is None:
        raise BadValue(f"{text!r} is not a duration; write it like 30m, 1h, 90s or 250ms")
    number, unit = found.groups()
    return float(number) * _SECONDS[(unit or "s").lower()]
