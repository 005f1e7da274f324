"""The snapshots: a list, newest first; enter opens one."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.reactive import reactive
from textual.screen import Screen

from gpuwatch.storage.records import OomSnapshot
from gpuwatch.storage.state import SnapshotHead
from gpuwatch.tui import format as fmt
from gpuwatch.tui.renderables import palette
from gpuwatch.tui.renderables.snapshot import page
from gpuwatch.tui.sources.base import Source, SourceUnavailable
from gpuwatch.tui.view import View
from gpuwatch.tui.widgets.lines import Lines, Page


class SnapshotList(Screen[None]):
    """All snapshots that the view knows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "choose(-1)", "choose one; scroll inside it (or k, j)", key_display="up/down"),
        Binding("down,j", "choose(1)", show=False),
        Binding("enter", "open", "open the snapshot", key_display="enter"),
        Binding("escape", "app.show_dashboard", "back", key_display="esc"),
    ]

    view: reactive[View] = reactive(View, layout=False)
    chosen: reactive[int | None] = reactive(None, layout=False)
    """The id of a snapshot: new ones come in above it, and must not change what enter opens."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source

    def compose(self) -> ComposeResult:
        """Stack title, list and keys."""
        yield Lines(self._title, rows=1, id="title")
        yield Lines(self._list, id="list")
        yield Lines(self._keys, rows=1, id="keys")

    def on_mount(self) -> None:
        """Follow the app's view."""
        self.watch(self.app, "view", self._show)

    def _show(self, view: View) -> None:
        self.view = view
        self.chosen = view.snapshots[self._place()].id if view.snapshots else None
        for part in self.query(Lines):
            part.view = view

    def watch_chosen(self) -> None:
        """Show which one is chosen."""
        for part in self.query("#list").results(Lines):
            part.redraw()

    def _place(self) -> int:
        """Find the chosen one in the list, the newest where it is gone."""
        return next((n for n, one in enumerate(self.view.snapshots) if one.id == self.chosen), 0)

    def action_choose(self, step: int) -> None:
        """Choose the next snapshot, or the one before."""
        if self.view.snapshots:
            place = max(0, min(self._place() + step, len(self.view.snapshots) - 1))
            self.chosen = self.view.snapshots[place].id

    def action_open(self) -> None:
        """Open the chosen snapshot."""
        if self.chosen is None:
            self.notify("there is no snapshot yet", severity="warning")
            return
        # By a worker: a service that is slow to answer holds up neither keys nor news.
        self.run_worker(self._open(self.chosen), exclusive=True, group="open")

    async def _open(self, number: int) -> None:
        try:
            snapshot = await self._source.snapshot(number)
        except SourceUnavailable as trouble:
            self.notify(fmt.clean(f"snapshot {number}: {trouble}"), severity="error", markup=False)
            return
        if self.app.screen is not self:
            return  # the operator has gone elsewhere meanwhile, or the terminal has become too small
        name = self.view.state.service.name if self.view.state else ""
        await self.app.push_screen(SnapshotPage(snapshot, name))

    def _title(self, view: View, width: int, height: int) -> Sequence[Text]:
        del height
        return [Text(fmt.fit(f"SNAPSHOTS ({len(view.snapshots)}), newest first", width), palette.STRONG)]

    def _list(self, view: View, width: int, height: int) -> Sequence[Text]:
        if not view.snapshots:
            return [Text(fmt.fit("none yet: one is taken at each out-of-memory and near-miss", width), palette.DIM)]
        heading = Text(fmt.fit("      ID  WHEN            TRIGGER        CAUSE           WHAT", width), palette.DIM)
        first = max(0, self._place() - (height - 2))
        rows = view.snapshots[first : first + height - 1]
        return [heading, *(_row(one, one.id == self.chosen, width) for one in rows)]

    def _keys(self, view: View, width: int, height: int) -> Sequence[Text]:
        del view, height
        return [Text(fmt.fit("up/down choose  enter open  esc back  ? help  q quit", width), palette.DIM)]


def _row(one: SnapshotHead, chosen: bool, width: int) -> Text:  # noqa: FBT001 - a drawing detail of this file
    mark = ">" if chosen else " "
    when, trigger, cause = fmt.clock(one.at, dated=True), fmt.fit(one.trigger, 14), fmt.fit(one.cause, 15)
    text = f"{mark} {f'#{one.id}':>6}  {when}  {trigger} {cause} {one.headline}"
    style = palette.BAD if one.trigger == "out-of-memory" else palette.PLAIN
    return Text(fmt.fit(text, width), palette.CHOSEN + style if chosen else style)


class SnapshotPage(Screen[None]):
    """One whole snapshot, scrolled with the arrows."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.pop_screen", "back", key_display="esc"),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
    ]

    def __init__(self, snapshot: OomSnapshot, name: str) -> None:
        super().__init__()
        self._snapshot = snapshot
        self._service_name = name

    def compose(self) -> ComposeResult:
        """Put the page into a scrolling container."""
        with VerticalScroll(id="scroll", can_focus=False):
            yield Page(lambda width: page(self._snapshot, width, self._service_name), id="page")
        yield Lines(self._keys, rows=1, id="keys")

    def action_scroll(self, step: int) -> None:
        """Scroll by a line."""
        self.query_one("#scroll", VerticalScroll).scroll_relative(y=step, animate=False)

    def _keys(self, view: View, width: int, height: int) -> Sequence[Text]:
        del view, height
        return [Text(fmt.fit("up/down scroll  esc back  ? help  q quit", width), palette.DIM)]
