"""The card's bar: what holds its bytes, with the high mark H and the breaker B. Pure.

``W`` weights and context, ``#`` live, ``n`` others, ``:`` cache, ``.`` free. Every part that holds anything has a cell.
"""

from typing import Final

from rich.style import Style
from rich.text import Text

from gpuwatch.storage.state import GpuState
from gpuwatch.tui import format as fmt
from gpuwatch.tui.renderables import palette

_STYLES: Final[dict[str, Style]] = {
    "W": palette.STRONG,
    "#": palette.ALLOCATED,
    "n": palette.FOREIGN,
    ":": palette.RESERVED,
    ".": palette.FREE,
    "H": palette.WARN,
    "B": palette.BAD,
}


def parts(gpu: GpuState) -> dict[str, int]:
    """Bytes by the bar's sign; they add up to the card's total."""
    weights = gpu.weights_bytes + gpu.context_bytes
    live = max(0, (gpu.allocated_bytes or 0) - gpu.weights_bytes)
    cache = max(0, (gpu.reserved_bytes or 0) - (gpu.allocated_bytes or 0))
    others = max(0, gpu.foreign_bytes)
    free = max(0, gpu.total_bytes - weights - live - cache - others)
    return {"W": weights, "#": live, "n": others, ":": cache, ".": free}


def bar(gpu: GpuState, *, high: float, breaker: float, width: int) -> Text:
    """Draw the bar, ``width`` cells."""
    room = width - 2
    if room < len(_STYLES) or gpu.total_bytes <= 0:
        return Text(fmt.fit("", width))
    cells = [sign for sign, count in _shares(parts(gpu), room).items() for _ in range(count)]
    places = [min(room - 1, max(0, round(ratio * room))) for ratio in (high, breaker)]
    if places[0] == places[1]:  # neither covers the other
        places = [min(places[0], room - 2), min(places[0], room - 2) + 1]
    for sign, place in zip("HB", places, strict=True):
        cells[place] = sign
    text = Text("[")
    for cell in cells:
        text.append(cell, _STYLES[cell])
    return text.append("]")


def _shares(amounts: dict[str, int], room: int) -> dict[str, int]:
    """Give each part its cells: at least one where it holds anything, the rest by largest remainder."""
    total = sum(amounts.values()) or 1
    exact = {sign: amount * room / total for sign, amount in amounts.items()}
    cells = {sign: max(int(share), 1 if amounts[sign] else 0) for sign, share in exact.items()}
    while sum(cells.values()) > room:
        cells[max(cells, key=lambda sign: cells[sign])] -= 1
    while sum(cells.values()) < room:
        cells[max(exact, key=lambda sign: exact[sign] - cells[sign])] += 1
    return cells


def key(gpu: GpuState, width: int) -> Text:
    """Say what the signs stand for, with their bytes."""
    names = {"W": "weights+ctx", "#": "live", "n": "others", ":": "cache", ".": "free"}
    text = Text(" ")
    for sign, amount in parts(gpu).items():
        text.append(f"{sign} ", _STYLES[sign])
        text.append(f"{names[sign]} {fmt.size(amount)}  ")
    text.truncate(width, pad=True)
    return text
