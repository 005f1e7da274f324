import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.storage import records
from gpuwatch.storage.records import Outcome, ProcessUse, Reading, Source

BYTES = st.integers(min_value=0, max_value=1 << 40)


def reading(**over: int | None) -> Reading:
    figures: dict[str, Any] = {"total_bytes": 1000, "used_bytes": 700, **over}
    return Reading(at=1.0, gpu=0, source=Source.SIM, **figures)


def test_reclaimable_is_reserved_minus_allocated_minus_what_cannot_be_split_off() -> None:
    assert reading(reserved_bytes=500, allocated_bytes=200, inactive_split_bytes=100).reclaimable_bytes == 200
    assert reading(reserved_bytes=500, allocated_bytes=200).reclaimable_bytes == 300


@pytest.mark.parametrize("known", [{}, {"reserved_bytes": 500}, {"allocated_bytes": 200}])
def test_nothing_is_reclaimable_where_only_the_driver_is_known(known: dict[str, int]) -> None:
    assert reading(**known).reclaimable_bytes == 0
    assert reading(**known).pressure_bytes == 700


def test_our_own_cache_alone_makes_no_pressure() -> None:
    assert reading(reserved_bytes=600, allocated_bytes=100, context_bytes=50).pressure_bytes == 200


def test_foreign_is_what_is_used_beyond_our_reserved_and_context() -> None:
    assert reading(reserved_bytes=500, allocated_bytes=1, context_bytes=50).foreign_bytes == 150


@given(BYTES, BYTES, BYTES, BYTES, BYTES)
def test_no_derived_figure_is_negative_or_larger_than_used(
    used: int, reserved: int, allocated: int, split: int, context: int
) -> None:
    seen = reading(
        used_bytes=used,
        reserved_bytes=reserved,
        allocated_bytes=allocated,
        inactive_split_bytes=split,
        context_bytes=context,
    )
    assert 0 <= seen.reclaimable_bytes <= reserved
    assert 0 <= seen.pressure_bytes <= used
    assert 0 <= seen.foreign_bytes <= used


def test_facts_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ProcessUse(pid=1, name="x").pid = 2  # type: ignore[misc] # the point of the test


def test_every_fact_is_a_frozen_dataclass_with_slots_and_named_fields() -> None:
    facts = [kind for kind in vars(records).values() if dataclasses.is_dataclass(kind) and isinstance(kind, type)]
    assert len(facts) >= 8
    for kind in facts:
        assert kind.__dataclass_params__.frozen, kind  # type: ignore[attr-defined] # what `dataclass` leaves behind
        assert hasattr(kind, "__slots__"), kind
        assert all(field.kw_only for field in dataclasses.fields(kind)), kind


def test_an_outcome_is_its_own_text() -> None:
    assert Outcome("queue-full") is Outcome.QUEUE_FULL
    assert str(Outcome.OK) == "ok"
    assert len({str(outcome) for outcome in Outcome}) == len(Outcome)
