"""Photographs for tests: the portrait that matplotlib ships (a US Navy photograph, public domain), as bytes."""

import importlib.util
import io
from functools import cache
from pathlib import Path

from PIL import Image

ORIENTATION = 0x0112
STORED_AS = {  # EXIF orientation -> how an upright picture is stored under it: the inverse of how it is shown
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@cache
def portrait_bytes() -> bytes:
    """Read the file: a JPEG of 512 x 600 pixels with one face."""
    spec = importlib.util.find_spec("matplotlib")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "mpl-data" / "sample_data" / "grace_hopper.jpg").read_bytes()


def portrait(width: int = 512, height: int = 600) -> Image.Image:
    """Give the portrait as RGB at any size."""
    image = Image.open(io.BytesIO(portrait_bytes())).convert("RGB")
    return image if image.size == (width, height) else image.resize((width, height), Image.Resampling.LANCZOS)


def encoded(image: Image.Image, kind: str = "PNG", *, orientation: int | None = None) -> bytes:
    """Write an image as JPEG or PNG, with an EXIF orientation where one is given."""
    out = io.BytesIO()
    exif = Image.Exif()
    if orientation is not None:
        exif[ORIENTATION] = orientation
    image.save(out, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {}))
    return out.getvalue()


def stored(image: Image.Image, orientation: int, kind: str = "PNG") -> bytes:
    """Write an upright image the way a camera held at ``orientation`` does: turned, and tagged."""
    turn = STORED_AS[orientation]
    return encoded(image if turn is None else image.transpose(turn), kind, orientation=orientation)
