"""The demo's photographs."""

import io
from pathlib import Path

import pytest
from PIL import Image

from gpuwatch.cli.photos import SHOTS, PhotosMissing, Shot, demo_bodies, portrait_path


def test_the_same_bytes_come_every_time() -> None:
    few = (*SHOTS[:2], Shot(width=64, height=80, kind="png", tiles=2))
    assert demo_bodies(few) == demo_bodies(few)


def test_every_body_is_the_picture_that_its_shot_describes() -> None:
    for shot, body in zip(SHOTS, demo_bodies(), strict=True):
        with Image.open(io.BytesIO(body.content)) as picture:
            assert picture.size == (shot.width, shot.height)
            assert picture.get_format_mimetype() == body.content_type
        assert (body.name, body.weight) == (shot.name, shot.weight)


def test_a_mirrored_picture_mirrors_the_portrait() -> None:
    plain, mirrored = demo_bodies(
        (
            Shot(width=64, height=75, kind="png"),
            Shot(width=64, height=75, kind="png", mirrored=True),
        )
    )
    left, right = (Image.open(io.BytesIO(b.content)) for b in (plain, mirrored))
    assert plain.content != mirrored.content
    assert left.transpose(Image.Transpose.FLIP_LEFT_RIGHT).tobytes() == right.tobytes()


def test_the_mix_is_mostly_small_and_medium() -> None:
    small = sum(s.weight for s in SHOTS if s.width <= 768)
    assert small > 0.7 * sum(s.weight for s in SHOTS)


def test_without_the_package_the_error_names_the_demo_extra() -> None:
    with pytest.raises(PhotosMissing, match=r"gpuwatch-dashboard\[demo\]"):
        portrait_path("no_such_package_at_all")


def test_a_package_without_sample_data_is_told_from_one_that_is_missing() -> None:
    with pytest.raises(PhotosMissing, match="without its sample data"):
        portrait_path("httpx")


def test_the_portrait_is_a_file_and_found_without_importing_matplotlib() -> None:
    assert isinstance(portrait_path(), Path)
    assert portrait_path().is_file()
