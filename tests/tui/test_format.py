"""Text that fits, whatever comes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

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
    assert (fmt.change(1 << 30), fmt.change(-(1 << 30)), fmt.change(0)) == ("+1.0G", "-1.0G", "+0")
