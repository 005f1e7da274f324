import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.core.watermark import Watermark
from gpuwatch.storage.records import Pressure


def test_pressure_turns_high_at_the_upper_mark_itself() -> None:
    mark = Watermark(high_ratio=0.85, low_ratio=0.80)
    mark.observe(1.0, 0.8499)
    assert (mark.pressure, mark.since_s) == (Pressure.NORMAL, None)
    mark.observe(2.0, 0.85)
    assert (mark.pressure, mark.since_s) == (Pressure.HIGH, 2.0)


def test_pressure_turns_normal_only_below_the_lower_mark() -> None:
    mark = Watermark(high_ratio=0.85, low_ratio=0.80)
    mark.observe(1.0, 0.9)
    mark.observe(2.0, 0.82)
    mark.observe(3.0, 0.80)
    assert (mark.pressure, mark.since_s) == (Pressure.HIGH, 1.0)
    mark.observe(4.0, 0.79)
    assert (mark.pressure, mark.since_s) == (Pressure.NORMAL, 4.0)


@given(
    st.lists(st.floats(0, 1.2), max_size=40),
    st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)).filter(lambda pair: pair[0] < pair[1]),
)
def test_between_the_marks_the_last_mark_crossed_decides(ratios: list[float], marks: tuple[float, float]) -> None:
    low, high = marks
    mark = Watermark(high_ratio=high, low_ratio=low)
    for at, ratio in enumerate(ratios):
        mark.observe(float(at), ratio)
        crossed = [seen for seen in ratios[: at + 1] if seen >= high or seen < low]
        expected = Pressure.HIGH if crossed and crossed[-1] >= high else Pressure.NORMAL
        assert mark.pressure is expected


@pytest.mark.parametrize("low", [0.7, 0.71])
def test_marks_that_do_not_lie_below_one_another_are_rejected_and_nothing_changes(low: float) -> None:
    mark = Watermark(high_ratio=0.85, low_ratio=0.80)
    with pytest.raises(ValueError, match="not below"):
        mark.turn(high_ratio=0.7, low_ratio=low)
    assert (mark.high_ratio, mark.low_ratio) == (0.85, 0.80)
