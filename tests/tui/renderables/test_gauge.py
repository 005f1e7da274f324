"""The bar adds up, and shows every part that holds anything."""

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.storage.state import GpuState
from gpuwatch.tui.renderables import gauge

BYTES = st.integers(0, 1 << 36)


@given(BYTES, BYTES, BYTES, BYTES, BYTES, st.integers(8, 200), st.floats(0, 1), st.floats(0, 1))
def test_the_bar_is_exactly_as_wide_as_asked(
    total: int, weights: int, allocated: int, cache: int, foreign: int, width: int, high: float, breaker: float
) -> None:
    gpu = GpuState(
        index=0,
        total_bytes=total,
        weights_bytes=weights,
        allocated_bytes=allocated,
        reserved_bytes=allocated + cache,
        foreign_bytes=foreign,
    )
    assert gauge.bar(gpu, high=high, breaker=breaker, width=width).cell_len == width
    assert gauge.key(gpu, width).cell_len == width


def test_parts_add_up_to_the_card_and_each_that_holds_anything_has_a_cell() -> None:
    gpu = GpuState(index=0, total_bytes=1000, weights_bytes=1, allocated_bytes=2, reserved_bytes=3, foreign_bytes=900)
    assert sum(gauge.parts(gpu).values()) == 1000
    drawn = gauge.bar(gpu, high=1.0, breaker=1.0, width=60).plain
    assert all(sign in drawn for sign in "W#n:.")


@given(st.floats(0, 1), st.floats(0, 1), st.integers(10, 120))
def test_neither_mark_covers_the_other_and_both_stay_inside(high: float, breaker: float, width: int) -> None:
    drawn = gauge.bar(GpuState(index=0, total_bytes=1000), high=high, breaker=breaker, width=width).plain
    assert (drawn[0], drawn[-1], drawn.count("H"), drawn.count("B")) == ("[", "]", 1, 1)


def test_the_marks_stand_where_their_share_is() -> None:
    gpu = GpuState(index=0, total_bytes=1000)
    drawn = gauge.bar(gpu, high=0.5, breaker=0.9, width=102).plain
    assert (drawn.index("H"), drawn.index("B")) == (51, 91)
