"""A scripted neighbour keeps to its schedule, grows in steps, asks again on a full card, and leaves nothing behind."""

import threading
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.gpu.neighbour import RISE_S, RISE_STEPS, SOON_S, Schedule, ScriptedNeighbour

MS = st.integers(0, 100_000).map(lambda ms: ms / 1000)


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    every_ms = draw(st.integers(10, 60_000))
    return Schedule(
        peak_bytes=draw(st.integers(0, 1 << 40)),
        every_s=every_ms / 1000,
        for_s=draw(st.integers(1, every_ms)) / 1000,
        first_s=draw(st.integers(0, 30_000)) / 1000,
    )


class Card:
    """Gives a neighbour up to ``free_bytes``, and keeps what it was asked for."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self.asked: list[int] = []
        self.held_bytes = 0
        self.came = threading.Event()

    def set_neighbour(self, name: str, used_bytes: int) -> int:
        assert name == "neighbour"
        self.asked.append(used_bytes)
        self.held_bytes = min(used_bytes, self.free_bytes)
        if used_bytes:
            self.came.set()
        return self.held_bytes


class Clock:
    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


@given(schedules(), MS)
def test_a_schedule_never_holds_more_than_its_peak_and_nothing_before_the_first_visit(
    schedule: Schedule, elapsed_s: float
) -> None:
    held_bytes = schedule.held_bytes(elapsed_s)
    assert 0 <= held_bytes <= schedule.peak_bytes
    if elapsed_s < schedule.first_s:
        assert held_bytes == 0


@given(schedules(), st.integers(0, 20))
def test_each_visit_rises_to_the_peak_and_ends_at_once(schedule: Schedule, visit: int) -> None:
    began_s = schedule.first_s + visit * schedule.every_s
    within = [schedule.held_bytes(began_s + schedule.for_s * (tenth + 0.5) / 10) for tenth in range(10)]
    assert all(left <= right for left, right in pairwise(within))
    assert within[0] >= schedule.peak_bytes // RISE_STEPS
    assert within[-1] == schedule.peak_bytes
    if schedule.for_s < schedule.every_s:
        gap_s = schedule.every_s - schedule.for_s
        assert schedule.held_bytes(began_s + schedule.for_s + gap_s / 2) == 0


@given(schedules(), MS)
def test_nothing_changes_before_the_next_change(schedule: Schedule, elapsed_s: float) -> None:
    wait_s = schedule.next_change_s(elapsed_s)
    assert wait_s >= SOON_S
    if wait_s > SOON_S:  # else the change is nearer than that
        # A float's last bit may put ``elapsed_s`` itself on the other side of a change: look just behind it.
        later = {schedule.held_bytes(elapsed_s + 1e-9 + (wait_s - 2e-9) * part / 10) for part in range(11)}
        assert len(later) == 1


def test_a_long_visit_takes_its_memory_in_steps_within_the_rise() -> None:
    schedule = Schedule(peak_bytes=1000, every_s=10, for_s=5, first_s=2)
    seen = [schedule.held_bytes(2 + RISE_S * (part + 0.5) / 8) for part in range(9)]
    assert seen == [250, 250, 500, 500, 750, 750, 1000, 1000, 1000]


@pytest.mark.parametrize(
    "wrong", [{"for_s": 0.0}, {"for_s": 11.0}, {"for_s": 1.0, "first_s": -1.0}, {"for_s": 1.0, "peak_bytes": -1}]
)
def test_a_schedule_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="visit"):
        Schedule(**{"peak_bytes": 1, "every_s": 10.0} | wrong)  # type: ignore[arg-type]  # the table mixes kinds


def test_the_edge_follows_the_schedule_from_its_own_beginning() -> None:
    card, clock = Card(free_bytes=10_000), Clock(500.0)
    neighbour = ScriptedNeighbour(card, Schedule(peak_bytes=1000, every_s=10, for_s=5, first_s=2), clock=clock)
    while clock.now_s < 500 + 2 + 10:
        clock.now_s += neighbour.step()
    assert [asked for asked, _ in groupby(card.asked)] == [0, 250, 500, 750, 1000, 0]
    assert len(card.asked) < 12, "it asks at changes, not all the time"


def test_a_full_card_is_asked_again_before_the_next_change() -> None:
    card, clock = Card(free_bytes=600), Clock(0.0)
    neighbour = ScriptedNeighbour(card, Schedule(peak_bytes=1000, every_s=10, for_s=5), clock=clock, retry_s=0.5)
    clock.now_s = 0.0
    neighbour.step()
    clock.now_s = 1.0
    assert neighbour.step() == 0.5
    assert card.held_bytes == 600
    card.free_bytes = 2000
    assert neighbour.step() == 4.0
    assert card.held_bytes == 1000


def test_closing_gives_everything_back_and_ends_the_thread() -> None:
    card = Card(free_bytes=1000)
    neighbour = ScriptedNeighbour(card, Schedule(peak_bytes=100, every_s=1000, for_s=1000))
    neighbour.start()
    with pytest.raises(RuntimeError, match="already"):
        neighbour.start()
    assert card.came.wait(timeout=10)
    neighbour.close()
    assert card.held_bytes == 0
    assert not any(thread.name == "gpuwatch-neighbour" for thread in threading.enumerate())
