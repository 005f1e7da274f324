"""Widgets that show lines drawn by a pure function: style and reactives live here, drawing does not."""

from collections.abc import Callable, Sequence

from rich.text import Text
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from gpuwatch.tui.view import View

Draw = Callable[[View, int, int], Sequence[Text]]
"""Draws lines of a view for a width and a height in cells."""


class Lines(Widget):
    """Shows what ``draw`` gives. ``rows`` lines high unless the style sheet says otherwise."""

    view: reactive[View] = reactive(View, layout=False)

    def __init__(self, draw: Draw, *, rows: int | None = None, id: str | None = None) -> None:  # noqa: A002 - Textual's
        super().__init__(id=id)
        self._draw = draw
        if rows is not None:
            self.styles.height = rows

    def render(self) -> Text:
        """Draw the view as it is now."""
        width, height = self.size
        lines = list(self._draw(self.view, width, height))[:height]
        return Text("\n", no_wrap=True, end="").join(lines)


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
