"""The watermark chart as a widget: a thin shell over `renderables.chart`, redrawn only when something changed."""

from collections.abc import Callable

from rich.segment import Segment
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from gpuwatch.tui.renderables.chart import Scale, chart, window_for
from gpuwatch.tui.view import View

Clock = Callable[[], float]


class WatermarkChart(Widget):
    """Bytes of the first card over time. ``clock`` gives Unix seconds."""

    view: reactive[View] = reactive(View, layout=False, repaint=False)

    def __init__(self, clock: Clock, *, id: str | None = None) -> None:  # noqa: A002 - Textual's
        super().__init__(id=id)
        self._clock = clock
        self._drawn: list[Strip] = []

    def watch_view(self) -> None:
        """Draw the new view."""
        self.redraw()

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._drawn = []
        self.redraw()

    def redraw(self) -> None:
        """Draw again and repaint the lines that have changed."""
        width, height = self.size
        if not width or not height:
            return
        before = self._drawn
        self._drawn = [Strip(line, width) for line in self._lines(width, height)]
        if len(before) != len(self._drawn):
            self.refresh()
            return
        changed = [row for row, (old, new) in enumerate(zip(before, self._drawn, strict=True)) if old != new]
        if changed:
            self.refresh(*(Region(0, row, width, 1) for row in changed))

    def render_line(self, y: int) -> Strip:
        """Give one line of the picture."""
        base = self.rich_style
        if y >= len(self._drawn):
            return Strip.blank(self.size.width, base)
        return self._drawn[y].apply_style(base)

    def _lines(self, width: int, height: int) -> list[list[Segment]]:
        view = self.view
        gpu = view.state.gpus[0] if view.state and view.state.gpus else None
        if gpu is None:
            return [[Segment(" " * width)] for _ in range(height)]
        points = view.points.get(gpu.index, ())
        now = view.service_now(self._clock())
        scale = Scale(
            top=float(gpu.total_bytes),
            now=now,
            window_s=window_for(points, now),
            high=view.ratio("watermark.high", 1.0),
            low=view.ratio("watermark.low", 1.0),
            breaker=view.ratio("breaker.trip", 1.0),
        )
        return chart(points, view.marks, scale, width, height)
