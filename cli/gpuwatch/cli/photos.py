"""The demo's request bodies: real photographs, made from one that is already installed.

Rules: nothing is drawn or downloaded. The portrait is ``grace_hopper.jpg`` (a US Navy photograph, public domain) from
matplotlib's sample data, found without importing matplotlib; Pillow gives it the sizes. The same bytes every time.
"""

import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwatch.cli.traffic import Body

if TYPE_CHECKING:
    from PIL.Image import Image

PORTRAIT: Final = Path("mpl-data") / "sample_data" / "grace_hopper.jpg"

NO_PILLOW: Final = (
    "the demo's photographs are made with Pillow, which is not installed: "
    "pip install 'gpuwatch-dashboard[demo]' brings it"
)


class PhotosMissing(Exception):
    """The demo's photographs cannot be made here; the message says what to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One picture to make: its size in pixels, whether mirrored, portraits a side of the tile, file format, share."""

    width: int
    height: int
    mirrored: bool = False
    tiles: int = 1
    kind: str = "jpeg"
    weight: float = 1.0

    @property
    def name(self) -> str:
        """Say what it is, e.g. ``512x600-mirrored.jpeg``."""
        extra = ("-mirrored" if self.mirrored else "") + (f"-{self.tiles**2}-portraits" if self.tiles > 1 else "")
        return f"{self.width}x{self.height}{extra}.{self.kind}"


# Mostly small and medium with a few large ones, as uploads are: the large ones are what makes bytes the limit.
SHOTS: Final[tuple[Shot, ...]] = (
    Shot(width=512, height=600, weight=30),
    Shot(width=512, height=600, mirrored=True, weight=20),
    Shot(width=768, height=900, weight=18),
    Shot(width=768, height=900, mirrored=True, kind="png", weight=8),
    Shot(width=1024, height=1200, weight=10),
    Shot(width=1024, height=1200, tiles=2, weight=6),
    Shot(width=1536, height=1800, mirrored=True, weight=8),
)


def portrait_path(package: str = "matplotlib") -> Path:
    """Find the portrait among ``package``'s files. Raises `PhotosMissing`."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise PhotosMissing(
            f"the demo's photographs come from {package}, which is not installed: "
            "pip install 'gpuwatch-dashboard[demo]' brings it"
        )
    path = Path(spec.origin).parent / PORTRAIT
    if not path.is_file():
        raise PhotosMissing(
            f"{path} is missing: this {package} came without its sample data; "
            "install the wheel from PyPI (the `demo` extra of gpuwatch-dashboard does)"
        )
    return path


def check() -> None:
    """Raise `PhotosMissing` where the pictures could not be made, without making them."""
    portrait_path()
    if importlib.util.find_spec("PIL") is None:
        raise PhotosMissing(NO_PILLOW)


def demo_bodies(shots: tuple[Shot, ...] = SHOTS, *, portrait: Path | None = None) -> list[Body]:
    """Make the pictures. Raises `PhotosMissing` without Pillow or without the portrait."""
    try:
        from PIL import Image  # noqa: PLC0415 - the demo extra's
    except ImportError:
        raise PhotosMissing(NO_PILLOW) from None
    with Image.open(portrait or portrait_path()) as opened:
        original = opened.convert("RGB")
    return [
        Body(name=s.name, content=_encode(_take(original, s), s), content_type=f"image/{s.kind}", weight=s.weight)
        for s in shots
    ]


def _take(original: "Image", shot: Shot) -> "Image":
    from PIL import Image, ImageOps  # noqa: PLC0415 - the demo extra's

    picture = ImageOps.mirror(original) if shot.mirrored else original
    if shot.tiles == 1:
        return picture.resize((shot.width, shot.height), Image.Resampling.LANCZOS)
    across, down = shot.width // shot.tiles, shot.height // shot.tiles
    small = picture.resize((across, down), Image.Resampling.LANCZOS)
    tiled = Image.new("RGB", (shot.width, shot.height))
    for place in range(shot.tiles**2):
        row, column = divmod(place, shot.tiles)
        tiled.paste(small if (row + column) % 2 == 0 else ImageOps.mirror(small), (column * across, row * down))
    return tiled


def _encode(picture: "Image", shot: Shot) -> bytes:
    buffer = io.BytesIO()
    if shot.kind == "png":
        picture.save(buffer, "PNG", compress_level=3)
    else:
        picture.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
