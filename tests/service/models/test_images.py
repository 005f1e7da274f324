"""Bytes to sizes and pixels: an answer or a reason, whatever the bytes."""

import io
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import STORED_AS, encoded, portrait, portrait_bytes, stored
from PIL import Image, ImageFile, PngImagePlugin

from gpuwatch.service.models.base import BadInput
from gpuwatch.service.models.images import MAX_PIXELS, MAX_SIDE, decode_rgb, image_size

SMALL = portrait(48, 60)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    width: int, height: int, rows: bytes = b"", *, bits: int = 8, colour: int = 2, extra: bytes = b"", late: bytes = b""
) -> bytes:
    """Write a PNG by hand, with chunks before (``extra``) and behind (``late``) the pixels."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + pixels + late + chunk(b"IEND", b"")


def exif(orientation: int) -> bytes:
    block = Image.Exif()
    block[0x0112] = orientation
    return block.tobytes()


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def reason(body: bytes) -> str:
    with pytest.raises(BadInput) as caught:
        image_size(body)
    assert caught.value.status == 400
    return str(caught.value)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_size_and_pixels_agree_and_are_the_pictures_own(kind: str) -> None:
    body = encoded(SMALL, kind)
    pixels = decode_rgb(body)
    assert image_size(body) == (48, 60)
    assert pixels.shape == (60, 48, 3)
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    assert np.abs(pixels.astype(int) - np.asarray(SMALL)).mean() < (0.01 if kind == "PNG" else 6)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", sorted(STORED_AS))
def test_every_orientation_comes_out_upright(kind: str, orientation: int) -> None:
    body = stored(SMALL, orientation, kind)
    pixels = decode_rgb(body)
    assert image_size(body) == (48, 60)
    assert pixels.shape == (60, 48, 3)
    assert np.abs(pixels.astype(int) - np.asarray(SMALL)).mean() < (0.01 if kind == "PNG" else 6)


def test_a_portrait_stored_on_its_side_reports_swapped_sides() -> None:
    assert image_size(encoded(SMALL, "JPEG", orientation=6)) == (60, 48)


def test_an_orientation_behind_the_pixels_counts_for_neither_size_nor_pixels() -> None:
    rows = bytes(1 + 3 * 2) * 4
    body = png(2, 4, rows, late=chunk(b"eXIf", exif(6)))
    assert image_size(body) == (2, 4)
    assert decode_rgb(body).shape == (4, 2, 3)


@settings(deadline=None)
@given(st.binary(max_size=120))
def test_any_exif_block_leaves_a_jpeg_decodable(block: bytes) -> None:
    body = saved(SMALL, "JPEG", exif=b"Exif\0\0" + block)
    assert decode_rgb(body).shape[:2] == image_size(body)[::-1]


@pytest.mark.parametrize("width_type", [1, 2, 7])
def test_an_exif_resolution_that_trips_pillow_up_leaves_the_picture(width_type: int) -> None:
    # XResolution (0x011A) of one value of a type that it cannot have
    entry = struct.pack(">HHII", 0x011A, width_type, 1, 0)
    block = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", 2) + entry + struct.pack(">HHIHH", 0x0128, 3, 1, 2, 0)
    body = saved(SMALL, "JPEG", exif=block + bytes(4))
    assert image_size(body) == (48, 60)
    assert decode_rgb(body).shape == (60, 48, 3)


def test_an_empty_body_says_so() -> None:
    assert "empty" in reason(b"")


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "WEBP"])
def test_other_formats_are_refused_with_what_is_taken(kind: str) -> None:
    assert "no JPEG or PNG" in reason(saved(SMALL, kind))


@pytest.mark.parametrize("body", [b"\0", b"hello", b'{"texts": []}', b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"])
def test_what_is_no_image_is_refused(body: bytes) -> None:
    assert reason(body)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_truncated_image_has_a_size_but_no_pixels(kind: str) -> None:
    body = encoded(portrait(), kind)
    body = body[: len(body) // 2]
    assert image_size(body) == (512, 600)
    with pytest.raises(BadInput, match="truncated"):
        decode_rgb(body)


def test_the_size_is_read_without_looking_at_the_pixels() -> None:
    body = png(700, 500, b"no rows at all")
    assert image_size(body) == (700, 500)
    with pytest.raises(BadInput, match="truncated or damaged"):
        decode_rgb(body)


@pytest.mark.parametrize(
    "sides", [(MAX_PIXELS // 8000 + 1, 8000), (12_000, 12_000), (40_000, 40_000), (65_535, 65_535)]
)
def test_more_pixels_than_the_limit_are_refused_from_the_header(sides: tuple[int, int]) -> None:
    body = png(*sides)
    assert f"{MAX_PIXELS:,}" in reason(body)
    with pytest.raises(BadInput, match=f"{MAX_PIXELS:,}"):
        decode_rgb(body)


def test_a_bomb_is_refused_in_a_process_that_could_not_hold_its_pixels() -> None:
    program = (
        "import resource, sys; from gpuwatch.service.models.images import decode_rgb, image_size, BadInput\n"
        "body, refused = sys.stdin.buffer.read(), 0\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + (64 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size, size))\n"
        "for look in (image_size, decode_rgb):\n"
        "    try: look(body)\n"
        "    except BadInput: refused += 1\n"
        "print(refused)"
    )
    body = png(40_000, 40_000, bytes(1 << 20))
    done = subprocess.run([sys.executable, "-c", program], input=body, capture_output=True, check=True)  # noqa: S603 - our own interpreter
    assert done.stdout.split() == [b"2"]


@pytest.mark.parametrize("sides", [(0, 10), (10, 0), (0, 0)])
def test_no_side_may_be_zero(sides: tuple[int, int]) -> None:
    assert reason(png(*sides))


@pytest.mark.parametrize("sides", [(MAX_SIDE + 1, 1), (1, MAX_SIDE + 1), (2**31 - 1, 1), (2**32 - 1, 1)])
def test_no_side_may_be_absurd(sides: tuple[int, int]) -> None:
    assert reason(png(*sides))


def test_the_largest_side_is_allowed() -> None:
    assert image_size(png(MAX_SIDE, 1)) == (MAX_SIDE, 1)


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB"])
def test_opaque_modes_keep_what_they_show(mode: str) -> None:
    image = SMALL.convert(mode)
    assert np.array_equal(decode_rgb(saved(image, "PNG")), np.asarray(image.convert("RGB")))


def test_16_bit_grey_keeps_its_high_byte() -> None:
    values = np.array([[0, 255, 256, 0x7FFF, 0x8000, 0xFFFF]], np.uint16)
    pixels = decode_rgb(saved(Image.fromarray(values), "PNG"))
    assert pixels[0].tolist() == [[v >> 8] * 3 for v in values[0].tolist()]


def test_16_bit_colour_keeps_its_high_bytes() -> None:
    rows = b"\0" + struct.pack(">6H", 0x1234, 0x8001, 0xFFFF, 0, 0x00FF, 0x0100)
    assert decode_rgb(png(2, 1, rows, bits=16)).tolist() == [[[0x12, 0x80, 0xFF], [0, 0, 1]]]


def test_cmyk_is_turned_into_light() -> None:
    body = saved(Image.new("CMYK", (16, 16), (255, 0, 0, 0)), "JPEG", quality=100)
    red, green, blue = decode_rgb(body)[8, 8].tolist()
    assert red < 10
    assert min(green, blue) > 245


@pytest.mark.parametrize(("alpha", "shown"), [(255, 10), (0, 255), (128, 132)])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_lies_over_white(mode: str, alpha: int, shown: int) -> None:
    colour = (10, 10, 10, alpha) if mode == "RGBA" else (10, alpha)
    pixels = decode_rgb(saved(Image.new(mode, (2, 2), colour), "PNG"))
    assert np.abs(pixels.astype(int) - shown).max() <= 1


def test_a_palettes_transparent_colour_lies_over_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([0, 1])
    assert decode_rgb(saved(image, "PNG", transparency=1)).tolist() == [[[10, 20, 30], [255, 255, 255]]]


def test_a_16_bit_greys_transparent_value_lies_over_white() -> None:
    rows = b"\0" + struct.pack(">2H", 300, 512)
    body = png(2, 1, rows, bits=16, colour=0, extra=chunk(b"tRNS", struct.pack(">H", 300)))
    assert decode_rgb(body)[0, :, 0].tolist() == [255, 2]


def seeds() -> list[bytes]:
    described = PngImagePlugin.PngInfo()
    described.add_text("about", "words " * 20, zip=True)
    described.add_itxt("XML:com.adobe.xmp", "<tiff:Orientation>6</tiff:Orientation>")
    grey_16 = Image.fromarray(np.asarray(SMALL.convert("L")).astype(np.uint16) << 8)
    turned = SMALL.transpose(Image.Transpose.ROTATE_90)
    return [
        stored(SMALL, 6, "JPEG"),
        stored(SMALL, 6, "PNG"),
        saved(SMALL, "JPEG", progressive=True, dpi=(72, 72)),
        saved(SMALL.convert("CMYK"), "JPEG"),
        saved(SMALL, "MPO", save_all=True, append_images=[turned]),
        saved(SMALL, "PNG", save_all=True, append_images=[turned]),
        saved(SMALL, "PNG", pnginfo=described),
        saved(grey_16, "PNG"),
        saved(SMALL.convert("P"), "PNG", transparency=3),
        saved(SMALL.convert("RGBA"), "PNG"),
    ]


SEEDS = seeds()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A real image with bytes changed, cut out or put in, most of them in its header."""
    body = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, min(len(body), draw(st.sampled_from([100, 400, 1 << 20]))) - 1)))
        length = draw(st.integers(0, 12))
        body[at : at + length] = draw(st.binary(max_size=12))
    return bytes(body)


@settings(max_examples=600, deadline=None)
@given(mutated())
def test_any_mutation_decodes_to_the_size_it_declares_or_is_bad_input(body: bytes) -> None:
    try:
        size = image_size(body)
    except BadInput:
        size = None
    try:
        pixels = decode_rgb(body)
    except BadInput:
        return
    assert size == (pixels.shape[1], pixels.shape[0])
    assert pixels.shape[2:] == (3,)
    assert pixels.dtype == np.uint8


def test_the_first_picture_of_several_is_taken() -> None:
    turned = SMALL.transpose(Image.Transpose.ROTATE_180)
    body = saved(SMALL, "PNG", save_all=True, append_images=[turned])
    assert np.array_equal(decode_rgb(body), np.asarray(SMALL))


def pillows_settings() -> tuple[bool, int | None]:
    return ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS


def test_threads_decode_at_once_and_no_setting_of_pillows_changes() -> None:
    before = pillows_settings()
    right = decode_rgb(portrait_bytes())
    half = portrait_bytes()[:20_000]

    def look(number: int) -> bool:
        if number % 2:
            return np.array_equal(decode_rgb(portrait_bytes()), right)
        with pytest.raises(BadInput):
            decode_rgb(half)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(look, range(24)))
    assert pillows_settings() == before
