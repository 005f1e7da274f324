"""One sentence why requests wait: the right one for each cause, and one for every state there can be."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.core.verdict import size, verdict
from gpuwatch.storage.records import BlockedBy, Breaker, Pressure, ProcessUse
from gpuwatch.storage.state import GpuState, GpuStatus, LaneState, ServiceState, State, Status

MIB = 1 << 20
GIB = 1 << 30
GPU = GpuState(index=0, total_bytes=8 * GIB, capacity_bytes=4 * GIB, available_bytes=GIB)
LANE = LaneState(name="image", limit=4, running=4, in_flight=4, waiting=3, oldest_wait_ms=5.0)
NEIGHBOUR = ProcessUse(pid=7, name="python", unit="train.service", used_bytes=GIB, change_60s_bytes=GIB)


def said(lane: LaneState = LANE, gpu: GpuState = GPU, status: Status = Status.READY) -> str:
    return verdict(State(service=ServiceState(status=status), gpus=(gpu,), lanes=(lane,)))


def waiting_for(cause: BlockedBy | None, gpu: GpuState = GPU, **lane: int) -> str:
    return said(replace(LANE, blocked_by=cause, **lane), gpu)  # type: ignore[arg-type]  # whole numbers all


def test_slots_say_how_many_are_under_way_and_what_would_fit() -> None:
    assert waiting_for(BlockedBy.SLOTS) == "image waits for SLOTS: 4 of 4 runs under way"
    assert waiting_for(BlockedBy.SLOTS, fits_now=2).endswith("; 2 more would fit in bytes")
    assert waiting_for(BlockedBy.SLOTS, limit=0) == "image is paused: its concurrency is 0"


def test_bytes_say_what_is_needed_what_is_left_and_who_took_it() -> None:
    text = waiting_for(BlockedBy.BYTES, replace(GPU, processes=(NEIGHBOUR,)), head_price_bytes=2 * GIB)
    assert text == "image waits for BYTES, not slots; train.service +1.0G in 60 s; needs 2.0G, 1.0G of 4.0G left"
    assert "its price is unknown" in waiting_for(BlockedBy.BYTES)
    assert "0B of 4.0G left" in waiting_for(BlockedBy.BYTES, replace(GPU, available_bytes=-5), head_price_bytes=1)


def test_a_neighbour_is_named_only_where_it_matters_and_never_ourselves() -> None:
    small = replace(NEIGHBOUR, change_60s_bytes=8 * GIB // 20 - 1)
    gone = replace(NEIGHBOUR, change_60s_bytes=-GIB)
    own = replace(NEIGHBOUR, own=True)
    for process in (small, gone, own):
        assert "60 s" not in waiting_for(BlockedBy.BYTES, replace(GPU, processes=(process,)))


def test_each_other_cause_has_its_own_sentence() -> None:
    assert "a higher limit will not help" in waiting_for(BlockedBy.WATERMARK)
    assert "BREAKER" in waiting_for(BlockedBy.BREAKER)
    assert "READING" in waiting_for(BlockedBy.STALE)
    assert "behind an older request" in waiting_for(None)


def test_the_lane_that_waits_longest_is_the_one_spoken_of() -> None:
    slow = replace(LANE, name="slow", oldest_wait_ms=9000.0, waiting=1, blocked_by=BlockedBy.SLOTS)
    many = replace(LANE, name="many", oldest_wait_ms=10.0, waiting=900, blocked_by=BlockedBy.SLOTS)
    assert verdict(State(gpus=(GPU,), lanes=(many, slow))).startswith("slow waits")


@pytest.mark.parametrize(
    ("gpu", "status", "says"),
    [
        (GPU, Status.READY, "nothing waits; 4 running"),
        (GPU, Status.DRAINING, "draining: 4 runs under way, nothing new is taken"),
        (replace(GPU, status=GpuStatus.STALE), Status.DEGRADED, "GPU0 gives no readings: new requests will wait"),
        (replace(GPU, status=GpuStatus.LOST), Status.DEGRADED, "GPU0 is lost: the driver no longer answers for it"),
        (replace(GPU, breaker=Breaker.OPEN), Status.DEGRADED, "GPU0's breaker is open: the card was nearly full"),
        (replace(GPU, pressure=Pressure.HIGH), Status.DEGRADED, "GPU0 is above its high mark: new requests will wait"),
    ],
)
def test_where_nobody_waits_the_card_speaks(gpu: GpuState, status: Status, says: str) -> None:
    assert said(replace(LANE, waiting=0), gpu, status) == says


def test_idle_is_said() -> None:
    assert verdict(State()) == "nothing waits; idle"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1.0K"),
        (MIB, "1.0M"),
        (87 * MIB, "87M"),
        (int(2.4 * GIB), "2.4G"),
        (24 * GIB, "24G"),
    ],
)
def test_sizes_are_short(value: int, text: str) -> None:
    assert size(value) == text


SIZES = st.integers(-(1 << 50), 1 << 50)
PROCESSES = st.lists(
    st.builds(
        ProcessUse,
        pid=st.integers(0, 1 << 22),
        name=st.text(),
        unit=st.none() | st.text(),
        used_bytes=st.none() | SIZES,
        change_60s_bytes=st.none() | SIZES,
        own=st.booleans(),
    ),
    max_size=3,
).map(tuple)
GPUS = st.lists(
    st.builds(
        GpuState,
        index=st.integers(0, 7),
        status=st.sampled_from(GpuStatus),
        total_bytes=st.integers(0, 1 << 50),
        capacity_bytes=SIZES,
        available_bytes=SIZES,
        pressure=st.sampled_from(Pressure),
        breaker=st.sampled_from(Breaker),
        processes=PROCESSES,
    ),
    max_size=3,
).map(tuple)
LANES = st.lists(
    st.builds(
        LaneState,
        name=st.text(),
        limit=st.integers(0, 1024),
        in_flight=st.integers(0, 2000),
        running=st.integers(0, 2000),
        waiting=st.integers(0, 100_000),
        oldest_wait_ms=st.none() | st.floats(0, 1e9),
        head_price_bytes=st.none() | SIZES,
        blocked_by=st.none() | st.sampled_from(BlockedBy),
        fits_now=st.none() | st.integers(0, 1000),
    ),
    max_size=3,
).map(tuple)


@given(st.sampled_from(Status), GPUS, LANES)
def test_every_state_has_one_sentence(status: Status, gpus: tuple[GpuState, ...], lanes: tuple[LaneState, ...]) -> None:
    assert verdict(State(service=ServiceState(status=status), gpus=gpus, lanes=lanes))
