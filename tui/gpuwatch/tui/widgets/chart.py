"""The watermark chart as a widget: a thin shell over `renderables.chart`, redrawn only when something changed."""

from collections.abc import Callable

from rich.segment import Segment
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from gpuwatch.tui.renderables.chart import Scale, chart, window_for
from gpuwatch.tui.view import View

Clock = Callable[[], float]


class WatermarkChart(Widget):
    """Bytes of the first card over time. ``clock`` gives Unix seconds."""

    view: reactive[View] = reactive(View, layout=False)

    def __init__(self, clock: Clock, *, id: str | None = None) -> None:  # noqa: A002 - Textual's
        super().__init__(id=id)
        self._clock = clock
        self._strips: list[Strip] = []

    def watch_view(self) -> None:
        """Forget the picture of the view before."""
        self._strips = []

    def notify_style_update(self) -> None:
        """Forget the picture drawn in other colours."""
        super().notify_style_update()
        self._strips = []

    def render_line(self, y: int) -> Strip:
        """Give one line of the picture."""
        width, height = self.size
        if len(self._strips) != height or (self._strips and self._strips[0].cell_length != width):
            self._strips = [Strip(line, width).apply_style(self.rich_style) for line in self._lines(width, height)]
        return self._strips[y] if y < len(self._strips) else Strip.blank(width, self.rich_style)

    def _lines(self, width: int, height: int) -> list[list[Segment]]:
        view = self.view
        gpu = view.state.gpus[0] if view.state and view.state.gpus else None
        points = view.points.get(gpu.index, ()) if gpu else ()
        now = self._clock()
        scale = Scale(
            top=float(gpu.total_bytes) if gpu else 1.0,
            now=now,
            window_s=window_for(points, now),
            high=view.ratio("watermark.high", 1.0),
            breaker=view.ratio("breaker.trip", 1.0),
        )
        return chart(points, view.marks, scale, width, height)
