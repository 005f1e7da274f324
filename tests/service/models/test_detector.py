"""``builtin:detector`` as the service uses it: from bytes to faces."""

import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import encoded, portrait, portrait_bytes, stored
from PIL import Image

from gpuwatch.service.gpu.simulated import SimulatedCard
from gpuwatch.service.models.base import BadInput, Model, Priced
from gpuwatch.service.models.detector import PRICES, Detector, Faces
from gpuwatch.service.models.images import MAX_PIXELS

FACE = [176, 116, 347, 333]
"""Where the face is in the portrait of 512 x 600, to the eye."""


@pytest.fixture(scope="module")
def detector() -> Detector:
    made = Detector()
    made.load("cpu")
    return made


def answer(detector: Detector, body: bytes) -> dict[str, Any]:
    """Take a body all the way, as a request does, and hold the answer to the dims it was priced by."""
    dims = detector.dims(body, "application/octet-stream")
    (result,) = detector.infer([detector.decode(body, "application/octet-stream")])
    found: dict[str, Any] = detector.encode(result)
    assert (found["width"], found["height"]) == (dims["width"], dims["height"])
    return found


def the_box(found: dict[str, Any]) -> list[float]:
    (face,) = found["faces"]
    assert face["score"] > 0.99
    return list(face["box"])


def test_the_detector_is_a_model_that_declares_its_prices(detector: Detector) -> None:
    assert isinstance(detector, Model)
    assert isinstance(detector, Priced)
    assert (detector.name, detector.lane) == ("detector", "image")
    assert detector.version


def test_the_portrait_as_it_is_shipped_has_one_face(detector: Detector) -> None:
    found = answer(detector, portrait_bytes())
    assert (found["width"], found["height"]) == (512, 600)
    assert the_box(found) == pytest.approx(FACE, abs=12)


def test_png_and_jpeg_give_the_same_face(detector: Detector) -> None:
    boxes = [the_box(answer(detector, encoded(portrait(), kind))) for kind in ("PNG", "JPEG")]
    assert boxes[0] == pytest.approx(boxes[1], abs=6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_camera_held_any_way_gives_the_same_face(detector: Detector, orientation: int) -> None:
    small = portrait(256, 300)
    upright = the_box(answer(detector, encoded(small)))
    found = answer(detector, stored(small, orientation, "JPEG"))
    assert (found["width"], found["height"]) == (256, 300)
    assert the_box(found) == pytest.approx(upright, abs=6)


def test_a_picture_without_faces_gives_an_empty_list(detector: Detector) -> None:
    assert answer(detector, encoded(Image.new("RGB", (90, 70), (40, 90, 160)))) == {
        "faces": [],
        "width": 90,
        "height": 70,
    }


@pytest.mark.parametrize("size", [(1, 1), (11, 11), (5, 400), (11, 300)])
def test_a_picture_smaller_than_a_face_gives_none(detector: Detector, size: tuple[int, int]) -> None:
    assert answer(detector, encoded(portrait().resize(size)))["faces"] == []


def test_a_batch_gives_one_result_for_each_image_in_order(detector: Detector) -> None:
    images = [np.array(portrait(128, 150)), np.zeros((40, 50, 3), np.uint8), np.array(portrait(200, 234))]
    results = detector.infer(images)
    assert [(r.width, r.height, len(r.scores)) for r in results] == [(128, 150, 1), (50, 40, 0), (200, 234, 1)]
    assert detector.infer([]) == []


def test_boxes_are_clipped_to_the_image_and_plain_floats(detector: Detector) -> None:
    found = detector.encode(Faces(width=100, height=50, boxes=[[-3.5, -1.0, 120.0, 50.5]], scores=[0.9]))
    assert found == {"faces": [{"box": [0.0, 0.0, 100.0, 50.0], "score": 0.9}], "width": 100, "height": 50}


def test_a_body_that_is_no_image_is_bad_input_at_both_looks(detector: Detector) -> None:
    for look in (detector.dims, detector.decode):
        with pytest.raises(BadInput) as caught:
            look(b"no image", "image/jpeg")
        assert caught.value.status == 400


def test_inference_before_loading_says_so() -> None:
    with pytest.raises(RuntimeError, match="not loaded"):
        Detector().infer([np.zeros((40, 40, 3), np.uint8)])


def test_dims_and_price_need_neither_torch_nor_weights() -> None:
    program = (
        "import sys; from gpuwatch.service.models.detector import Detector; model = Detector()\n"
        "dims = model.dims(sys.stdin.buffer.read(), 'image/jpeg')\n"
        "print(dims['height'], dims['width'], model.price(dims) > 0, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], input=portrait_bytes(), capture_output=True, check=True)  # noqa: S603 - our own interpreter
    assert done.stdout.split() == [b"600", b"512", b"True", b"False"]


@given(st.integers(1, MAX_PIXELS), st.integers(1, 8))
def test_the_price_depends_on_the_pixels_alone_and_never_falls(pixels: int, more: int) -> None:
    price_bytes = Detector().price({"height": 1, "width": pixels})
    assert price_bytes == Detector().price({"height": pixels, "width": 1})
    assert price_bytes <= Detector().price({"height": 1, "width": pixels + more})


def test_the_price_is_above_the_table_by_its_margin() -> None:
    for pixels, peak_bytes in PRICES.points:
        assert Detector().price({"height": 1, "width": pixels}) * 100 >= peak_bytes * (100 + PRICES.margin_pct)


@pytest.mark.parametrize("size", [(33, 41), (100, 117), (512, 600), (900, 120), (700, 820)])
@pytest.mark.parametrize("shown", ["portrait", "crowd"])
def test_no_run_on_a_card_peaks_above_its_price(size: tuple[int, int], shown: str) -> None:
    width, height = size
    card = SimulatedCard(0, 8 << 30)
    model = Detector()
    with card.loading():
        model.load(card.torch_device)
    picture = np.array(portrait(width, height))
    if shown == "crowd":
        one = np.array(portrait(64, 75))
        picture = np.tile(one, (height // 75 + 1, width // 64 + 1, 1))[:height, :width].copy()
    body = io.BytesIO()
    Image.fromarray(picture).save(body, "PNG")
    price_bytes = model.price(model.dims(body.getvalue(), "image/png"))
    with card.run() as measured:
        model.encode(model.infer([model.decode(body.getvalue(), "image/png")])[0])
    assert measured.peak_bytes is not None
    assert width * height * 3 < measured.peak_bytes <= price_bytes


def test_the_price_is_not_far_above_what_a_photograph_takes() -> None:
    card = SimulatedCard(0, 8 << 30)
    model = Detector()
    with card.loading():
        model.load(card.torch_device)
    with card.run() as measured:
        model.infer([np.array(portrait(1024, 1200))])
    assert measured.peak_bytes is not None
    assert model.price({"height": 1200, "width": 1024}) < 1.2 * measured.peak_bytes
