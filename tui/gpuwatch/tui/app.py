"""The console: one reactive `View`, folded from the feed's news; screens draw from it.

Rules: news come in by messages, one after the other; a change goes out by a worker and its outcome is told where the
operator looks. Text from outside is never read as markup.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.reactive import reactive
from textual.screen import Screen

from gpuwatch.storage.discovery import Found
from gpuwatch.storage.errors import BadValue
from gpuwatch.storage.knobs import spec_of
from gpuwatch.tui import format as fmt
from gpuwatch.tui.feed import Arrived, Feed
from gpuwatch.tui.renderables import palette
from gpuwatch.tui.screens.dashboard import Dashboard
from gpuwatch.tui.screens.help import Help
from gpuwatch.tui.screens.snapshots import SnapshotList
from gpuwatch.tui.sources.base import Source
from gpuwatch.tui.sources.live import LiveSource
from gpuwatch.tui.view import ChangeNews, View, fold
from gpuwatch.tui.widgets.lines import Lines

SMALLEST: Final = (80, 24)


class Console(App[None]):
    """The app over one source. ``clock`` gives Unix seconds."""

    CSS_PATH = "gpuwatch.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "show_dashboard", "dashboard"),
        Binding("3", "show_snapshots", "snapshots"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
    ]

    view: reactive[View] = reactive(View, layout=False)

    def __init__(self, source: Source, *, read_only: bool = False, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._source = source
        self._read_only = read_only
        self._clock = clock
        self._too_small = False
        self._turning = asyncio.Lock()

    def compose(self) -> ComposeResult:
        """Begin to listen."""
        yield Feed(self._source)

    def on_mount(self) -> None:
        """Show the dashboard."""
        dashboard = partial(Dashboard, self._clock, read_only=self._read_only, turn=self.turn)
        self.install_screen(dashboard(), "dashboard")
        self.install_screen(SnapshotList(self._source), "snapshots")
        self.push_screen("dashboard")

    def on_arrived(self, message: Arrived) -> None:
        """Fold the news in."""
        self.view = fold(self.view, message.news, self._clock())

    async def on_unmount(self) -> None:
        """Let the source go."""
        await self._source.close()

    def on_resize(self, event: Resize) -> None:
        """Cover the screen with a notice while the terminal is too small."""
        small = event.size.width < SMALLEST[0] or event.size.height < SMALLEST[1]
        if small and not self._too_small:
            self.push_screen(TooSmall())
        elif not small and self._too_small and isinstance(self.screen, TooSmall):
            self.pop_screen()
        self._too_small = small

    # -- keys --------------------------------------------------------------------------------------------------------

    def action_show_dashboard(self) -> None:
        """Show the dashboard."""
        self._show("dashboard")

    def action_show_snapshots(self) -> None:
        """Show the snapshots."""
        self._show("snapshots")

    def _show(self, name: str) -> None:
        if self._too_small:
            return
        while len(self.screen_stack) > 2:  # noqa: PLR2004 - the app's own blank screen, and one of ours
            self.pop_screen()
        self.switch_screen(name)

    def action_help(self) -> None:
        """List the keys."""
        if isinstance(self.screen, Help | TooSmall):
            return
        dashboard = [b for b in Dashboard.BINDINGS if not (self._read_only and "turn" in str(b))]
        self.push_screen(
            Help(
                (
                    ("everywhere", self.BINDINGS),
                    ("dashboard", dashboard),
                    ("snapshots", SnapshotList.BINDINGS),
                )
            )
        )

    def turn(self, key: str, step: int) -> None:
        """Turn one knob by ``step``, and tell what became of it."""
        if self._read_only:
            self.notify("this console is read-only", severity="warning")
            return
        self.run_worker(self._turned(key, step), group="turn")

    async def _turned(self, key: str, step: int) -> None:
        # One after the other, each on what the one before has left: two quick keys are two steps, and no conflict.
        async with self._turning:
            now, spec = self.view.knobs.get(key), spec_of(key)
            if isinstance(now, str) or now is None or spec is None:
                self.notify("the knobs are not known yet", severity="warning")
                return
            try:
                value = spec.check(now + step)
            except BadValue as bad:
                self.notify(fmt.clean(f"{key}: {bad}"), severity="warning", markup=False)
                return
            answer = await self._source.turn({key: value}, self.view.knobs_version)
            if answer.change is None:
                self.notify(fmt.clean(f"{key} not turned: {answer.problem}"), severity="error", markup=False)
                return
            self.view = fold(self.view, ChangeNews(answer.change), self._clock())
        # The change itself stands in the dashboard's own line: no note covers it.
        for warning in answer.warnings:
            self.notify(fmt.clean(warning), severity="warning", markup=False)


class TooSmall(Screen[None]):
    """Says how large the terminal must be."""

    def compose(self) -> ComposeResult:
        """Show the notice."""
        yield Lines(self._draw, id="too-small")

    def _draw(self, view: View, width: int, height: int) -> list[Text]:
        del view, height
        lines = (
            f"gpuwatch needs {SMALLEST[0]}x{SMALLEST[1]}",
            f"this terminal is {self.size.width}x{self.size.height}",
        )
        return [Text(fmt.fit(line, width), palette.WARN) for line in lines]


def run(*, find: Callable[[], Found | None], read_only: bool, actor: str) -> int:
    """Open the console on the service that ``find`` finds, whenever it appears; give the exit status."""
    console = Console(LiveSource(find, actor=actor), read_only=read_only)
    console.run()
    return console.return_code or 0
