"""MTCNN, a cascade of three small networks that finds faces, in torch alone.

Rules: one image at a time, uint8 on the device it is to run on; no operation loops over boxes in Python. Boxes are
(x1, y1, x2, y2) in pixels, half-open. Memory is what a request is priced by, so all of it is bounded by the number of
pixels, never by what the picture shows: of the first network's boxes the best go on, one for every `PIXELS_A_PROPOSAL`
of the image, of the second's the best `REFINED`, and crops pass through both in portions that take no more memory than
the first network took. A picture of more than `REFINED` faces loses the faintest.

Source: K. Zhang, Z. Zhang, Z. Li, Y. Qiao, "Joint Face Detection and Alignment using Multi-task Cascaded Convolutional
Networks", IEEE Signal Processing Letters 23(10), 2016. Weights and layer shapes: facenet-pytorch 2.6.0 (MIT, Tim
Esler), itself after David Sandberg's facenet (MIT). None of its code is imported; its data files are read.

Differences from it: within a scale the peaks of the score map are taken (3 x 3 maxima, as in X. Zhou et al., "Objects
as Points", 2019) in place of a suppression at an overlap of 0.5, which for boxes of one size on that grid reaches the
same neighbours; none follows between scales, where boxes differ twofold in area and cannot overlap by 0.7; a cell's box
is placed by the scaled image's true size; the landmarks are not computed; and the pixels' normalisation is folded into
each first layer.
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional as fn

from gpuwatch.service.models.boxes import crops, kept, moved, squared, summed_area

SMALLEST_FACE: Final = 20
"""Side in pixels of the smallest face looked for."""
THRESHOLDS: Final = (0.6, 0.7, 0.7)
OVERLAPS: Final = (0.7, 0.7)
PIXELS_A_PROPOSAL: Final = 512
REFINED: Final = 512

_PORTION_PIXELS: Final = 1 << 14  # crop pixels that pass through a later network at once, whatever the image, and ...
_PIXELS_A_CROP_PIXEL: Final = 8  # ... one more for so many of the image: 250 bytes each, beside its 48 in the first

_CELL: Final = 12  # side of the first network's field of view, in pixels of the scaled image
_STRIDE: Final = 2
_SHRINK: Final = 0.709  # from scale to scale: half the area
_MEAN: Final = 127.5
_SPREAD: Final = 128.0


class WeightsMissing(RuntimeError):
    """The package that carries the weights is not installed."""


class ProposalNet(nn.Module):
    """P-Net: (1, 3, h, w) -> scores (1, 1, h', w') in 0..1 and box shifts (1, 4, h', w'), one cell per 2 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 10, 3)
        self.prelu1 = nn.PReLU(10)
        self.pool1 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv2 = nn.Conv2d(10, 16, 3)
        self.prelu2 = nn.PReLU(16)
        self.conv3 = nn.Conv2d(16, 32, 3)
        self.prelu3 = nn.PReLU(32)
        self.conv4_1 = nn.Conv2d(32, 2, 1)
        self.conv4_2 = nn.Conv2d(32, 4, 1)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Score every cell."""
        x = self.pool1(self.prelu1(self.conv1(pixels)))
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return fn.softmax(self.conv4_1(x), 1)[:, 1:], self.conv4_2(x)


class RefineNet(nn.Module):
    """R-Net: crops (n, 3, 24, 24) -> scores (n,) in 0..1 and box shifts (n, 4)."""

    side = 24

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 28, 3)
        self.prelu1 = nn.PReLU(28)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2 = nn.Conv2d(28, 48, 3)
        self.prelu2 = nn.PReLU(48)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3 = nn.Conv2d(48, 64, 2)
        self.prelu3 = nn.PReLU(64)
        self.dense4 = nn.Linear(576, 128)
        self.prelu4 = nn.PReLU(128)
        self.dense5_1 = nn.Linear(128, 2)
        self.dense5_2 = nn.Linear(128, 4)

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Score every crop."""
        x = self.pool1(self.prelu1(self.conv1(crops)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x))
        x = self.prelu4(self.dense4(_flat(x)))
        return fn.softmax(self.dense5_1(x), 1)[:, 1], self.dense5_2(x)


class OutputNet(nn.Module):
    """O-Net: crops (n, 3, 48, 48) -> scores (n,) in 0..1 and box shifts (n, 4)."""

    side = 48

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3)
        self.prelu1 = nn.PReLU(32)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.prelu2 = nn.PReLU(64)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv3 = nn.Conv2d(64, 64, 3)
        self.prelu3 = nn.PReLU(64)
        self.pool3 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.conv4 = nn.Conv2d(64, 128, 2)
        self.prelu4 = nn.PReLU(128)
        self.dense5 = nn.Linear(1152, 256)
        self.prelu5 = nn.PReLU(256)
        self.dense6_1 = nn.Linear(256, 2)
        self.dense6_2 = nn.Linear(256, 4)

    def forward(self, crops: Tensor) -> tuple[Tensor, Tensor]:
        """Score every crop."""
        x = self.pool1(self.prelu1(self.conv1(crops)))
        x = self.pool2(self.prelu2(self.conv2(x)))
        x = self.pool3(self.prelu3(self.conv3(x)))
        x = self.prelu4(self.conv4(x))
        x = self.prelu5(self.dense5(_flat(x)))
        return fn.softmax(self.dense6_1(x), 1)[:, 1], self.dense6_2(x)


class Mtcnn(nn.Module):
    """The cascade. ``thresholds`` are the scores that a box must reach in each network to go on.

    ``overlaps`` are the overlaps, 0 to 1, beyond which the fainter of two boxes is dropped after the second and the
    third. With thresholds of 0 and overlaps of 1 every box goes on: what that costs bounds what any picture costs.
    """

    def __init__(
        self,
        thresholds: tuple[float, float, float] = THRESHOLDS,
        overlaps: tuple[float, float] = OVERLAPS,
    ) -> None:
        super().__init__()
        self.proposal, self.refine, self.output = ProposalNet(), RefineNet(), OutputNet()
        self._thresholds, self._overlaps = thresholds, overlaps

    @classmethod
    def pretrained(
        cls,
        thresholds: tuple[float, float, float] = THRESHOLDS,
        overlaps: tuple[float, float] = OVERLAPS,
    ) -> "Mtcnn":
        """Build it on the packaged weights, on the CPU. Raises `WeightsMissing`."""
        found, folder = cls(thresholds, overlaps), weights_dir()
        for net, name in ((found.proposal, "pnet"), (found.refine, "rnet"), (found.output, "onet")):
            weights = torch.load(folder / f"{name}.pt", map_location="cpu", weights_only=True)
            net.load_state_dict({key: value for key, value in weights.items() if not key.startswith("dense6_3")})
            _fold_normalisation(net.conv1)
        return found.eval().requires_grad_(requires_grad=False)

    @torch.inference_mode()
    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Find the faces of a uint8 image (height, width, 3): boxes (n, 4) and scores (n,), best first."""
        found = self._propose(image)
        if not len(found):
            return found.boxes, found.scores
        sums = summed_area(image)
        found = self._judge(self.refine, sums, found, self._thresholds[1])
        found = found.first(REFINED).without_doubles(self._overlaps[0])
        found = self._judge(self.output, sums, found, self._thresholds[2])
        found = replace(found, boxes=moved(found.boxes, found.shifts))
        found = found.without_doubles(self._overlaps[1], of_smaller=True)
        return found.boxes, found.scores

    def _propose(self, image: Tensor) -> "_Found":
        """Run the first network over the image at every scale and take the best peaks of all."""
        height, width, _ = image.shape
        pixels = image.permute(2, 0, 1)[None].to(torch.float32, memory_format=torch.contiguous_format)
        levels, scores, shifts = [], [], []
        before = 0
        for scaled_height, scaled_width in scaled_sizes(height, width):
            score, shift = self.proposal(fn.interpolate(pixels, (scaled_height, scaled_width), mode="area"))
            peaks = score == fn.max_pool2d(score, 3, 1, 1)
            scores.append((score * peaks).flatten())
            shifts.append(shift.flatten(2)[0])
            levels.append((before, score.shape[3], width / scaled_width, height / scaled_height))
            before += len(scores[-1])
        if not levels:
            return _Found(pixels.new_empty(0, 4), pixels.new_empty(0), pixels.new_empty(0, 4))
        every = torch.cat(scores)
        best, cell = every.topk(min(height * width // PIXELS_A_PROPOSAL + 1, len(every)))
        passed = int((best >= self._thresholds[0]).sum())
        cell = cell[:passed]
        boxes = _cell_boxes(cell, torch.tensor(levels, dtype=torch.float64, device=cell.device))
        return _Found(boxes, best[:passed], torch.cat(shifts, 1)[:, cell].T)

    def _judge(self, net: "RefineNet | OutputNet", sums: Tensor, before: "_Found", threshold: float) -> "_Found":
        """Move the boxes as the network before said, look at them with this one, keep those that pass, best first."""
        if not len(before):
            return before
        boxes = squared(moved(before.boxes, before.shifts))
        portion = _PORTION_PIXELS + sums[0].numel() // _PIXELS_A_CROP_PIXEL
        judged = [net(some) for some in crops(sums, boxes, net.side, portion // net.side**2)]
        best, order = torch.cat([score for score, _ in judged]).sort(descending=True, stable=True)
        passed = int((best >= threshold).sum())
        order = order[:passed]
        return _Found(boxes[order], best[:passed], torch.cat([shift for _, shift in judged])[order])


@dataclass(frozen=True, slots=True)
class _Found:
    """Boxes (n, 4) with scores (n,) and shifts (n, 4), best first."""

    boxes: Tensor
    scores: Tensor
    shifts: Tensor

    def __len__(self) -> int:
        return len(self.scores)

    def without_doubles(self, overlap: float, *, of_smaller: bool = False) -> "_Found":
        stay = kept(self.boxes, overlap, of_smaller=of_smaller).nonzero()[:, 0]
        return _Found(self.boxes[stay], self.scores[stay], self.shifts[stay])

    def first(self, most: int) -> "_Found":
        return _Found(self.boxes[:most], self.scores[:most], self.shifts[:most])


def scaled_sizes(height: int, width: int) -> Iterator[tuple[int, int]]:
    """Walk the sizes (height, width) at which the first network sees an image, largest first."""
    scale = _CELL / SMALLEST_FACE
    while min(height, width) * scale >= _CELL:
        yield int(height * scale + 1), int(width * scale + 1)
        scale *= _SHRINK


def _cell_boxes(cell: Tensor, levels: Tensor) -> Tensor:
    """Give the box in the image (n, 4) that each cell, counted through all scales, looks at.

    ``levels`` has a row per scale: cells before it, its cells a row, and image pixels per scaled pixel across and down.
    """
    level = levels[torch.bucketize(cell, levels[:, 0].long(), right=True) - 1]
    inside = cell - level[:, 0]
    row = inside.div(level[:, 1], rounding_mode="floor")
    corner = torch.stack([inside - row * level[:, 1], row], 1) * _STRIDE
    return torch.cat([corner * level[:, 2:], (corner + _CELL) * level[:, 2:]], 1).float()


def _flat(x: Tensor) -> Tensor:
    """Flatten (n, c, h, w) with the width slowest, as the weights were trained."""
    return x.permute(0, 3, 2, 1).flatten(1)


def _fold_normalisation(first: nn.Conv2d) -> None:
    """Make a first layer trained on (pixel - 127.5) / 128 take pixels of 0 to 255: it pads nothing."""
    if first.bias is None:
        raise ValueError("a layer without bias cannot take the mean in")
    with torch.no_grad():
        first.weight /= _SPREAD
        first.bias -= first.weight.sum((1, 2, 3)) * _MEAN


def weights_dir(package: str = "facenet_pytorch") -> Path:
    """Find the weights among ``package``'s files without importing it. Raises `WeightsMissing`."""
    found = importlib.util.find_spec(package)
    folder = None if found is None or found.origin is None else Path(found.origin).parent / "data"
    if folder is None or not folder.is_dir():
        raise WeightsMissing(
            f"the detector's weights come from the files of {package}, which is not installed: "
            "pip install --no-deps facenet-pytorch==2.6.0"
        )
    return folder
