"""Units as short text, and text that fits: pure.

Widths are terminal cells, not characters. Text from outside (names, errors) is never markup; control characters are
made visible, so that nothing can move the cursor. Characters that only change what stands beside them (the zero width
joiner, variation selector 16) are left out: terminals disagree about what they join, and without them widths add up.
What is not known is shown as ``-``.
"""

import math
import time
import unicodedata
from typing import Final

from rich.cells import cell_len, set_cell_size

ABSENT: Final = "-"
_UNITS: Final = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))
_TEN: Final = 9.95  # from here on one decimal would round to 10.0
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINING: Final = frozenset("\u200d\ufe0f")


def known(value: float | None) -> bool:
    """Whether the number can be shown: not ``None``, NaN or infinite."""
    return value is not None and math.isfinite(value)


def size(value: float | None) -> str:
    """Show bytes: ``2.4G``, ``87M``, ``0``."""
    if value is None or not known(value):
        return ABSENT
    magnitude = abs(value)
    sign = "-" if value < 0 else ""
    for unit, letter in _UNITS:
        if magnitude >= unit:
            number = magnitude / unit
            return f"{sign}{number:.1f}{letter}" if number < _TEN else f"{sign}{number:.0f}{letter}"
    return f"{sign}{magnitude:.0f}"


def change(value: float | None) -> str:
    """Show a change in bytes, its sign always there."""
    if value is None or not known(value):
        return ABSENT
    return f"+{size(value)}" if value >= 0 else size(value)


def seconds(value: float | None) -> str:
    """Show a duration in seconds: ``0.35s``, ``4.9s``, ``6m14s``, ``3h02m``, ``9d``."""
    if value is None or not known(value):
        return ABSENT
    value = max(0.0, value)
    if value < 0.995:  # noqa: PLR2004 - from here on two decimals would round to 1.00
        return f"{value:.2f}s"
    if value < _TEN:
        return f"{value:.1f}s"
    whole = round(value)
    if whole < 60:  # noqa: PLR2004 - seconds in a minute
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004 - minutes in an hour
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours < 48 else f"{hours // 24}d"  # noqa: PLR2004 - two days


def milliseconds(value: float | None) -> str:
    """Show a duration given in milliseconds."""
    return ABSENT if value is None else seconds(value / 1000)


def percent(ratio: float | None) -> str:
    """Show a share of one: ``80%``."""
    return ABSENT if ratio is None or not known(ratio) else f"{ratio * 100:.0f}%"


def rate(per_s: float | None) -> str:
    """Show something a second: ``11.4``."""
    if per_s is None or not known(per_s):
        return ABSENT
    return f"{per_s:.1f}" if per_s < 99.95 else f"{per_s:.0f}"  # noqa: PLR2004 - three digits are enough


def clock(at: float | None, *, dated: bool = False) -> str:
    """Show a Unix time as the local time of day; ``dated`` puts the day before it."""
    if at is None or not known(at):
        return ABSENT
    try:
        return time.strftime("%m-%d %H:%M:%S" if dated else "%H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return ABSENT


def clean(text: str) -> str:
    """Put text from outside on one line: what moves a cursor or hides itself becomes ``·``, what only joins is gone."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("·" if unicodedata.category(c) in _HIDDEN else c for c in text if c not in _JOINING)


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Give ``text`` exactly ``width`` cells: cut with ``…``, or padded (on the left with ``right``)."""
    if width <= 0:
        return ""
    text = clean(text[: 4 * width + 8])
    length = cell_len(text)
    if length > width:
        return set_cell_size(set_cell_size(text, width - 1) + "…", width)
    pad = " " * (width - length)
    return pad + text if right else text + pad


def cut(text: str, most: int) -> str:
    """Give ``text`` at most ``most`` cells: cut with ``…``, never padded."""
    text = clean(text[: 4 * max(0, most) + 8])
    return text if cell_len(text) <= most else fit(text, most)


def sides(left: str, right: str, width: int) -> str:
    """Put two texts at the ends of one line; the right one is kept whole, the left one gives way."""
    right = clean(right)
    room = width - cell_len(right)
    return fit(right, width) if room <= 0 else fit(left, room) + right
