"""Boxes by the hundred: the same as one by one."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as fn

from gpuwatch.service.models.boxes import crops, kept, moved, squared, summed_area

BOX = st.tuples(st.integers(-5, 40), st.integers(-5, 40), st.integers(0, 30), st.integers(0, 30)).map(
    lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3])
)
Box = tuple[int, int, int, int]


def area(box: Box) -> int:
    return max(0, box[2] - box[0]) * max(0, box[3] - box[1])


def common(one: Box, two: Box) -> int:
    return area((max(one[0], two[0]), max(one[1], two[1]), min(one[2], two[2]), min(one[3], two[3])))


def greedy(boxes: list[Box], share: float, *, of_smaller: bool) -> list[bool]:
    """Plain greedy suppression, best first, box by box."""
    stay: list[int] = []
    for at, box in enumerate(boxes):
        for better in stay:
            overlap = common(boxes[better], box)
            small = min(area(boxes[better]), area(box))
            whole = small if of_smaller else area(boxes[better]) + area(box) - overlap
            if overlap > share * whole:
                break
        else:
            stay.append(at)
    return [at in stay for at in range(len(boxes))]


def on_the_edge(boxes: list[Box], share: float, *, of_smaller: bool) -> bool:
    """Whether some pair overlaps by the share itself, where rounding may decide."""
    for at, one in enumerate(boxes):
        for two in boxes[:at]:
            whole = min(area(one), area(two)) if of_smaller else area(one) + area(two) - common(one, two)
            if whole and abs(common(one, two) - share * whole) < 1e-3:
                return True
    return False


@settings(deadline=None)
@given(boxes=st.lists(BOX, max_size=40), share=st.sampled_from([0.0, 0.2, 0.45, 0.7, 1.0]), of_smaller=st.booleans())
def test_suppression_keeps_what_greedy_suppression_keeps(boxes: list[Box], share: float, *, of_smaller: bool) -> None:
    assume(share in {0.0, 1.0} or not on_the_edge(boxes, share, of_smaller=of_smaller))
    found = kept(torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4), share, of_smaller=of_smaller)
    assert found.tolist() == greedy(boxes, share, of_smaller=of_smaller)


def test_a_long_chain_of_overlaps_is_settled_box_by_box() -> None:
    chain = [(at, 0, at + 10, 10) for at in range(0, 600, 4)]  # each covers the next, none the one after that
    found = kept(torch.tensor(chain, dtype=torch.float32), 0.4)
    assert found.tolist() == [at % 2 == 0 for at in range(len(chain))]


def test_a_share_of_one_suppresses_nothing_not_even_the_same_box() -> None:
    same = torch.tensor([[0.0, 0.0, 9.0, 9.0]]).repeat(5, 1)
    assert kept(same, 1.0).all()
    assert kept(same, 0.9).tolist() == [True, False, False, False, False]


def test_a_small_box_inside_a_large_one_falls_by_the_share_of_the_smaller_only() -> None:
    nested = torch.tensor([[0.0, 0.0, 100.0, 100.0], [40.0, 40.0, 50.0, 50.0]])
    assert kept(nested, 0.7).tolist() == [True, True]
    assert kept(nested, 0.7, of_smaller=True).tolist() == [True, False]


def test_squaring_keeps_the_centre_and_the_longer_side() -> None:
    assert squared(torch.tensor([[10.0, 20.0, 20.0, 50.0]])).tolist() == [[0.0, 20.0, 30.0, 50.0]]


def test_edges_move_in_shares_of_their_own_box() -> None:
    boxes = torch.tensor([[10.0, 20.0, 20.0, 60.0]])
    assert moved(boxes, torch.tensor([[0.1, 0.1, -0.2, 0.5]])).tolist() == [[11.0, 24.0, 18.0, 80.0]]


def cut_one_by_one(image: Tensor, boxes: Tensor, side: int) -> Tensor:
    """Slice and pool each box on its own."""
    height, width, _ = image.shape
    pixels = image.permute(2, 0, 1).double()
    out = []
    for x1, y1, x2, y2 in boxes.round().long().tolist():
        left, top = min(max(x1, 0), width - 1), min(max(y1, 0), height - 1)
        right, bottom = max(min(x2, width), left + 1), max(min(y2, height), top + 1)
        out.append(fn.adaptive_avg_pool2d(pixels[None, :, top:bottom, left:right], side)[0])
    return torch.stack(out)


@settings(deadline=None)
@given(
    st.tuples(st.integers(1, 60), st.integers(1, 60)),
    st.lists(BOX, min_size=1, max_size=9),
    st.sampled_from([1, 5, 24]),
    st.integers(1, 10),
    st.integers(0, 1000),
)
def test_crops_are_what_slicing_and_pooling_each_box_gives(
    size: tuple[int, int], boxes: list[Box], side: int, at_once: int, seed: int
) -> None:
    image = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8))
    edges = torch.tensor(boxes) + 0.25
    portions = list(crops(summed_area(image), edges, side, at_once))
    assert [len(some) for some in portions[:-1]] == [at_once] * (len(portions) - 1)
    found = torch.cat(portions)
    assert found.shape == (len(boxes), 3, side, side)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), cut_one_by_one(image, edges, side), atol=1e-3, rtol=0)


def test_a_crop_of_one_colour_is_that_colour() -> None:
    image = torch.empty(30, 40, 3, dtype=torch.uint8)
    image[:] = torch.tensor([10, 200, 255], dtype=torch.uint8)
    (found,) = crops(summed_area(image), torch.tensor([[3.0, 4.0, 33.0, 29.0]]), 24, 8)
    assert found.amin((0, 2, 3)).tolist() == found.amax((0, 2, 3)).tolist() == [10.0, 200.0, 255.0]


def test_no_box_gives_one_empty_portion() -> None:
    image = torch.zeros(30, 40, 3, dtype=torch.uint8)
    assert [tuple(some.shape) for some in crops(summed_area(image), torch.empty(0, 4), 24, 8)] == [(0, 3, 24, 24)]


@pytest.mark.parametrize("box", [(0, 0, 20, 20), (2990, 2990, 3000, 3000), (1490, 5, 1700, 400)])
def test_sums_beyond_2_to_the_31_still_give_the_right_means(box: Box) -> None:
    image = torch.full((3000, 3000, 3), 255, dtype=torch.uint8)  # 9 megapixels of white: the corner's sum wraps
    sums = summed_area(image)
    assert int(sums[0, -1, -1]) < 0
    (found,) = crops(sums, torch.tensor([box], dtype=torch.float32), 24, 8)
    assert (found == 255).all()
