"""A cause is named where the figures show it, and nowhere else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.core.diagnosis import Diagnosis, diagnose
from gpuwatch.storage.records import Cause, ProcessUse, Reading, Source, Trigger

MIB = 1 << 20
GIB = 1 << 30
NEIGHBOUR = ProcessUse(pid=7, name="python", unit="train.service", used_bytes=GIB, change_60s_bytes=GIB)
OURS = ProcessUse(pid=1, name="us", used_bytes=5 * GIB, change_60s_bytes=4 * GIB, own=True)


def reading_of(used_bytes: int = 7 * GIB, total_bytes: int = 8 * GIB) -> Reading:
    return Reading(at=0.0, gpu=0, source=Source.SIM, total_bytes=total_bytes, used_bytes=used_bytes)


def found(**given: Any) -> Diagnosis:  # noqa: ANN401 - any argument of the call
    plain: dict[str, Any] = {
        "trigger": Trigger.OUT_OF_MEMORY,
        "reading": reading_of(),
        "high_ratio": 0.85,
        "processes": (OURS, NEIGHBOUR),
        "foreign_change_bytes": GIB,
        "requested_bytes": 600 * MIB,
        "free_bytes": 100 * MIB,
    }
    return diagnose(**(plain | given))


def test_a_neighbour_that_grew_by_what_was_missing_is_named() -> None:
    diagnosis = found()
    assert diagnosis.cause is Cause.OTHER_PROCESS
    assert "train.service +1.0G" in diagnosis.headline
    assert "asking for 600M with 100M free" in diagnosis.headline
    assert "us" not in diagnosis.headline.split(": ")[1].split()
    assert diagnosis.confidence is not None
    assert 0.5 <= diagnosis.confidence <= 0.95


def test_surer_the_more_it_grew() -> None:
    confidences = [found(foreign_change_bytes=size).confidence for size in (500 * MIB, 700 * MIB, 4 * GIB)]
    assert confidences == sorted(confidences, key=lambda value: value or 0)
    assert confidences[0] == 0.5
    assert confidences[-1] == 0.95


@pytest.mark.parametrize(
    "given",
    [
        {"foreign_change_bytes": None},
        {"foreign_change_bytes": 0},
        {"foreign_change_bytes": -GIB},
        {"foreign_change_bytes": 499 * MIB},
        {"free_bytes": 600 * MIB},
        {"free_bytes": 2 * GIB},
        {"requested_bytes": 101 * MIB, "foreign_change_bytes": 2 * MIB},
        {
            "trigger": Trigger.WATERMARK,
            "requested_bytes": None,
            "free_bytes": None,
            "reading": reading_of(int(0.85 * 8 * GIB)),
            "foreign_change_bytes": MIB,
        },
    ],
    ids=["unknown", "none", "fell", "too-little", "in-pieces", "plenty-free", "jitter", "jitter-at-the-mark"],
)
def test_no_cause_is_named_on_a_guess(given: dict[str, Any]) -> None:
    diagnosis = found(**given)
    assert (diagnosis.cause, diagnosis.confidence) == (Cause.UNKNOWN, None)
    assert diagnosis.headline


def test_a_near_miss_is_measured_against_the_mark() -> None:
    diagnosis = found(trigger=Trigger.WATERMARK, requested_bytes=None, free_bytes=None)
    assert diagnosis.cause is Cause.OTHER_PROCESS
    assert diagnosis.headline.startswith("near-miss")
    assert found(trigger=Trigger.BREAKER, requested_bytes=None, free_bytes=None).headline.startswith("breaker opened")


def test_one_that_a_person_asked_for_has_no_cause_but_that() -> None:
    assert found(trigger=Trigger.MANUAL).cause is Cause.MANUAL


def test_growth_without_a_process_to_name_is_others() -> None:
    assert "others +1.0G" in found(processes=()).headline


OPTIONAL = st.none() | st.integers(0, 1 << 42)


@given(
    trigger=st.sampled_from(Trigger),
    reading=st.builds(reading_of, st.integers(0, 1 << 42), st.integers(1, 1 << 42)),
    change=st.none() | st.integers(-(1 << 42), 1 << 42),
    asked=st.tuples(OPTIONAL, OPTIONAL),
    processes=st.lists(
        st.builds(ProcessUse, pid=st.integers(0), name=st.text(), change_60s_bytes=OPTIONAL, own=st.booleans())
    ),
)
def test_any_figures_have_a_diagnosis(
    *,
    trigger: Trigger,
    reading: Reading,
    change: int | None,
    asked: tuple[int | None, int | None],
    processes: list[ProcessUse],
) -> None:
    diagnosis = found(
        trigger=trigger,
        reading=reading,
        foreign_change_bytes=change,
        requested_bytes=asked[0],
        free_bytes=asked[1],
        processes=tuple(processes),
    )
    assert diagnosis.headline
    assert (diagnosis.confidence is None) == (diagnosis.cause is not Cause.OTHER_PROCESS)
    if diagnosis.cause is Cause.OTHER_PROCESS:
        assert change is not None
        assert change > 0
