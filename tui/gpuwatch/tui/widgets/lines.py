"""Widgets that show lines drawn by a pure function: style and reactives live here, drawing does not."""

from collections.abc import Callable, Sequence

from rich.style import Style
from rich.text import Text
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from gpuwatch.tui.view import View

Draw = Callable[[View, int, int], Sequence[Text]]
"""Draws lines of a view for a width and a height in cells."""


class Lines(Widget):
    """Shows what ``draw`` gives; a new view repaints only the lines that differ. ``rows`` is the height where fixed."""

    view: reactive[View] = reactive(View, layout=False, repaint=False)

    def __init__(self, draw: Draw, *, rows: int | None = None, id: str | None = None) -> None:  # noqa: A002 - Textual's
        super().__init__(id=id)
        self._draw = draw
        self._drawn: list[Text] = []
        if rows is not None:
            self.styles.height = rows

    def watch_view(self) -> None:
        """Draw the new view."""
        self.redraw()

    def redraw(self) -> None:
        """Draw again and repaint the lines that have changed."""
        width, height = self.size
        if not width or not height:
            return
        before, self._drawn = self._drawn, list(self._draw(self.view, width, height))[:height]
        if len(before) != len(self._drawn):
            self.refresh()
            return
        changed = [row for row, pair in enumerate(zip(before, self._drawn, strict=True)) if _differ(*pair)]
        if changed:
            self.refresh(*(Region(0, row, width, 1) for row in changed))

    def on_resize(self) -> None:
        """Draw for the new size."""
        self._drawn = []
        self.redraw()

    def render_line(self, y: int) -> Strip:
        """Give one line."""
        width = self.size.width
        base = self.rich_style
        if y >= len(self._drawn):
            return Strip.blank(width, base)
        text = self._drawn[y]
        # Text.render leaves the text's own style to whoever prints it.
        own = text.style if isinstance(text.style, Style) else Style.parse(text.style)
        return Strip(text.render(self.app.console)).apply_style(base + own).adjust_cell_length(width, base)


def _differ(one: Text, other: Text) -> bool:
    return one.style != other.style or one != other


class Page(Widget):
    """Shows more lines than fit, by scrolling; ``draw(width)`` gives all of them."""

    def __init__(self, draw: Callable[[int], Sequence[Text]], *, id: str | None = None) -> None:  # noqa: A002 - Textual's
        super().__init__(id=id)
        self._draw = draw

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Say how many lines there are."""
        del container, viewport
        return len(self._draw(width))

    def render(self) -> Text:
        """Draw all lines; the scrolling container shows a part."""
        return Text("\n", no_wrap=True, end="").join(self._draw(self.size.width))
