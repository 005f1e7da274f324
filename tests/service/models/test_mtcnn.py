"""The cascade on a real photograph."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
import torch
from pictures import portrait
from PIL import Image, ImageOps
from torch import Tensor

from gpuwatch.service.gpu.tracker import StorageTracker
from gpuwatch.service.models.images import MAX_SIDE
from gpuwatch.service.models.mtcnn import (
    PIXELS_A_PROPOSAL,
    REFINED,
    SMALLEST_FACE,
    Mtcnn,
    WeightsMissing,
    scaled_sizes,
    weights_dir,
)

FACE = (176, 116, 347, 333)
"""Where the face is in the portrait of 512 x 600, to the eye."""


@pytest.fixture(scope="module")
def network() -> Mtcnn:
    return Mtcnn.pretrained()


@pytest.fixture(scope="module")
def everything() -> Mtcnn:
    return Mtcnn.pretrained(thresholds=(0.0, 0.0, 0.0), overlaps=(1.0, 1.0))


def tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image))


def shared(one: list[float], two: list[float]) -> float:
    """Give the overlap of two boxes over their union."""
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    common = max(0.0, width) * max(0.0, height)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
    return common / (sum(areas) - common)


def the_face(network: Mtcnn, image: Image.Image) -> list[float]:
    boxes, scores = network(tensor(image))
    assert boxes.shape == (1, 4)
    assert float(scores[0]) > 0.99
    return [float(edge) for edge in boxes[0]]


@pytest.mark.parametrize("scale", [0.15, 0.5, 1.0, 1.5])
def test_the_portrait_has_one_face_at_every_size(network: Mtcnn, scale: float) -> None:
    box = the_face(network, portrait(int(512 * scale), int(600 * scale)))
    assert shared(box, [edge * scale for edge in FACE]) > 0.75


def test_the_mirrored_portrait_has_the_face_on_the_other_side(network: Mtcnn) -> None:
    x1, y1, x2, y2 = the_face(network, ImageOps.mirror(portrait()))
    assert shared([512 - x2, y1, 512 - x1, y2], list(FACE)) > 0.75


def test_four_portraits_have_four_faces_each_in_its_own(network: Mtcnn) -> None:
    sheet = Image.new("RGB", (1024, 1200))
    corners = [(x, y) for y in (0, 600) for x in (0, 512)]
    for corner in corners:
        sheet.paste(portrait(), corner)
    boxes, scores = network(tensor(sheet))
    assert scores.tolist() == sorted(scores.tolist(), reverse=True)
    assert float(scores.min()) > 0.99
    assert len(boxes) == 4
    for x, y in corners:
        expected = [FACE[0] + x, FACE[1] + y, FACE[2] + x, FACE[3] + y]
        assert max(shared(box, [float(e) for e in expected]) for box in boxes.tolist()) > 0.75


@pytest.mark.parametrize("size", [(1, 1), (11, 11), (600, SMALLEST_FACE - 1), (SMALLEST_FACE, SMALLEST_FACE)])
def test_an_image_too_small_for_a_face_has_none(network: Mtcnn, size: tuple[int, int]) -> None:
    boxes, scores = network(torch.full((*size, 3), 99, dtype=torch.uint8))
    assert (tuple(boxes.shape), tuple(scores.shape)) == ((0, 4), (0,))


def test_an_image_that_is_all_one_strip_is_no_trouble(network: Mtcnn) -> None:
    assert len(network(torch.zeros((SMALLEST_FACE, 20_000, 3), dtype=torch.uint8))[0]) == 0


def test_noise_has_no_face(network: Mtcnn) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (300, 400, 3), np.uint8)
    assert len(network(torch.from_numpy(noise))[0]) == 0


def test_the_first_network_sees_scales_from_the_smallest_face_to_the_whole_image() -> None:
    sizes = list(scaled_sizes(600, 512))
    assert sizes[0] == (int(600 * 12 / SMALLEST_FACE + 1), int(512 * 12 / SMALLEST_FACE + 1))
    assert all(0.69 < small[0] / large[0] < 0.75 for large, small in pairwise(sizes))
    assert 12 < min(sizes[-1]) <= 12 / 0.709 + 1
    assert len(list(scaled_sizes(MAX_SIDE, SMALLEST_FACE))) == 1


def test_what_goes_on_is_bounded_by_the_pixels_alone(everything: Mtcnn) -> None:
    height, width = 240, 320
    with torch.inference_mode():
        proposed = everything._propose(torch.zeros((height, width, 3), dtype=torch.uint8))
    assert len(proposed) == height * width // PIXELS_A_PROPOSAL + 1
    assert len(everything(torch.zeros((1, 1, 3), dtype=torch.uint8))[0]) == 0
    large = torch.zeros((512, 768, 3), dtype=torch.uint8)
    assert len(everything(large)[0]) == REFINED


class CountedOps(StorageTracker):  # type: ignore[no-untyped-call]  # torch's hook for subclasses is untyped
    """Counts what the simulated card follows: operations, composite ones taken apart."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204 - torch's hook is untyped
        self.ops += 1
        return super().__torch_dispatch__(func, types, args, kwargs)


@contextmanager
def counted() -> Iterator[CountedOps]:
    with torch.inference_mode(), CountedOps() as ops:
        yield ops


def test_the_work_is_operations_by_the_stage_not_by_the_box(network: Mtcnn, everything: Mtcnn) -> None:
    image = tensor(portrait())
    with counted() as usual:
        network(image)
    with counted() as most:
        everything(image)
    boxes = 600 * 512 // PIXELS_A_PROPOSAL + 1 + REFINED
    assert usual.ops < 1200
    assert most.ops < 4 * boxes  # cutting, pooling and comparing one box alone would take more


@pytest.mark.parametrize("shape", [(60, 80), (300, 256), (600, 512), (100, 1200)])
def test_no_picture_takes_more_memory_than_the_bound(network: Mtcnn, everything: Mtcnn, shape: tuple[int, int]) -> None:
    height, width = shape
    crowd = np.tile(np.array(portrait(64, 75)), (height // 75 + 1, width // 64 + 1, 1))[:height, :width]
    noise = np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
    with counted() as most:
        everything(torch.zeros((height, width, 3), dtype=torch.uint8))
    for picture in (np.array(portrait(width, height)), np.ascontiguousarray(crowd), noise):
        with counted() as one:
            network(torch.from_numpy(picture))
        assert 0 < one.peak_bytes <= most.peak_bytes


def test_the_bound_is_the_same_whatever_the_picture_shows(everything: Mtcnn) -> None:
    peaks = set()
    for picture in (np.array(portrait(128, 150)), np.zeros((150, 128, 3), np.uint8)):
        with counted() as one:
            everything(torch.from_numpy(picture))
        peaks.add(one.peak_bytes)
    assert len(peaks) == 1


def test_missing_weights_name_what_to_install() -> None:
    with pytest.raises(WeightsMissing, match=r"pip install --no-deps facenet-pytorch==2\.6\.0"):
        weights_dir("no_such_package_at_all")


def test_the_weights_packages_code_is_never_imported() -> None:
    program = (
        "import sys; from gpuwatch.service.models.mtcnn import Mtcnn; Mtcnn.pretrained()\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in {'facenet_pytorch', 'torchvision', 'requests'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)  # noqa: S603 - our own interpreter
    assert done.stdout.strip() == "[]"
