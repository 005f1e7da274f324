"""Text that fits, whatever comes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment

from gpuwatch.tui import format as fmt

HOSTILE = [
    "[0] Tesla T4",
    "[/",
    "[N/A]",
    "z [b +",
    "[/#888888]",
    "中文模型",
    "👩🏽‍🚀 run",
    "a\u0301\u0302",
    "\x1b[31mred\x07\n",
    "x" * 10_000,
]
CLUSTERS = st.text(st.sampled_from("a中👩🏽\u200d🚀❤\ufe0f🇩🇪\u0301\u20e3가क्\u00ad\u202e\ud800 1"), max_size=20)
NUMBERS = st.none() | st.floats() | st.integers(-(2**70), 2**70)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("width", [0, 1, 2, 7, 80])
def test_a_hostile_name_takes_exactly_its_cells(text: str, width: int) -> None:
    assert cell_len(fmt.fit(text, width)) == width
    assert cell_len(fmt.sides(text, text, width)) == width


@given(st.text(), st.text(), st.integers(0, 200))
def test_any_text_takes_exactly_its_cells(left: str, right: str, width: int) -> None:
    assert cell_len(fmt.fit(left, width)) == width
    assert cell_len(fmt.sides(left, right, width)) == width


@given(one=CLUSTERS, other=CLUSTERS, width=st.integers(0, 20), right=st.booleans())
def test_broken_and_joined_characters_take_exactly_their_cells_also_side_by_side(
    one: str, other: str, width: int, *, right: bool
) -> None:
    first, second = fmt.fit(one, width, right=right), fmt.fit(other, width)
    assert (cell_len(first), cell_len(second)) == (width, width)
    assert cell_len(first + second) == 2 * width
    assert cell_len(fmt.sides(one, other, width)) == width
    assert cell_len(fmt.cut(one, width)) == min(width, cell_len(fmt.clean(one)))


@given(CLUSTERS, CLUSTERS, st.integers(0, 20))
def test_the_terminals_own_library_can_cut_what_was_cleaned_anywhere(one: str, other: str, place: int) -> None:
    line = fmt.fit(one, 10) + fmt.fit(other, 10)
    left, right = Segment(line).split_cells(place)
    assert (left.cell_length, right.cell_length) == (place, 20 - place)


@given(st.text())
def test_nothing_that_moves_a_cursor_is_left(text: str) -> None:
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in fmt.clean(text))


@given(NUMBERS)
def test_any_number_has_a_short_text(value: float | None) -> None:
    for show in (fmt.size, fmt.change, fmt.seconds, fmt.milliseconds, fmt.percent, fmt.rate, fmt.clock):
        text = show(value)
        assert text
        if value is None or not math.isfinite(value):
            assert text == fmt.ABSENT


def test_units() -> None:
    assert [fmt.size(v) for v in (0, 999, 1 << 20, int(2.4 * (1 << 30)), 24 << 30)] == [
        "0",
        "999",
        "1.0M",
        "2.4G",
        "24G",
    ]
    assert [fmt.seconds(v) for v in (0.35, 4.9, 59.7, 374, 10_920, 777_600)] == [
        "0.35s",
        "4.9s",
        "1m00s",
        "6m14s",
        "3h02m",
        "9d",
    ]
    # What would round up to the next form is already in it.
    assert [fmt.size((10 << 30) - 1), fmt.seconds(0.999), fmt.seconds(9.97), fmt.rate(99.97)] == [
        "10G",
        "1.0s",
        "10s",
        "100",
    ]
    assert (fmt.change(1 << 30), fmt.change(-(1 << 30)), fmt.change(0)) == ("+1.0G", "-1.0G", "+0")
