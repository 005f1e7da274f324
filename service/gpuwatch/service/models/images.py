"""JPEG and PNG bytes -> size, and -> pixels. Pure functions over bytes, safe on any thread.

Rules: whatever the bytes, the answer is a value or `BadInput`. The size comes from the header alone, no pixel is
decoded for it, and it is the size that `decode_rgb` gives: both apply the EXIF orientation stated ahead of the pixels
(a PNG may state one behind them: that one is passed over, so that price and work agree). No setting of Pillow's is
changed: they belong to the whole process. Transparent pixels are laid over white, as a page shows them.
"""

import io
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from gpuwatch.service.models.base import BadInput

MAX_PIXELS: Final = 64_000_000
"""Pixels that a header may declare; below Pillow's own limit, and 192 MB as RGB."""
MAX_SIDE: Final = 65_535
"""Pixels that a side may have: JPEG's own limit, held for PNG too."""

Rgb = npt.NDArray[np.uint8]
"""An image of shape (height, width, 3), red first."""

_FORMATS: Final = ("JPEG", "PNG")
_JPEG: Final = b"\xff\xd8\xff"
_EXIF: Final = b"Exif\0\0"  # what an EXIF block of a JPEG opens with
_HIDDEN: Final = b"Hide\0\0"
_UPRIGHT: Final = 1
_TURNS: Final = {  # EXIF 2.32, tag 0x0112: how to lay the stored rows so that the picture stands upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_FIRST_ON_ITS_SIDE: Final = 5
_WHITE: Final = (255, 255, 255)


def image_size(body: bytes) -> tuple[int, int]:
    """Give (width, height) in pixels of the upright image, from the header. Raises `BadInput`."""
    image = _open(body)
    width, height = image.size
    return (height, width) if _orientation(image) >= _FIRST_ON_ITS_SIDE else (width, height)


def decode_rgb(body: bytes) -> Rgb:
    """Give the upright image's pixels, uint8 of shape (height, width, 3), writable. Raises `BadInput`."""
    image = _open(body)
    turn = _TURNS.get(_orientation(image))
    try:
        image.load()
        upright = _as_rgb(image)
        if turn is not None:
            upright = upright.transpose(turn)
        return np.array(upright)
    except MemoryError:
        raise  # the host's trouble, not the body's
    except Exception as broken:  # broad: Pillow's decoders raise whatever they trip over
        raise BadInput(f"the image is truncated or damaged: {broken}") from broken


def _open(body: bytes) -> Image.Image:
    """Read the header and hold it to the limits."""
    if not body:
        raise BadInput("the body is empty; send a JPEG or PNG image")
    image = _read(body)
    if image is None and body.startswith(_JPEG):
        # Pillow looks for the resolution in the EXIF block, and damage there can cost the picture: hide the block.
        image = _read(body.replace(_EXIF, _HIDDEN))
    if image is None:
        raise BadInput("the body is no JPEG or PNG image, or its header is damaged")
    width, height = image.size
    if width < 1 or height < 1:
        raise BadInput(f"the image declares {width} x {height} pixels")
    if max(width, height) > MAX_SIDE:
        raise BadInput(f"the image declares {width} x {height} pixels; a side may have {MAX_SIDE:,}")
    if width * height > MAX_PIXELS:
        raise BadInput(f"the image declares {width} x {height} pixels; {MAX_PIXELS:,} in all are the limit")
    return image


def _read(body: bytes) -> Image.Image | None:
    """Read the header; ``None`` when Pillow finds no image in it."""
    try:
        return Image.open(io.BytesIO(body), formats=_FORMATS)
    except UnidentifiedImageError:
        return None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadInput(f"the image declares more than {MAX_PIXELS:,} pixels") from None
    except MemoryError:
        raise  # the host's trouble, not the body's
    except Exception as broken:  # broad: Pillow's readers raise whatever they trip over
        raise BadInput(f"the image's header is damaged: {broken}") from broken


def _orientation(image: Image.Image) -> int:
    """Give the EXIF orientation, 1 to 8; 1 where there is none or none that can be read."""
    try:
        # The base class's method: PngImageFile.getexif() decodes the pixels to look for a chunk behind them.
        found = Image.Image.getexif(image).get(ExifTags.Base.Orientation, _UPRIGHT)
    except Exception:  # noqa: BLE001 - a damaged EXIF block must not cost the picture, whatever it raises
        return _UPRIGHT
    return found if isinstance(found, int) and found in _TURNS else _UPRIGHT


def _as_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode that JPEG and PNG decode to.

    A transparent colour is found at 1, 8 and 16 bits of grey and at 8 of colour; at the other depths Pillow has
    rescaled the pixels, not the colour, and the picture is taken as opaque.
    """
    if image.mode == "I;16":
        return _from_16_bit(image)
    if not image.has_transparency_data:
        return image.convert("RGB")
    clear = image.convert("RGBA")
    page = Image.new("RGB", clear.size, _WHITE)
    page.paste(clear, mask=clear)
    return page


def _from_16_bit(image: Image.Image) -> Image.Image:
    """Keep the high byte, as Pillow does for 16-bit colour; its own conversion clips 16-bit grey at 255."""
    grey = np.asarray(image)
    high = (grey >> 8).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        high[grey == clear] = 255
    return Image.fromarray(high).convert("RGB")
