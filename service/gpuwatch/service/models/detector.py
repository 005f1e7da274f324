"""``builtin:detector``: faces in a JPEG or PNG photograph, and what finding them costs.

Rules: importing this module imports no torch; `Detector.load` and `Detector.infer` do. What a request costs depends on
the number of its pixels alone: the networks' work is bounded whatever the picture shows (see `mtcnn`), so the price is
declared from a table measured at that bound, and no picture costs more.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpuwatch.service.models.base import Json
from gpuwatch.service.models.images import Rgb, decode_rgb, image_size
from gpuwatch.service.pricing.table import PriceTable
from gpuwatch.storage.records import Dims

if TYPE_CHECKING:
    from gpuwatch.service.models.mtcnn import Mtcnn

PRICES: Final = PriceTable(
    points=(
        (4_096, 4_067_840),  # 993 bytes a pixel
        (9_216, 4_162_560),  # 452 bytes a pixel
        (16_384, 4_869_632),  # 297 bytes a pixel
        (36_864, 5_814_784),  # 158 bytes a pixel
        (65_536, 6_916_608),  # 106 bytes a pixel
        (147_456, 11_262_464),  # 76 bytes a pixel
        (262_144, 16_768_000),  # 64 bytes a pixel
        (589_824, 31_948_288),  # 54 bytes a pixel
        (1_048_576, 53_059_584),  # 51 bytes a pixel
        (2_096_704, 101_254_144),  # 48 bytes a pixel
        (4_194_304, 201_803_776),  # 48 bytes a pixel
        (8_386_816, 403_396_096),  # 48 bytes a pixel
    ),
    margin_pct=8,
)
"""Live peak bytes by pixels, printed by ``bench/price_table.py``; the margin covers shapes that it did not measure."""


@dataclass(frozen=True, slots=True)
class Faces:
    """What was found in one image of ``width`` x ``height`` pixels: ``boxes`` as (x1, y1, x2, y2) with ``scores``."""

    width: int
    height: int
    boxes: list[list[float]]
    scores: list[float]


class Detector:
    """Finds faces. Takes an image as raw bytes; its dims are ``height`` and ``width`` of the upright image."""

    name = "detector"
    lane = "image"
    version = "mtcnn-1"

    def __init__(self) -> None:
        self._network: Mtcnn | None = None
        self._device = "cpu"

    def load(self, device: str) -> None:
        """Put the weights on ``device``. Raises `mtcnn.WeightsMissing`."""
        from gpuwatch.service.models.mtcnn import Mtcnn  # noqa: PLC0415 - torch is loaded when it is needed, not before

        self._network = Mtcnn.pretrained().to(device)
        self._device = device

    def dims(self, body: bytes, content_type: str) -> Dims:  # noqa: ARG002 - the bytes say what they are
        """Read height and width from the image's header. Raises `BadInput`."""
        width, height = image_size(body)
        return {"height": height, "width": width}

    def price(self, dims: Dims) -> int:
        """Live peak bytes of one image of ``dims`` beyond the weights, as an upper bound."""
        return PRICES.price_bytes(dims["height"] * dims["width"])

    def decode(self, body: bytes, content_type: str) -> Rgb:  # noqa: ARG002 - the bytes say what they are
        """Decode to pixels on the host. Raises `BadInput`."""
        return decode_rgb(body)

    def infer(self, batch: list[Rgb]) -> list[Faces]:
        """Find the faces of each image, one image after the other. Raises `RuntimeError` before `load`."""
        return [self._faces(image) for image in batch]

    def _faces(self, image: Rgb) -> Faces:
        import torch  # noqa: PLC0415 - torch is loaded when it is needed, not before

        if self._network is None:
            raise RuntimeError("the detector is not loaded")
        boxes, scores = self._network(torch.from_numpy(image).to(self._device))
        height, width, _ = image.shape
        return Faces(width=width, height=height, boxes=boxes.tolist(), scores=scores.tolist())

    def encode(self, result: Faces) -> Json:
        """Give ``faces`` (``box`` in pixels, clipped to the image, and ``score`` 0 to 1), ``width`` and ``height``."""
        limits = (result.width, result.height, result.width, result.height)
        return {
            "faces": [
                {
                    "box": [min(max(edge, 0.0), float(limit)) for edge, limit in zip(box, limits, strict=True)],
                    "score": score,
                }
                for box, score in zip(result.boxes, result.scores, strict=True)
            ],
            "width": result.width,
            "height": result.height,
        }
