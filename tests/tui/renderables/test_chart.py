"""The chart is exactly as wide as asked, keeps every maximum, and draws a gap as a gap."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment

from gpuwatch.tui.renderables.chart import AXIS, HOLD_S, SERIES, TAIL, Scale, chart, columns_of, window_for
from gpuwatch.tui.view import Mark, MarkKind, Point

NOW = 1_000_000.0
SCALE = Scale(top=100.0, now=NOW, window_s=120.0, high=0.85, low=0.80, breaker=0.95)
FIGURES = st.none() | st.floats() | st.integers(-5, 2**64)
POINTS = st.lists(
    st.builds(Point, st.floats(NOW - 200, NOW + 5) | st.floats(), FIGURES, FIGURES, FIGURES, FIGURES, FIGURES),
    max_size=40,
)


def texts(lines: list[list[Segment]]) -> list[str]:
    return ["".join(segment.text for segment in line) for line in lines]


@settings(max_examples=100)
@given(POINTS, st.integers(0, 150), st.integers(1, 40), st.floats(0, 2), st.floats(0, 2))
def test_any_figures_fill_exactly_the_place_given(
    points: list[Point], width: int, height: int, high: float, breaker: float
) -> None:
    marks = [Mark(NOW + moved, kind) for moved in (-3, 9, math.inf, -math.inf, math.nan) for kind in MarkKind]
    lines = texts(chart(points, marks, replace(SCALE, high=high, breaker=breaker), width, height))
    assert [cell_len(line) for line in lines] == [width] * height


@given(st.lists(st.tuples(st.floats(0, 119.9), st.floats(0, 100)), min_size=1, max_size=50), st.integers(20, 200))
def test_a_columns_maximum_is_never_thinned_away(seen: list[tuple[float, float]], columns: int) -> None:
    points = [Point(NOW - age, used=value) for age, value in sorted(seen, reverse=True)]
    values = columns_of(points, "used", SCALE, columns)
    step_s = SCALE.window_s / columns
    for point in points:
        column = columns - 1 - (int(NOW / step_s) - int(point.at / step_s))
        if column >= 0:
            assert (values[column] or 0) >= (point.used or 0)
    assert max((v for v in values if v is not None), default=0) <= max(value for _, value in seen)


def test_a_time_without_news_is_a_gap_and_a_short_pause_is_none() -> None:
    points = [
        Point(NOW - 60, used=10.0),
        Point(NOW - 60 + HOLD_S, used=20.0),
        Point(NOW - 20, used=30.0),
        Point(NOW, used=40.0),
    ]
    values = columns_of(points, "used", SCALE, 120)
    assert values[59:63] == [10.0, 10.0, 20.0, 20.0] or None not in values[59:62]
    assert set(values[66:98]) == {None}
    assert values[-1] == 40.0


def test_a_value_that_is_not_known_ends_the_line() -> None:
    points = [Point(NOW - 4, used=10.0), Point(NOW - 3, used=None), Point(NOW - 2, used=math.nan)]
    assert columns_of(points, "used", SCALE, 120)[-3:] == [None, None, None]


def test_marks_have_labels_also_where_they_share_a_row() -> None:
    tall, short = (texts(chart([], [], SCALE, 80, height)) for height in (30, 7))
    for letter in ("H85", "L80", "B95"):
        assert any(letter in line[:AXIS] for line in tall)
        assert any(letter in line[:AXIS] for line in short) or letter == "L80"


@pytest.mark.parametrize("height", [5, 6, 7, 8, 9, 12, 30])
def test_no_label_shows_half_a_number(height: int) -> None:
    labels = [line[: AXIS - 1] for line in texts(chart([], [], SCALE, 80, height))]
    assert not any("…" in label for label in labels)
    assert sum("B95" in label for label in labels) == 1
    assert sum("H85" in label for label in labels) == 1


@given(st.permutations([(-100.0, 5.0), (-60.0, 90.0), (-59.9, 7.0), (-1.0, 40.0)]))
def test_points_out_of_order_lose_no_maximum(seen: list[tuple[float, float]]) -> None:
    values = columns_of([Point(NOW + age, used=value) for age, value in seen], "used", SCALE, 120)
    assert {5.0, 90.0, 40.0} <= set(values)


def test_one_column_keeps_the_largest_of_what_fell_into_it_whatever_its_sign() -> None:
    same = [Point(NOW, used=value) for value in (-5.0, 0.0, -7.0)]
    assert columns_of(same, "used", SCALE, 120)[-1] == 0.0


def test_each_series_ends_in_its_letter() -> None:
    point = Point(NOW, used=90.0, reserved=50.0, allocated=50.0, promised=50.0, foreign=20.0)
    tails = "".join(line[-TAIL:] for line in texts(chart([point], [], SCALE, 80, 20)))
    assert {series.letter for series in SERIES} <= set(tails)


def test_an_out_of_memory_is_seen_above_other_marks_of_its_column() -> None:
    axis = texts(chart([], [Mark(NOW - 60, kind) for kind in MarkKind], SCALE, 80, 10))[-1]
    assert "!" in axis
    assert "^" not in axis


@pytest.mark.parametrize(("age_s", "window_s"), [(1, 120), (121, 300), (301, 900), (5000, 900)])
def test_the_window_is_the_smallest_that_holds_all(age_s: float, window_s: float) -> None:
    assert window_for([Point(NOW - age_s)], NOW) == window_s
