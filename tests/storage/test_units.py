import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.storage.errors import BadValue
from gpuwatch.storage.units import parse_duration, parse_size, say_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("24GiB", 24 << 30),
        ("24G", 24 << 30),
        ("24gb", 24 << 30),
        ("24576MiB", 24 << 30),
        ("512M", 512 << 20),
        (" 1.5 KiB ", 1536),
        ("1073741824", 1 << 30),
        ("7B", 7),
        ("0", 0),
        ("2T", 2 << 40),
        ("1PiB", 1 << 50),
    ],
)
def test_sizes_are_1024_based_however_they_are_written(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1G", "1e9", "12 parsecs", "1GiBs", "0x10", "1,5G", "NaN"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadValue, match="24GiB"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=1 << 60))
def test_a_size_said_is_read_back_exactly(size_bytes: int) -> None:
    assert parse_size(say_size(size_bytes)) == size_bytes


@pytest.mark.parametrize(("size_bytes", "text"), [(0, "0"), (1000, "1000"), (64 << 20, "64MiB"), (1 << 50, "1PiB")])
def test_a_size_is_said_in_the_largest_unit_that_keeps_it_whole(size_bytes: int, text: str) -> None:
    assert say_size(size_bytes) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800.0), ("1h", 3600.0), ("90s", 90.0), ("250ms", 0.25), ("1.5", 1.5), ("2D", 172800.0)],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 week", "inf"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadValue, match="250ms"):
        parse_duration(text)
