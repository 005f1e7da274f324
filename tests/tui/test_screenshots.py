"""The screens as they were last looked at. After a wanted change: ``make screenshots``, look, commit the pictures."""

import asyncio
from pathlib import Path

import pytest

from gpuwatch.tui.screenshots import SHOTS, SIZES, main, picture

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("name", "keys"), SHOTS, ids=[name for name, _ in SHOTS])
def test_a_screen_looks_as_its_picture_does(name: str, keys: tuple[str, ...], size: tuple[int, int]) -> None:
    drawn = asyncio.run(picture(keys, size))
    assert drawn == (ROOT / "screenshots" / f"{name}-{size[0]}x{size[1]}.svg").read_text()


def test_without_a_folder_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
