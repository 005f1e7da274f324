"""The screens as plain text, to be read in a review; the pictures in ``screenshots`` hold the colours as well.

After a wanted change: ``PYTHONPATH=tests .venv/bin/python tests/tui/test_golden.py``, read the difference, commit.
"""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tui_pilot import console, pressed, screen_text

from gpuwatch.tui.screenshots import SHOTS, SIZES, picture

GOLDEN = Path(__file__).parent / "golden"
CASES = [(name, keys, size) for name, keys in SHOTS for size in SIZES]


def path_of(name: str, size: tuple[int, int]) -> Path:
    return GOLDEN / f"{name}-{size[0]}x{size[1]}.txt"


async def drawn(keys: tuple[str, ...], size: tuple[int, int]) -> str:
    with utc():
        async with console(size) as (app, pilot):
            await pressed(pilot, *keys)
            return "\n".join(line.rstrip() for line in screen_text(app).splitlines()) + "\n"


@contextmanager
def utc() -> Iterator[None]:
    """Let the time of day be UTC, and put back what was."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        yield
    finally:
        if before is None:
            del os.environ["TZ"]
        else:
            os.environ["TZ"] = before
        time.tzset()


@pytest.mark.parametrize(("name", "keys", "size"), CASES)
def test_a_screen_reads_as_its_text_does(name: str, keys: tuple[str, ...], size: tuple[int, int]) -> None:
    assert asyncio.run(drawn(keys, size)) == path_of(name, size).read_text()


def test_a_picture_is_the_same_byte_for_byte_each_time() -> None:
    keys = ("3", "down", "enter")
    assert asyncio.run(picture(keys, SIZES[0])) == asyncio.run(picture(keys, SIZES[0]))


def main() -> None:
    """Write all texts anew."""
    GOLDEN.mkdir(exist_ok=True)
    for name, keys, size in CASES:
        path_of(name, size).write_text(asyncio.run(drawn(keys, size)))
        sys.stderr.write(f"{path_of(name, size)}\n")


if __name__ == "__main__":
    main()
