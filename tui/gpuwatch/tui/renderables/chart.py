"""The watermark chart: bytes of one card over time in braille, against the high mark and the breaker. Pure.

Rules: a column shows the largest value that fell into it, and joins to the one before it; a time without data is drawn
as a gap. Columns stand still: the axis moves by whole columns, so the picture does not shimmer. Each series ends in its
letter at the right, so it is told apart without colour. Braille dots: U+2800 plus a bit per dot, two columns of four.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.segment import Segment
from rich.style import Style

from gpuwatch.tui import format as fmt
from gpuwatch.tui.renderables import palette
from gpuwatch.tui.view import Mark, MarkKind, Point

AXIS: Final = 7
TAIL: Final = 6
HOLD_S: Final = 2.5
WINDOWS_S: Final = (120.0, 300.0, 900.0)
_DOTS: Final = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_DOTS_HIGH: Final = 4
_BLANK: Final = 0x2800
_LEAST: Final = 3


@dataclass(frozen=True, slots=True)
class Series:
    """One line of the chart: the point's field, its letter, its name and its colour."""

    field: str
    letter: str
    name: str
    style: Style


SERIES: Final = (
    Series("foreign", "n", "others", palette.FOREIGN),
    Series("reserved", "r", "reserved", palette.RESERVED),
    Series("allocated", "a", "allocated", palette.ALLOCATED),
    Series("promised", "p", "promised", palette.PROMISED),
    Series("used", "u", "used", palette.USED),
)
"""In drawing order: where lines meet, the last one is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What the chart is drawn against. ``top`` is the card's total, marks are shares of it; times are Unix seconds."""

    top: float
    now: float
    window_s: float
    high: float
    low: float
    breaker: float


def window_for(points: Sequence[Point], now: float) -> float:
    """Choose the smallest window that holds all there is."""
    age_s = now - points[0].at if points else 0.0
    return next((window for window in WINDOWS_S if age_s <= window), WINDOWS_S[-1])


def chart(points: Sequence[Point], marks: Iterable[Mark], scale: Scale, width: int, height: int) -> list[list[Segment]]:
    """Draw ``height`` lines of exactly ``width`` cells: legend, plot, and the time axis with its marks."""
    columns, rows = width - AXIS - TAIL, height - 2
    if columns < _LEAST or rows < _LEAST:
        return [[Segment(" " * max(0, width))] for _ in range(max(0, height))]
    canvas = _Canvas(columns, rows)
    tails: dict[int, list[Segment]] = {}
    for series in SERIES:
        values = columns_of(points, series.field, scale, columns * 2)
        canvas.draw(values, scale.top, series.style)
        if values[-1] is not None:
            tails.setdefault(canvas.row_of(values[-1], scale.top), []).append(Segment(series.letter, series.style))
    guides = _guides(scale, rows)
    lines = [_legend(points, width)]
    lines += [_plot_line(canvas, row, guides, tails, columns) for row in range(rows)]
    lines.append(_time_axis(marks, scale, columns))
    return lines


def columns_of(points: Sequence[Point], field: str, scale: Scale, columns: int) -> list[float | None]:
    """Give each dot column the largest value of its time; a value holds for `HOLD_S`, then there is a gap."""
    step_s = scale.window_s / columns
    last_column = int(scale.now / step_s)
    values: list[float | None] = [None] * columns
    held: tuple[int, float] | None = None
    oldest = scale.now - scale.window_s - 2 * HOLD_S
    for point in points:
        if not oldest <= point.at <= scale.now + step_s:
            continue
        value = getattr(point, field)
        if value is None or not fmt.known(value):
            held = None
            continue
        column = columns - 1 - (last_column - int(point.at / step_s))
        if column >= columns:
            continue
        if held is not None and column - held[0] <= HOLD_S / step_s + 1:
            for between in range(max(0, held[0] + 1), column):
                values[between] = held[1]
        if column >= 0:
            there = values[column]
            values[column] = value if there is None else max(value, there)
        held = (column, float(value))
    if held is not None and (columns - 1 - held[0]) * step_s <= HOLD_S:
        for between in range(max(0, held[0] + 1), columns):
            values[between] = held[1]
    return values


class _Canvas:
    """Braille cells, and whose line each cell shows."""

    def __init__(self, columns: int, rows: int) -> None:
        self.rows = rows
        self.bits = [[0] * columns for _ in range(rows)]
        self.styles: list[list[Style | None]] = [[None] * columns for _ in range(rows)]

    def _dot(self, value: float, top: float) -> int:
        """Count dots from the top; what is above the top is drawn at the top."""
        share = min(1.0, max(0.0, value / top)) if top > 0 else 0.0
        return round((1 - share) * (self.rows * _DOTS_HIGH - 1))

    def row_of(self, value: float, top: float) -> int:
        return self._dot(value, top) // _DOTS_HIGH

    def draw(self, values: Sequence[float | None], top: float, style: Style) -> None:
        before: int | None = None
        for x, value in enumerate(values):
            if value is None:
                before = None
                continue
            dot = self._dot(value, top)
            start, end = (dot, dot) if before is None else (min(dot, before), max(dot, before))
            for y in range(start, end + 1):
                row, column = y // _DOTS_HIGH, x // 2
                self.bits[row][column] |= _DOTS[y % _DOTS_HIGH][x % 2]
                self.styles[row][column] = style
            before = dot


def _guides(scale: Scale, rows: int) -> dict[int, tuple[str, Style]]:
    """Rows with a label: the two marks, and half and nothing of the card where they leave room."""
    guides: dict[int, tuple[str, Style]] = {}
    marks = ((scale.breaker, "B", palette.BAD), (scale.high, "H", palette.WARN), (scale.low, "L", palette.DIM))
    for ratio, letter, style in marks:
        row = _row(ratio, rows)
        # Marks that share a row share its label, B95H92, as far as there is room: half a number is a wrong one.
        before, text = guides.get(row), f"{letter}{ratio * 100:.0f}"
        if before is None:
            guides[row] = (text, style)
        elif len(before[0] + text) < AXIS:
            guides[row] = (before[0] + text, before[1])
    for ratio, text in ((1.0, fmt.size(scale.top)), (0.5, "50%"), (0.0, "0")):
        guides.setdefault(_row(ratio, rows), (text, palette.DIM))
    return guides


def _row(ratio: float, rows: int) -> int:
    return round((1 - min(1.0, max(0.0, ratio))) * (rows * _DOTS_HIGH - 1)) // _DOTS_HIGH


def _plot_line(
    canvas: _Canvas,
    row: int,
    guides: dict[int, tuple[str, Style]],
    tails: dict[int, list[Segment]],
    columns: int,
) -> list[Segment]:
    label, label_style = guides.get(row, ("", palette.DIM))
    marked = label[:1] in {"B", "H", "L"} and label != ""
    segments = [Segment(fmt.fit(label, AXIS - 1, right=True), label_style), Segment("│", palette.DIM)]
    bits, styles = canvas.bits[row], canvas.styles[row]
    column = 0
    while column < columns:
        style = styles[column]
        end = column
        while end < columns and styles[end] is style:
            end += 1
        if style is None:
            segments.append(
                Segment(("┄" if marked else " ") * (end - column), label_style if marked else palette.PLAIN)
            )
        else:
            segments.append(Segment("".join(chr(_BLANK + bit) for bit in bits[column:end]), style))
        column = end
    tail = tails.get(row, [])
    return [*segments, Segment(" "), *tail, Segment(" " * (TAIL - 1 - len(tail)))]


def _legend(points: Sequence[Point], width: int) -> list[Segment]:
    segments: list[Segment] = []
    room = width
    last = points[-1] if points else None
    for series in reversed(SERIES):
        value = None if last is None else getattr(last, series.field)
        text = f" {series.letter} {series.name} {fmt.size(value)} "
        if len(text) > room:
            break
        segments.append(Segment(text, series.style))
        room -= len(text)
    return [*segments, Segment(" " * room)]


def _time_axis(marks: Iterable[Mark], scale: Scale, columns: int) -> list[Segment]:
    cells = [" "] * columns
    seen = (mark for mark in marks if scale.now - scale.window_s <= mark.at <= scale.now)
    for mark in sorted(seen, key=lambda mark: mark.kind is MarkKind.OOM):  # an out-of-memory is drawn last: on top
        place = columns - 1 - int((scale.now - mark.at) / scale.window_s * columns)
        if place >= 0:
            cells[place] = mark.kind.value
    end = f"{scale.window_s / 60:.0f} min"
    for text, start in ((fmt.clock(scale.now - scale.window_s)[:5], 0), (end, columns - len(end))):
        if all(cell == " " for cell in cells[start : start + len(text)]):  # a mark is worth more than a label
            cells[start : start + len(text)] = text
    return [Segment(" " * AXIS), Segment("".join(cells[:columns]), palette.STRONG), Segment(" " * TAIL)]
