"""The dashboard: why requests wait, then the card, the chart, the lanes, and what was last turned and seen."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.reactive import reactive
from textual.screen import Screen

from gpuwatch.storage.state import GpuState
from gpuwatch.tui import format as fmt
from gpuwatch.tui.renderables import gauge, head, lanes, palette
from gpuwatch.tui.view import View
from gpuwatch.tui.widgets.chart import WatermarkChart
from gpuwatch.tui.widgets.lines import Lines

WIDE: Final = 110
TALL: Final = 34
_CARD_ROWS: Final = 4
_EXTRA_ROWS: Final = 6
_FIXED_ROWS: Final = 3 + _CARD_ROWS + 5 + 3 + 1
"""Top, card, the least of a chart, bottom and keys: what many lanes must not push off the screen."""


class Dashboard(Screen[None]):
    """The first screen. ``clock`` gives Unix seconds."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", "choose a lane (or k, j)", key_display="up/down"),
        Binding("down,j", "choose(1)", show=False),
        Binding("plus,equals_sign", "turn(1)", "more at once in the lane", key_display="+"),
        Binding("minus", "turn(-1)", "fewer at once in the lane", key_display="-"),
    ]

    view: reactive[View] = reactive(View, layout=False)
    chosen: reactive[str | None] = reactive(None, layout=False)

    def __init__(self, clock: Callable[[], float], *, read_only: bool, turn: Callable[[str, int], None]) -> None:
        super().__init__()
        self._clock = clock
        self._read_only = read_only
        self._turn = turn

    def compose(self) -> ComposeResult:
        """Stack the parts; the chart takes what is left."""
        yield Lines(self._top, rows=3, id="top")
        yield Lines(self._card, rows=_CARD_ROWS, id="card")
        yield WatermarkChart(self._clock, id="chart")
        yield Lines(self._lanes, id="lanes")
        yield Lines(self._extra, id="extra")
        yield Lines(self._bottom, rows=3, id="bottom")
        yield Lines(self._keys, rows=1, id="keys")

    def on_mount(self) -> None:
        """Follow the app's view, and let ages grow while no news come."""
        self.watch(self.app, "view", self._show)
        self.set_interval(1.0, self._tick)

    def on_resize(self) -> None:
        """Give lanes and extra lines their place."""
        self._lay_out()

    def _lay_out(self) -> None:
        roomy = self.size.height >= TALL and self.size.width >= WIDE
        extra = _EXTRA_ROWS if roomy else 0
        count = len(self.view.state.lanes) if self.view.state else 0
        self.query_one("#extra").styles.height = extra
        self.query_one("#lanes").styles.height = min(count + 1, max(2, self.size.height - _FIXED_ROWS - extra))

    def _show(self, view: View) -> None:
        names = [lane.name for lane in view.state.lanes] if view.state else []
        self.view = view
        if self.chosen not in names:
            self.chosen = names[0] if names else None
        self._lay_out()
        for part in self.query(Lines):
            part.view = view
        self.query_one(WatermarkChart).view = view

    def _tick(self) -> None:
        for part in self.query("#top, #extra").results(Lines):
            part.redraw()

    def watch_chosen(self) -> None:
        """Show which lane is chosen."""
        for part in self.query("#lanes").results(Lines):
            part.redraw()

    # -- keys --------------------------------------------------------------------------------------------------------

    def action_choose(self, step: int) -> None:
        """Choose the next lane, or the one before."""
        names = [lane.name for lane in self.view.state.lanes] if self.view.state else []
        if names:
            place = names.index(self.chosen) if self.chosen in names else 0
            self.chosen = names[(place + step) % len(names)]

    def action_turn(self, step: int) -> None:
        """Turn the chosen lane's concurrency by one."""
        if self.chosen is None:
            self.notify("no lane to turn", severity="warning")
            return
        self._turn(f"lanes.{self.chosen}.concurrency", step)

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _top(self, view: View, width: int, height: int) -> Sequence[Text]:
        del height
        now = self._clock()
        return (
            head.header(view, now, width, read_only=self._read_only),
            head.why(view, now, width),
            head.flow(view, now, width),
        )

    def _card(self, view: View, width: int, height: int) -> Sequence[Text]:
        gpu = _first_gpu(view)
        if gpu is None:
            return [Text(fmt.fit("", width))] * height
        high, breaker = view.ratio("watermark.high", 1.0), view.ratio("breaker.trip", 1.0)
        ratio = gpu.used_bytes / gpu.total_bytes if gpu.total_bytes else None
        share = f" {fmt.percent(ratio)} used, H{high * 100:.0f}"
        bar = gauge.bar(gpu, high=high, breaker=breaker, width=width - len(share))
        return (
            head.card(gpu, width),
            bar.append(share, palette.DIM),
            gauge.key(gpu, width),
            head.promised(view, gpu, width),
        )

    def _lanes(self, view: View, width: int, height: int) -> Sequence[Text]:
        return lanes.table(view.state.lanes if view.state else (), self.chosen, width, height - 1)

    def _extra(self, view: View, width: int, height: int) -> Sequence[Text]:
        gpu = _first_gpu(view)
        if gpu is None or height <= 1:
            return []
        widths = (44, 36, width - 80)
        columns = (
            lanes.neighbours(gpu, widths[0] - 2, height - 1),
            lanes.running(view, view.service_now(self._clock()), widths[1] - 2, height - 1),
            lanes.events(view, widths[2], height - 1),
        )
        return [
            Text.assemble(*(_cell(column, row, size) for column, size in zip(columns, widths, strict=True)))
            for row in range(height)
        ]

    def _bottom(self, view: View, width: int, height: int) -> Sequence[Text]:
        del height
        return (
            lanes.last_change(view, width),
            lanes.last_snapshot(view, self._clock(), width),
            lanes.advice(view, width),
        )

    def _keys(self, view: View, width: int, height: int) -> Sequence[Text]:
        del view, height
        turning = "" if self._read_only else "+/- limit  "
        text = f"1 dash  3 snapshots  up/down lane  {turning}? help  q quit"
        return [Text(fmt.fit(text, width), palette.DIM)]


def _cell(column: Sequence[Text], row: int, width: int) -> Text:
    cell = column[row].copy() if row < len(column) else Text()
    cell.pad_right(max(0, width - cell.cell_len))
    return cell


def _first_gpu(view: View) -> GpuState | None:
    return view.state.gpus[0] if view.state and view.state.gpus else None
