"""The detector's price table, measured on the simulated card, and how tight it is at sizes that it was not made from.

Run: ``python bench/price_table.py [MEGAPIXELS]`` (8 by default: the largest point of the table). First it prints the
table as source for ``service/models/detector.py``: live peak bytes by pixels, the largest over several shapes, of the
cascade with every threshold at 0 and suppression off, so that every box goes through every network: no picture can
cost more. Then it prices photographs at held-out sizes with the table in force and prints peak / price of each: above
1.00 the table is broken (exit status 1).
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
ASPECTS = (1.0, 0.8, 1.5, 1 / 3, 8.0)
POINTS = tuple(side * side for side in (32, 64, 128, 256, 384, 512, 768, 1024, 1448, 2048, 2896, 4096))
HELD_OUT = ((20, 20), (40, 47), (100, 117), (320, 240), (256, 300), (512, 600), (1600, 100), (768, 900), (1024, 1200),
            (1536, 1800), (2000, 3000))  # fmt: skip


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


def bound_bytes(card: SimulatedCard, network: Mtcnn, width: int, height: int) -> int:
    """Give the live peak of one image of that size when nothing is dropped."""
    with card.run() as measured:
        network(torch.from_numpy(np.zeros((height, width, 3), np.uint8)).to("cpu"))
    assert measured.peak_bytes is not None
    return measured.peak_bytes


def table(card: SimulatedCard, most_pixels: int) -> list[tuple[int, int]]:
    """Measure the points."""
    network = Mtcnn.pretrained(thresholds=(0.0, 0.0, 0.0), overlaps=(1.0, 1.0))
    return [
        (pixels, max(bound_bytes(card, network, *shape) for shape in shapes(pixels)))
        for pixels in POINTS
        if pixels <= most_pixels
    ]


def check(card: SimulatedCard) -> bool:
    """Print peak and price of every photograph at every held-out size; tell whether no peak is above its price."""
    detector = Detector()
    with card.loading():
        detector.load("cpu")
    holds = True
    for width, height in HELD_OUT:
        price_bytes = detector.price({"height": height, "width": width})
        for name, image in photographs(width, height):
            started = time.perf_counter()
            with card.run() as measured:
                (faces,) = detector.infer([image])
            took_s = time.perf_counter() - started
            peak_bytes = measured.peak_bytes or 0
            holds = holds and peak_bytes <= price_bytes
            print(
                f"{f'{width}x{height}':>10} {name:<9} {len(faces.scores):4} faces {took_s:7.3f} s "
                f"peak {peak_bytes / 2**20:8.2f} MiB  price {price_bytes / 2**20:8.2f} MiB  "
                f"peak/price {peak_bytes / price_bytes:.2f}"
            )
    return holds


def main() -> int:
    """Print the table, then the check."""
    most_pixels = int(float(sys.argv[1]) * 2**20) if len(sys.argv) > 1 else 8 << 20
    card = SimulatedCard(0, CARD_BYTES)
    points = table(card, most_pixels)
    print("    points=(")
    for pixels, peak_bytes in points:
        print(f"        ({pixels:_}, {peak_bytes:_}),  # {peak_bytes / pixels:.0f} bytes a pixel")
    print("    ),")
    print(f"in force: {len(PRICES.points)} points, margin {PRICES.margin_pct} %")
    return 0 if check(card) else 1


if __name__ == "__main__":
    sys.exit(main())
