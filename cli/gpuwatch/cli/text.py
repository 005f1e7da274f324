"""Figures and tables as plain lines for a shell: pure functions, no colours, no markup.

Rules: text from outside (process names, notes, errors) may hold anything, so control characters are replaced before it
reaches a terminal. Columns are aligned by cells, not characters. What is not known is shown as ``-``.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from gpuwatch.storage.knobs import spec_of
from gpuwatch.storage.records import KnobValue

ABSENT: Final = "-"
KIB: Final = 1024
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
TEN_S: Final = 10
BLOCKS: Final = "▁▂▃▄▅▆▇█"


def safe(text: object) -> str:
    """Give ``text`` on one line without control characters, which could drive a terminal."""
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in {"Cc", "Cf"} else c for c in str(text))


def cells(text: str) -> int:
    """Count the terminal cells that ``text`` fills."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in {"W", "F"} else 1 for c in text
    )


def size(value_bytes: float | None) -> str:
    """Write bytes as ``512 B``, ``21.0 MiB``, ``1.50 GiB``, signed where negative."""
    if value_bytes is None:
        return ABSENT
    sign, left = ("-" if value_bytes < 0 else ""), abs(float(value_bytes))
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if left < KIB or unit == "TiB":
            break
        left /= KIB
    digits = {"B": 0, "KiB": 0, "MiB": 0 if left >= 100 else 1}.get(unit, 2)  # noqa: PLR2004 - three figures
    return f"{sign}{left:.{digits}f} {unit}"


def duration(value_s: float | None) -> str:
    """Write seconds as ``12 ms``, ``1.25 s``, ``42 s``, ``3m 05s``, ``2h 10m``, ``4d 3h``."""
    if value_s is None:
        return ABSENT
    if value_s < 1:
        return f"{value_s * 1000:.0f} ms"
    if value_s < MINUTE_S:
        return f"{value_s:.2f} s" if value_s < TEN_S else f"{value_s:.0f} s"
    whole = int(value_s)
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}m {whole % MINUTE_S:02d}s"
    if whole < DAY_S:
        return f"{whole // HOUR_S}h {whole % HOUR_S // MINUTE_S:02d}m"
    return f"{whole // DAY_S}d {whole % DAY_S // HOUR_S}h"


def milliseconds(value_ms: float | None) -> str:
    """Write milliseconds as `duration` does."""
    return duration(None if value_ms is None else value_ms / 1000)


def ago(at: float, now: float) -> str:
    """Write how long ago ``at`` was, in whole seconds at the finest."""
    return f"{elapsed(at, now)} ago" if now - at >= 1 else "just now"


def elapsed(at: float, now: float) -> str:
    """Write the time from ``at`` to ``now`` in whole seconds at the finest; never negative."""
    whole = max(0, int(now - at))
    return f"{whole} s" if whole < MINUTE_S else duration(float(whole))


def moment(at: float) -> str:
    """Write a Unix time as the machine's local date and time."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def share(part: float | None, whole: float | None) -> str:
    """Write ``part`` of ``whole`` in per cent."""
    return ABSENT if part is None or not whole else f"{100 * part / whole:.0f} %"


def knob_value(value: KnobValue, unit: str) -> str:
    """Write a knob's value in its unit, in a form that ``knobs set`` reads back."""
    if isinstance(value, str):
        return safe(value)
    if unit == "bytes":
        return exact_size(int(value))
    if unit in {"s", "ms"}:
        return f"{value:g}{unit}" if unit == "s" else f"{value:g}"
    return f"{value:g}"


def knob_text(key: str, value: object) -> str:
    """Write the value of the knob ``key`` in its unit; of a knob that this version does not know, as it is."""
    spec = spec_of(key)
    return knob_value(value, spec.unit) if spec and isinstance(value, int | float | str) else safe(value)


def change_pairs(changes: Mapping[str, Sequence[object]]) -> str:
    """Write ``KEY before -> after``, several with commas."""
    return ", ".join(
        f"{safe(k)} {knob_text(k, before)} -> {knob_text(k, after)}" for k, (before, after) in changes.items()
    )


def exact_size(value_bytes: int) -> str:
    """Write bytes in the largest unit that loses nothing: ``512MiB``, ``1536KiB``, ``1000``."""
    if value_bytes == 0:
        return "0"
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value_bytes % KIB**power == 0:
            return f"{value_bytes // KIB**power}{unit}"
    return str(value_bytes)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """Align ``rows`` under ``head``; the columns named in ``right`` stand to the right. The last is not padded."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(cells(line[i]) for line in lines) for i in range(len(head))]
    to_right = set(right)
    last = len(head) - 1
    return [
        "  ".join(_pad(cell, widths[i], to_right=i in to_right, last=i == last) for i, cell in enumerate(line)).rstrip()
        for line in lines
    ]


def _pad(text: str, width: int, *, to_right: bool, last: bool) -> str:
    gap = " " * (width - cells(text))
    if to_right:
        return gap + text
    return text if last else text + gap


def pairs(items: Iterable[tuple[str, str]], *, indent: int = 2) -> list[str]:
    """Align ``label  text`` lines."""
    listed = list(items)
    width = max((cells(label) for label, _ in listed), default=0)
    return [f"{' ' * indent}{label}{' ' * (width - cells(label))}  {text}".rstrip() for label, text in listed]


def counts(by_name: Mapping[str, float], *, empty: str = "none") -> str:
    """Write ``name 3, other 1``, the largest first."""
    shown = sorted(((n, c) for n, c in by_name.items() if c), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{safe(name)} {count:g}" for name, count in shown) or empty


def sparkline(values: Sequence[float | None], *, low: float, high: float, width: int = 60) -> str:
    """Draw values between ``low`` and ``high`` as blocks: the maximum of each column, a gap where nothing is known."""
    if not values or high <= low:
        return ""
    columns = min(width, len(values))
    drawn = []
    for column in range(columns):
        part = values[column * len(values) // columns : (column + 1) * len(values) // columns]
        known = [v for v in part if v is not None]
        if not known:
            drawn.append(" ")
            continue
        ratio = min(1.0, max(0.0, (max(known) - low) / (high - low)))
        drawn.append(BLOCKS[min(len(BLOCKS) - 1, int(ratio * len(BLOCKS)))])
    return "".join(drawn)
