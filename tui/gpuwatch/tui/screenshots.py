"""``python -m gpuwatch.tui.screenshots DIR``: the console's pictures from the scripted scene, the same every time."""

import asyncio
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from textual.pilot import Pilot

from gpuwatch.tui.app import Console
from gpuwatch.tui.sources import scene
from gpuwatch.tui.sources.scripted import ScriptedSource

TRIES: Final = 200
SIZES: Final = ((80, 24), (120, 40))
SHOTS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("dashboard", ()),
    ("snapshots", ("3",)),
    ("snapshot", ("3", "down", "enter")),
    ("help", ("question_mark",)),
)
_ID: Final = re.compile(r"terminal-\d+")


async def picture(keys: Sequence[str], size: tuple[int, int]) -> str:
    """Press ``keys`` in a console of ``size`` cells and give its picture as SVG; its time of day is UTC."""
    with _utc():
        console = Console(ScriptedSource(), clock=lambda: scene.NOW)
        async with console.run_test(size=size) as pilot:
            await settled(console, pilot)
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            return _ID.sub("terminal", console.export_screenshot(title="gpuwatch tui"))


@contextmanager
def _utc() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        del os.environ["TZ"]
        if before is not None:
            os.environ["TZ"] = before
        time.tzset()


async def settled(console: Console, pilot: Pilot[None]) -> None:
    """Wait until the scene has been told, at most `TRIES` pauses. Raises `TimeoutError`."""
    for _ in range(TRIES):
        await pilot.pause()
        if console.view.rates is not None:
            return
    raise TimeoutError("the scene was not told")


def main(arguments: Sequence[str]) -> int:
    """Write all pictures into the folder named."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m gpuwatch.tui.screenshots DIR\n")
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name, keys in SHOTS:
        for size in SIZES:
            path = folder / f"{name}-{size[0]}x{size[1]}.svg"
            path.write_text(asyncio.run(picture(keys, size)))
            sys.stderr.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
