from collections.abc import Mapping

import pytest
from core_cases import TOTAL_BYTES, reading

from gpuwatch.service.core.card import Card
from gpuwatch.storage.knobs import GIB, MIB, Knobs
from gpuwatch.storage.records import BlockedBy, Breaker, Pressure


def card(changes: Mapping[str, object] | None = None, *, foreign_bytes: int | None = 0) -> Card:
    """Make a card, seen at 100 s with neighbours of ``foreign_bytes``; ``None``: not seen yet."""
    made = Card(0, Knobs.defaults().turned(changes or {}))
    if foreign_bytes is not None:
        made.observe(100.0, reading(foreign_bytes))
    return made


def share(ratio: float) -> int:
    """Give what neighbours hold when pressure is ``ratio`` of the card."""
    return int(ratio * TOTAL_BYTES) - 256 * MIB + 1


def turn(made: Card, now_s: float, changes: Mapping[str, object]) -> None:
    made.turn(now_s, Knobs.defaults().turned(changes))


def test_a_good_card_with_room_blocks_nothing() -> None:
    assert card().blocked_by(100.0, MIB) is None


def test_a_card_that_was_never_seen_is_stale() -> None:
    made = card(foreign_bytes=None)
    assert made.stale_since_s(7.0) == 7.0
    assert made.blocked_by(7.0, MIB) is BlockedBy.STALE


def test_failing_open_before_the_first_reading_still_promises_no_bytes() -> None:
    made = card({"watermark.on_stale": "open"}, foreign_bytes=None)
    assert made.blocked_by(0.0, 1) is BlockedBy.BYTES
    assert made.blocked_by(0.0, None) is BlockedBy.BYTES


def test_a_reading_is_believed_up_to_its_age_and_stale_past_it() -> None:
    made = card({"sampling.stale_after_s": 2.0})
    assert made.stale_since_s(102.0) is None
    assert made.stale_since_s(102.5) == 102.0
    assert made.blocked_by(102.5, MIB) is BlockedBy.STALE
    made.observe(103.0, reading())
    assert made.blocked_by(103.0, MIB) is None


def test_a_reading_is_believed_for_two_sampling_periods_at_least() -> None:
    made = card({"sampling.stale_after_s": 0.1, "sampling.interval_ms": 10_000})
    assert made.stale_since_s(120.0) is None
    assert made.stale_since_s(120.1) == 120.0


def test_stale_readings_admit_only_where_told_to() -> None:
    made = card({"watermark.on_stale": "open"})
    assert made.blocked_by(1000.0, MIB) is None
    turn(made, 1000.0, {"watermark.on_stale": "closed"})
    assert made.blocked_by(1000.0, MIB) is BlockedBy.STALE


def test_a_lost_card_takes_nothing_even_when_told_to_fail_open_until_it_is_seen_again() -> None:
    made = card({"watermark.on_stale": "open"})
    made.lost = True
    assert made.blocked_by(100.0, MIB) is BlockedBy.STALE
    made.observe(101.0, reading())
    assert made.blocked_by(101.0, MIB) is None


def test_the_cause_named_is_the_one_that_must_go_first() -> None:
    made = card(foreign_bytes=share(0.96))
    assert made.blocked_by(100.0, GIB) is BlockedBy.BREAKER
    assert made.blocked_by(200.0, GIB) is BlockedBy.STALE
    made.observe(201.0, reading(share(0.90)))
    assert made.breaker.state is Breaker.HALF_OPEN
    assert made.blocked_by(201.0, GIB) is BlockedBy.WATERMARK
    made.observe(202.0, reading(share(0.79)))
    assert made.blocked_by(202.0, GIB) is BlockedBy.BYTES
    assert made.blocked_by(202.0, MIB) is None


def test_idle_means_that_nothing_of_ours_runs_here() -> None:
    made = card()
    kept = reading(reserved_bytes=GIB, allocated_bytes=GIB)
    made.runs = 1
    made.observe(105.0, kept)
    assert made.ledger.idle_baseline_bytes == 0
    made.runs = 0
    made.observe(110.0, kept)
    assert made.ledger.idle_baseline_bytes > 0


def test_a_reading_tells_what_changed_with_it() -> None:
    made = card()
    assert made.observe(101.0, reading(share(0.86))) == (True, False)
    assert made.observe(102.0, reading(share(0.96))) == (False, True)
    assert made.observe(103.0, reading(share(0.96))) == (False, False)
    assert made.observe(109.0, reading()) == (True, True)


def test_a_breaker_that_a_probe_closed_is_told_with_the_next_reading() -> None:
    made = card(foreign_bytes=share(0.96))
    made.observe(106.0, reading())
    made.breaker.start(1)
    made.breaker.ended(106.5, 1, ok=True)
    assert made.observe(107.0, reading()) == (False, True)
    assert made.observe(108.0, reading()) == (False, False)


@pytest.mark.parametrize(
    ("changes", "pressure", "breaker"),
    [
        ({"watermark.high": 0.5, "watermark.low": 0.4}, Pressure.HIGH, Breaker.CLOSED),
        ({"breaker.trip": 0.5}, Pressure.NORMAL, Breaker.OPEN),
    ],
)
def test_lowered_marks_judge_the_last_reading_at_once_and_the_next_one_tells(
    changes: dict[str, object], pressure: Pressure, breaker: Breaker
) -> None:
    made = card(foreign_bytes=share(0.6))
    turn(made, 100.5, changes)
    assert (made.watermark.pressure, made.breaker.state) == (pressure, breaker)
    assert made.observe(101.0, reading(share(0.6))) == (pressure is Pressure.HIGH, breaker is Breaker.OPEN)


def test_raised_marks_judge_the_last_reading_at_once() -> None:
    made = card(foreign_bytes=share(0.86))
    assert made.blocked_by(100.0, MIB) is BlockedBy.WATERMARK
    turn(made, 100.5, {"watermark.high": 0.95, "watermark.low": 0.90})
    assert made.watermark.pressure is Pressure.NORMAL


def test_a_reading_that_is_believed_no_more_is_not_judged_again() -> None:
    made = card(foreign_bytes=share(0.86))
    turn(made, 200.0, {"watermark.high": 0.95, "watermark.low": 0.90})
    assert made.watermark.pressure is Pressure.HIGH
