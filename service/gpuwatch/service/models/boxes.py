"""Boxes in an image, and crops of it, by the hundred at once: what a cascade of detectors needs between its networks.

Rules: tensors in, tensors out, on whatever device they are; no Python loop over boxes. A box is (x1, y1, x2, y2) in
pixels, half-open: its width is x2 - x1. Suppression takes a square of memory in the number of boxes, so callers bound
it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def squared(boxes: Tensor) -> Tensor:
    """Grow each box (n, 4) about its centre to a square of its longer side."""
    low, high = boxes[:, :2], boxes[:, 2:]
    centre = (low + high) / 2
    half = (high - low).amax(1, keepdim=True) / 2
    return torch.cat([centre - half, centre + half], 1)


def moved(boxes: Tensor, shifts: Tensor) -> Tensor:
    """Move each edge of the boxes (n, 4) by ``shifts`` (n, 4), in shares of the box's own width and height."""
    return boxes + shifts * (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)


def kept(boxes: Tensor, overlap: float, *, of_smaller: bool = False) -> Tensor:
    """Tell which boxes (n, 4), best first, survive greedy suppression, as booleans (n,).

    A box falls when a surviving better one overlaps it by more than ``overlap`` of their union, or of the smaller of
    the two. Greedy suppression is the only fixed point of "I survive when no better survivor covers me": started from
    all, each round settles at least the next box for good, so it ends, and in as many rounds as chains of overlapping
    boxes are long, not as there are boxes.
    """
    covers = _overlaps(boxes, overlap, of_smaller=of_smaller).triu(1)
    alive = covers.new_ones(len(boxes))
    while True:
        settled = (covers & alive[:, None]).any(0).logical_not()
        if torch.equal(settled, alive):
            return alive
        alive = settled


def _overlaps(boxes: Tensor, overlap: float, *, of_smaller: bool) -> Tensor:
    """Tell which pairs overlap by more than the share, as booleans (n, n). Works in place: three floats a pair."""
    low, high = boxes[:, :2], boxes[:, 2:]
    area = (high - low).clamp(min=0).prod(1)
    common = _common(low[:, 0], high[:, 0]).mul_(_common(low[:, 1], high[:, 1]))
    whole = torch.minimum(area[:, None], area) if of_smaller else (area[:, None] + area).sub_(common)
    return common > whole.mul_(overlap)


def _common(low: Tensor, high: Tensor) -> Tensor:
    """Give the length that every pair of intervals has in common (n, n)."""
    return torch.minimum(high[:, None], high).sub_(torch.maximum(low[:, None], low)).clamp_(min=0)


def summed_area(image: Tensor) -> Tensor:
    """Sum a uint8 image (height, width, 3) above and left of every corner: int32 (3, height + 1, width + 1).

    Source: F. Crow, "Summed-area tables for texture mapping", SIGGRAPH 1984. Sums wrap beyond 8 megapixels of white;
    differences of them stay right as long as the true sum of what is cut out is below 2^31.
    """
    height, width, channels = image.shape
    sums = torch.zeros((channels, height + 1, width + 1), dtype=torch.int32, device=image.device)
    sums[:, 1:, 1:] = image.permute(2, 0, 1)
    return sums.cumsum_(1).cumsum_(2)


def crops(sums: Tensor, boxes: Tensor, side: int, at_once: int) -> Iterator[Tensor]:
    """Cut boxes (n, 4) out of an image given as `summed_area`, each averaged down to (3, side, side) floats.

    Gives them in order, ``at_once`` at a time: (at most at_once, 3, side, side). Edges are rounded, then clipped to the
    image; at least one pixel stays. Each target pixel is the plain mean of the source pixels it touches, exactly as
    adaptive average pooling takes it (crops smaller than that repeat pixels).
    """
    channels, rows, columns = sums.shape
    flat = sums.view(channels, rows * columns)
    edges = boxes.round().long()
    across = _bins(edges[:, 0], edges[:, 2], columns - 1, side)
    down = _bins(edges[:, 1], edges[:, 3], rows - 1, side)
    for some_down, some_across in zip(torch.split(down, at_once), torch.split(across, at_once), strict=True):
        yield _means(flat, columns, some_down[:, :, :, None, None], some_across[:, None, None])


def _means(flat: Tensor, columns: int, down: Tensor, across: Tensor) -> Tensor:
    """Average between rows (n, 2, side, 1, 1) and columns (n, 1, 1, 2, side). A function, to let go of what it gathers.

    One gather takes the four corners of every bin, two differences turn them into its sum.
    """
    total = flat[:, down * columns + across].diff(dim=2).diff(dim=4)
    area = down.diff(dim=1) * across.diff(dim=3)
    return (total / area)[:, :, 0, :, 0].transpose(0, 1)


def _bins(low: Tensor, high: Tensor, limit: int, side: int) -> Tensor:
    """Give the first and the past-the-last source pixel of each of ``side`` bins between two edges: (n, 2, side)."""
    first = low.clamp(0, limit - 1)
    length = torch.maximum(high.clamp(max=limit) - first, torch.ones_like(first))[:, None]
    step = torch.arange(side + 1, device=low.device) * length
    start = step[:, :-1].div(side, rounding_mode="floor")
    end = (step[:, 1:] + (side - 1)).div(side, rounding_mode="floor")
    return torch.stack([start, end], 1) + first[:, None, None]
