"""Every key, by screen: read from the screens' own bindings, so that it cannot say what is not true."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen

from gpuwatch.tui import format as fmt
from gpuwatch.tui.renderables import palette
from gpuwatch.tui.view import View
from gpuwatch.tui.widgets.lines import Lines

Section = tuple[str, Sequence[BindingType]]

LEGEND: Final = (
    "BAR    W weights and context, # live, n others, : own cache, . free",
    "       H high mark, B breaker",
    "CHART  u used, p promised, a allocated, r reserved, n others",
    "       ^ knob turned, * snapshot, ! out of memory",
    "LANES  RUN/LIM runs now of how many at once (3>2: draining to 2)",
    "       BLOCKED BY what its head waits for, and its share of 60 s",
)


class Help(ModalScreen[None]):
    """Lists the keys of ``sections`` and what the signs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark", "app.pop_screen", "close", key_display="esc"),
        # A modal screen hides the app's own keys; these must work here, too.
        Binding("1", "app.show_dashboard", show=False),
        Binding("3", "app.show_snapshots", show=False),
        Binding("q", "app.quit", show=False),
    ]

    def __init__(self, sections: Sequence[Section]) -> None:
        super().__init__()
        self._sections = sections

    def compose(self) -> ComposeResult:
        """Show the lines in a box."""
        yield Lines(self._draw, id="help")

    def _draw(self, view: View, width: int, height: int) -> Sequence[Text]:
        del view, height
        lines = [Text(fmt.fit("KEYS", width), palette.STRONG)]
        for title, bindings in self._sections:
            lines.append(Text(fmt.fit(f" {title}", width), palette.WARN))
            lines += [Text(fmt.fit(f"   {key:12}{what}", width)) for key, what in keys(bindings)]
        return [*lines, *(Text(fmt.fit(line, width), palette.DIM) for line in LEGEND)]


def keys(bindings: Iterable[BindingType]) -> list[tuple[str, str]]:
    """Give each binding's key as it is written on the keyboard, and what it does."""
    found = (b for b in bindings if isinstance(b, Binding) and b.show)
    return [(b.key_display or b.key.replace(",", " "), b.description) for b in found]
