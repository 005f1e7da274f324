"""The detector's price table, measured on the simulated card, and how tight it is at sizes that it was not made from.

Run: ``python bench/price_table.py [MEGAPIXELS]`` (8 by default: the largest point of the table). First it prints the
table as source for ``service/models/detector.py``: live peak bytes by pixels, the largest over several shapes, of the
cascade with every threshold at 0 and suppression off, so that every box goes through every network: no picture can
cost more. Then it prices photographs at held-out sizes with the table in force, and the bound itself there, and prints
peak / price of each: above 1.00 the table is broken (exit status 1).
"""

import importlib.util
import sys
import time
from collections.abc import Iterator
from math import ceil, sqrt
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from gpuwatch.service.gpu.simulated import SimulatedCard
from gpuwatch.service.models.detector import PRICES, Detector
from gpuwatch.service.models.images import Rgb
from gpuwatch.service.models.mtcnn import Mtcnn

CARD_BYTES = 1 << 40
"""Larger than any run: what is measured is what a run asks for, not what it gets."""
ASPECTS = (1.0, 0.8, 1.5, 1 / 3, 5.0, 8.0, 1 / 16)
# From 64 x 64 on: below, the bound goes up in steps, a crop at a time, and a chord would cut them.
POINTS = tuple(side * side for side in (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1448, 2048, 2896, 4096))
HELD_OUT = ((20, 20), (34, 93), (78, 44), (100, 117), (320, 240), (256, 300), (512, 600), (1600, 100), (20, 65_535),
            (768, 900), (1024, 1200), (1536, 1800), (2000, 3000))  # fmt: skip


def shapes(pixels: int) -> Iterator[tuple[int, int]]:
    """Walk (width, height) of at least ``pixels`` pixels in every aspect."""
    for aspect in ASPECTS:
        width = ceil(sqrt(pixels * aspect))
        yield width, ceil(pixels / width)


def photographs(width: int, height: int) -> Iterator[tuple[str, Rgb]]:
    """Make pictures of every kind: one face, the same mirrored, a crowd of it, and noise."""
    spec = importlib.util.find_spec("matplotlib")
    assert spec is not None
    assert spec.origin is not None
    with Image.open(Path(spec.origin).parent / "mpl-data" / "sample_data" / "grace_hopper.jpg") as opened:
        portrait = opened.convert("RGB")
    yield "portrait", np.array(portrait.resize((width, height)))
    yield "mirrored", np.array(ImageOps.mirror(portrait).resize((width, height)))
    one = portrait.resize((min(80, width), min(94, height)))
    crowd = np.tile(np.array(one), (ceil(height / one.height), ceil(width / one.width), 1))
    yield "crowd", np.ascontiguousarray(crowd[:height, :width])
    yield "noise", np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)


def peak_bytes(card: SimulatedCard, network: Mtcnn, image: Rgb) -> int:
    """Give the live peak of one image, its way onto the card included."""
    with card.run() as measured:
        network(torch.from_numpy(image).to(card.torch_device))
    assert measured.peak_bytes is not None
    return measured.peak_bytes


def blank(width: int, height: int) -> Rgb:
    """Make a picture of that size; where every box goes on, what it shows does not matter."""
    return np.zeros((height, width, 3), np.uint8)


def table(card: SimulatedCard, everything: Mtcnn, most_pixels: int) -> list[tuple[int, int]]:
    """Measure the points."""
    return [
        (pixels, max(peak_bytes(card, everything, blank(*shape)) for shape in shapes(pixels)))
        for pixels in POINTS
        if pixels <= most_pixels
    ]


def check(card: SimulatedCard, everything: Mtcnn) -> bool:
    """Print peak and price of every picture at every held-out size; tell whether no peak is above its price."""
    usual, detector = Mtcnn.pretrained(), Detector()
    holds = True
    for width, height in HELD_OUT:
        price_bytes = detector.price({"height": height, "width": width})
        pictures = [(name, usual, image) for name, image in photographs(width, height)]
        for name, network, image in [*pictures, ("the bound", everything, blank(width, height))]:
            started = time.perf_counter()
            live_bytes = peak_bytes(card, network, image)
            took_s = time.perf_counter() - started
            holds = holds and live_bytes <= price_bytes
            print(
                f"{f'{width}x{height}':>10} {name:<9} {took_s:7.3f} s  peak {live_bytes / 2**20:8.2f} MiB  "
                f"price {price_bytes / 2**20:8.2f} MiB  peak/price {live_bytes / price_bytes:.2f}"
            )
    return holds


def main() -> int:
    """Print the table, then the check."""
    most_pixels = int(float(sys.argv[1]) * 2**20) if len(sys.argv) > 1 else 8 << 20
    card = SimulatedCard(0, CARD_BYTES)
    everything = Mtcnn.pretrained(thresholds=(0.0, 0.0, 0.0), overlaps=(1.0, 1.0))
    print("    points=(")
    for pixels, live_bytes in table(card, everything, most_pixels):
        print(f"        ({pixels:_}, {live_bytes:_}),  # {live_bytes / pixels:.0f} bytes a pixel")
    print("    ),")
    print(f"in force: {len(PRICES.points)} points, margin {PRICES.margin_pct} %")
    return 0 if check(card, everything) else 1


if __name__ == "__main__":
    sys.exit(main())
