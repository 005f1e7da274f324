"""Source in, messages out: one worker reads the news, and never two at once."""

from textual.message import Message
from textual.widget import Widget

from gpuwatch.tui.sources.base import Source
from gpuwatch.tui.view import News


class Arrived(Message):
    """News have come."""

    def __init__(self, news: News) -> None:
        super().__init__()
        self.news = news


class Feed(Widget):
    """Reads a source for as long as it is mounted; shows nothing."""

    DEFAULT_CSS = "Feed { display: none; }"

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source

    def on_mount(self) -> None:
        """Begin to read."""
        self.run_worker(self._read(), exclusive=True, group="feed")

    async def _read(self) -> None:
        async for news in self._source.news():
            self.post_message(Arrived(news))
