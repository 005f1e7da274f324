"""How a neighbour changed: the larger of its rise and its fall within the window, never on a guess."""

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.core.neighbours import WINDOW_S, ProcessHistory, swing
from gpuwatch.storage.records import ProcessUse

SIZES = st.integers(0, 1 << 40)


def use(pid: int, used_bytes: int | None) -> ProcessUse:
    return ProcessUse(pid=pid, name=f"p{pid}", used_bytes=used_bytes)


def changes(history: ProcessHistory, now_s: float, *uses: ProcessUse) -> dict[int, int | None]:
    return {seen.pid: seen.change_60s_bytes for seen in history.observe(now_s, uses)}


@given(st.lists(SIZES, min_size=1), SIZES)
def test_a_swing_is_the_larger_way_and_has_its_sign(before: list[int], now: int) -> None:
    found = swing(before, now)
    assert found is not None
    assert abs(found) == max(abs(now - value) for value in before)
    assert found in {now - value for value in before}


def test_without_a_past_there_is_no_change() -> None:
    assert swing([], 5) is None
    assert changes(ProcessHistory(), 0.0, use(1, 5)) == {1: None}


def test_who_rises_falls_and_comes_is_told() -> None:
    history = ProcessHistory()
    history.observe(0.0, (use(1, 10), use(2, 50)))
    assert changes(history, 1.0, use(1, 30), use(2, 20), use(3, 7)) == {1: 20, 2: -30, 3: 7}


def test_one_that_comes_and_goes_is_seen_against_the_whole_window() -> None:
    history = ProcessHistory()
    for second in range(120):
        found = changes(history, float(second), use(1, 100 if second % 60 < 30 else 0))
    assert found == {1: -100}


def test_what_has_left_the_window_no_longer_counts() -> None:
    history = ProcessHistory()
    history.observe(0.0, (use(1, 0),))
    history.observe(30.0, (use(1, 100),))
    assert changes(history, WINDOW_S, use(1, 100)) == {1: 100}
    assert changes(history, WINDOW_S + 1, use(1, 100)) == {1: 0}


def test_what_the_driver_does_not_tell_is_not_taken_for_nothing() -> None:
    history = ProcessHistory()
    history.observe(0.0, (use(1, None),))
    assert changes(history, 1.0, use(1, None)) == {1: None}
    assert changes(history, 2.0, use(1, 1 << 30)) == {1: None}, "it may have held that all the time"
    history.observe(3.0, (use(1, 1 << 30),))
    assert changes(history, 4.0, use(1, 1 << 30)) == {1: 0}


def test_many_looks_a_second_are_one() -> None:
    history = ProcessHistory()
    for number in range(1000):
        history.observe(number / 1000, (use(1, number),))
    assert len(history._looks) == 1
    assert changes(history, 0.9999, use(1, 500)) == {1: 500}
