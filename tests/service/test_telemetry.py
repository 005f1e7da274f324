"""What was seen lately: no peak is thinned away, and nothing older than a minute is kept."""

from hypothesis import given
from hypothesis import strategies as st
from service_fakes import MIB, reading_of

from gpuwatch.service.telemetry import HISTORY_S, CardSeen
from gpuwatch.storage.records import Breaker, Pressure, ProcessUse, Reading, Sample, Source


def sample_of(at: float, pressure_bytes: int) -> Sample:
    return Sample(
        at=at,
        run_id=1,
        gpu=0,
        total_bytes=1,
        used_bytes=pressure_bytes,
        reserved_bytes=None,
        allocated_bytes=None,
        pressure_bytes=pressure_bytes,
        promised_bytes=0,
        foreign_bytes=0,
        fragmentation_ratio=None,
        alloc_retries=None,
        util_pct=None,
        temperature_c=None,
        power_w=None,
        in_flight=0,
        waiting=0,
        loop_lag_ms=None,
        pressure=Pressure.NORMAL,
        breaker=Breaker.CLOSED,
    )


@given(st.lists(st.tuples(st.floats(0.001, 5), st.integers(0, 1 << 40)), min_size=1, max_size=300))
def test_the_history_keeps_every_peak_of_the_last_minute_in_bounded_room(steps: list[tuple[float, int]]) -> None:
    seen, at, given_all = CardSeen(), 1e9, []
    for step_s, pressure in steps:
        at += step_s
        given_all.append((at, pressure))
        seen.remember(sample_of(at, pressure))
    history = seen.history()
    assert len(history) <= 2 * HISTORY_S + 2
    assert all(one["at"] >= at - HISTORY_S for one in history)
    recent = [pressure for when, pressure in given_all if when >= at - HISTORY_S + 0.5]
    assert max(one["pressure_bytes"] for one in history) >= max(recent)
    times = [one["at"] for one in history]
    assert times == sorted(times)


def test_what_is_older_than_a_minute_goes() -> None:
    seen = CardSeen()
    for second in range(200):
        seen.remember(sample_of(float(second), second))
    assert [one["at"] for one in seen.history()] == [float(second) for second in range(139, 200)]


def test_a_reading_brings_processes_with_their_change_and_ends_a_loss() -> None:
    seen = CardSeen()
    seen.lost = "gone"
    seen.take(5.0, with_process(10 * MIB))
    seen.take(6.0, with_process(30 * MIB))
    assert seen.received_s == 6.0
    assert not seen.lost
    assert seen.processes[0].change_60s_bytes == 20 * MIB


def with_process(used_bytes: int) -> Reading:
    plain = reading_of()
    return Reading(
        at=plain.at,
        gpu=0,
        source=Source.SIM,
        total_bytes=plain.total_bytes,
        used_bytes=used_bytes,
        processes=(ProcessUse(pid=1, name="p", used_bytes=used_bytes),),
    )
