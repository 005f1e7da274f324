"""A measured table as an upper bound at every size."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.pricing.table import PriceTable

SIZES = st.integers(1, 10**9)
TABLES = st.builds(
    lambda points, margin_pct: PriceTable(tuple(sorted(points.items())), margin_pct),
    st.dictionaries(SIZES, st.integers(1, 10**12), min_size=1, max_size=8),
    st.sampled_from([0, 5, 33]),
)


@given(TABLES, SIZES, st.integers(0, 10**6))
def test_a_larger_request_is_never_cheaper(table: PriceTable, units: int, more: int) -> None:
    assert table.price_bytes(units) <= table.price_bytes(units + more)


@given(st.dictionaries(SIZES, st.integers(1, 10**12), min_size=1, max_size=8), st.sampled_from([0, 7]))
def test_no_price_is_below_a_measured_point_and_its_margin(points: dict[int, int], margin_pct: int) -> None:
    table = PriceTable(tuple(sorted(points.items())), margin_pct)
    for units, measured_bytes in points.items():
        assert table.price_bytes(units) * 100 >= measured_bytes * (100 + margin_pct)


@given(TABLES, st.integers(0, 2 * 10**9))
def test_no_price_is_below_the_first_points(table: PriceTable, units: int) -> None:
    assert table.price_bytes(units) >= table.price_bytes(table.points[0][0]) >= table.points[0][1]


@given(
    fixed=st.integers(0, 10**8),
    per_unit=st.integers(1, 100),
    floor=st.integers(1, 10**8),
    sizes=st.sets(SIZES, min_size=1, max_size=6),
    units=SIZES,
)
def test_a_truth_that_is_the_larger_of_a_floor_and_a_line_is_never_underpriced(
    fixed: int, per_unit: int, floor: int, sizes: set[int], units: int
) -> None:
    def truth(size: int) -> int:
        return max(floor, fixed + per_unit * size)

    table = PriceTable(tuple((size, truth(size)) for size in sorted(sizes)))
    assert table.price_bytes(units) >= truth(units)


@given(st.integers(0, 100))
def test_between_two_points_the_price_is_on_the_chord_rounded_up(units: int) -> None:
    exact = 10 + Fraction(7 * units, 100)
    assert PriceTable(((1, 10), (101, 17))).price_bytes(1 + units) == -(-exact // 1)


@pytest.mark.parametrize(
    ("points", "units", "expected"),
    [
        (((10, 100),), 0, 100),
        (((10, 100),), 9, 100),
        (((10, 100),), 20, 200),  # one point: in proportion
        (((10, 100), (20, 250)), 30, 400),  # the last chord is the steeper
        (((10, 100), (20, 110)), 40, 220),  # the line from the origin is the steeper
        (((10, 100), (20, 60)), 20, 100),  # a point below an earlier one is lifted to it
    ],
)
def test_prices_outside_the_points(points: tuple[tuple[int, int], ...], units: int, expected: int) -> None:
    assert PriceTable(points).price_bytes(units) == expected


def test_a_margin_is_added_to_every_price_and_rounded_up() -> None:
    assert PriceTable(((10, 101),), margin_pct=5).price_bytes(1) == 107


@pytest.mark.parametrize(
    ("points", "margin_pct"),
    [((), 0), (((2, 1), (1, 2)), 0), (((1, 1), (1, 2)), 0), (((0, 1),), 0), (((1, 0),), 0), (((1, 1),), -1)],
)
def test_what_is_no_table_is_refused(points: tuple[tuple[int, int], ...], margin_pct: int) -> None:
    with pytest.raises(ValueError, match=r".+"):
        PriceTable(points, margin_pct)


def test_a_negative_size_has_no_price() -> None:
    with pytest.raises(ValueError, match="-1 units"):
        PriceTable(((1, 1),)).price_bytes(-1)
