from fractions import Fraction
from math import floor

import core_cases
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gpuwatch.service.core.ledger import FRAGMENTATION_PRIOR, Ledger, Terms
from gpuwatch.service.core.watermark import Watermark
from gpuwatch.storage.knobs import GIB, MIB
from gpuwatch.storage.records import Pressure, Reading

CARDS = (512 * MIB, 8 * GIB, 80 * GIB)
SIZES = st.integers(0, 90 * GIB)
RATIOS = st.floats(0.05, 1.0)
TERMS = st.builds(
    Terms,
    high_ratio=RATIOS,
    margin_bytes=st.just(0) | SIZES,
    max_bytes=st.just(0) | SIZES,
    foreign_reserve_bytes=st.just(0) | SIZES,
)


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    total = draw(st.sampled_from(CARDS) | st.integers(1, 200 * GIB))
    context = draw(st.integers(0, total))
    foreign = draw(st.integers(0, total))
    reserved = draw(st.none() | st.integers(0, total))
    return core_cases.reading(
        foreign, total_bytes=total, context_bytes=context, reserved_bytes=reserved, allocated_bytes=reserved
    )


def ledger(foreign_bytes: int = 0, *, enforced: bool = True) -> Ledger:
    made = Ledger(Terms(high_ratio=0.85, enforced=enforced))
    made.observe(0.0, core_cases.reading(foreign_bytes), idle=True)
    return made


def facts(made: Ledger) -> tuple[int, int, bool, bool]:
    return made.promised_bytes, made.available_bytes, made.fits(1), made.fits(None)


def stated_capacity(terms: Terms, reading: Reading, foreign: int, weights: int, factor: float) -> Fraction:
    """State the formula anew, in exact numbers."""
    total = reading.total_bytes
    margin = terms.margin_bytes or min(512 * MIB, floor(Fraction(0.05) * total))
    below_the_mark = floor(terms.high_ratio * total) - 1
    room = min(total - margin, below_the_mark) - max(foreign, terms.foreign_reserve_bytes)
    if terms.max_bytes:
        room = min(room, terms.max_bytes)
    return max(Fraction(0), Fraction(room - reading.context_bytes - weights) / Fraction(factor))


@given(TERMS, readings(), st.integers(0, 20 * GIB), st.floats(1.0, 3.0))
def test_capacity_is_what_the_formula_says(terms: Terms, reading: Reading, weights: int, factor: float) -> None:
    made = Ledger(terms, factor=factor)
    made.weigh(weights)
    made.observe(0.0, reading, idle=False)
    assert abs(made.capacity_bytes - stated_capacity(terms, reading, reading.foreign_bytes, weights, factor)) < 2
    assert abs(made.empty_capacity_bytes - stated_capacity(terms, reading, 0, weights, factor)) < 2


@given(TERMS, TERMS, readings())
def test_turned_terms_count_at_once(before: Terms, after: Terms, reading: Reading) -> None:
    turned, fresh = Ledger(before), Ledger(after)
    for made in (turned, fresh):
        made.observe(0.0, reading, idle=False)
    turned.turn(after)
    assert turned.capacity_bytes == fresh.capacity_bytes
    assert turned.empty_capacity_bytes == fresh.empty_capacity_bytes


@pytest.mark.parametrize("total", CARDS)
@given(data=st.data())
def test_a_card_filled_with_honest_promises_stays_below_its_own_high_mark(total: int, data: st.DataObject) -> None:
    high = data.draw(RATIOS, label="high")
    foreign, context, weights = (data.draw(st.integers(0, total // 3)) for _ in range(3))
    made = Ledger(Terms(high_ratio=high))
    made.weigh(weights)
    made.observe(0.0, core_cases.reading(foreign, total_bytes=total, context_bytes=context), idle=False)
    assume(made.capacity_bytes > 0)
    for price in data.draw(st.lists(st.integers(0, total), max_size=5)):
        if made.fits(price):
            made.promise(price)
    live = made.promised_bytes + made.promise(made.available_bytes)
    assert_below_mark(total, high, foreign + context + weights + floor(FRAGMENTATION_PRIOR * live))


@given(total=st.integers(64 * MIB, 80 * GIB), high=RATIOS)
@example(total=64 * MIB, high=0.5)
def test_a_card_filled_to_the_last_byte_without_any_fragmentation_stays_below_too(total: int, high: float) -> None:
    made = Ledger(Terms(high_ratio=high), factor=1.0)
    made.observe(0.0, core_cases.reading(total_bytes=total, context_bytes=0), idle=True)
    assert_below_mark(total, high, made.promise(made.capacity_bytes))


def assert_below_mark(total: int, high: float, pressure_bytes: int) -> None:
    mark = Watermark(high_ratio=high, low_ratio=high / 2)
    mark.observe(0.0, pressure_bytes / total)
    assert mark.pressure is Pressure.NORMAL


@given(st.lists(st.none() | st.integers(0, 8 * GIB), max_size=30), st.lists(st.integers(0, 8 * GIB), max_size=30))
def test_promises_never_pass_the_capacity_of_their_moment_and_are_nought_when_all_are_back(
    prices: list[int | None], foreign: list[int]
) -> None:
    made = ledger()
    held: list[tuple[int, bool]] = []
    for at, price in enumerate(prices):
        if at < len(foreign):
            made.observe(float(at), core_cases.reading(foreign[at]), idle=not held)
        if made.fits(price):
            held.append((made.promise(price), price is None))
            assert made.promised_bytes <= made.capacity_bytes
        else:
            with pytest.raises(ValueError, match="do not fit"):
                made.promise(price)
        assert made.promised_bytes == sum(bytes_ for bytes_, _ in held)
    for bytes_, alone in held:
        made.release(bytes_, alone=alone)
    assert made.promised_bytes == 0
    made.observe(100.0, core_cases.reading(), idle=True)
    assert made.fits(None)


def test_nothing_is_promised_before_the_first_reading() -> None:
    made = Ledger(Terms(high_ratio=0.85))
    made.weigh(MIB)
    assert not made.fits(1)
    assert not made.fits(None)


def test_an_unknown_price_is_promised_everything_and_shuts_all_others_out() -> None:
    made = ledger()
    assert made.promise(None) == made.capacity_bytes > 0
    made.observe(1.0, core_cases.reading(context_bytes=0), idle=False)
    assert made.available_bytes > 0, "the capacity has grown, and still nobody joins"
    assert not any(made.fits(price) for price in (0, 1, None))


@pytest.mark.parametrize("price", [0, 1, MIB])
def test_an_unknown_price_does_not_join_any_other_promise(price: int) -> None:
    made = ledger()
    made.promise(price)
    assert not made.fits(None)
    made.release(price, alone=False)
    assert made.fits(None)


def test_an_unknown_price_fits_no_card_without_capacity() -> None:
    assert not ledger(foreign_bytes=8 * GIB).fits(None)


def test_unknown_prices_that_started_without_a_budget_shut_others_out_once_there_is_one() -> None:
    made = ledger(enforced=False)
    assert (made.promise(None), made.promise(None)) == (0, 0)
    made.turn(Terms(high_ratio=0.85))
    made.release(0, alone=True)
    assert not made.fits(1)
    assert not made.fits(None)
    made.release(0, alone=True)
    assert made.fits(None)


def test_without_a_budget_everything_fits_and_is_still_counted() -> None:
    made = ledger(enforced=False)
    made.promise(100 * GIB)
    assert made.promised_bytes == 100 * GIB
    assert made.fits(100 * GIB)
    assert made.fits(None)
    made.turn(Terms(high_ratio=0.85))
    assert not made.fits(0), "with a budget again, nothing joins until there is room"


@pytest.mark.parametrize(
    ("promised", "released", "alone"), [((), 0, False), ((MIB,), MIB + 1, False), ((MIB,), MIB, True), ((), 1, True)]
)
def test_a_release_of_what_was_not_promised_raises_and_changes_nothing(
    promised: tuple[int, ...],
    released: int,
    alone: bool,  # noqa: FBT001 - a case's value
) -> None:
    made = ledger()
    for price in promised:
        made.promise(price)
    before = facts(made)
    with pytest.raises(ValueError, match="come back"):
        made.release(released, alone=alone)
    assert facts(made) == before


def test_what_fits_no_empty_card_is_told_apart_from_what_a_neighbour_keeps_out() -> None:
    made = ledger(foreign_bytes=4 * GIB)
    price = made.capacity_bytes + 1
    assert not made.fits_without_promises(price)
    assert made.fits_empty_card(price)
    assert not made.fits_empty_card(made.empty_capacity_bytes + 1)
    assert made.fits_empty_card(made.empty_capacity_bytes)


def test_what_fits_once_the_promises_are_back_is_told_apart_from_what_never_will() -> None:
    made = ledger()
    made.promise(made.capacity_bytes)
    assert not made.fits(1)
    assert made.fits_without_promises(made.capacity_bytes)
    assert made.fits_without_promises(None)
    assert not made.fits_without_promises(made.capacity_bytes + 1)


def test_before_the_first_reading_no_price_is_called_too_large() -> None:
    assert Ledger(Terms(high_ratio=0.85)).fits_empty_card(1 << 60)


def test_the_baseline_follows_what_stays_allocated_slowly_and_only_when_idle() -> None:
    made = ledger()
    kept = core_cases.reading(reserved_bytes=GIB, allocated_bytes=GIB)
    made.observe(5.0, kept, idle=False)
    assert made.idle_baseline_bytes == 0
    made.observe(6.0, kept, idle=True)
    assert made.idle_baseline_bytes == pytest.approx(0.1 * GIB)
    for second in range(7, 107):
        made.observe(float(second), kept, idle=True)
    assert made.idle_baseline_bytes == pytest.approx(GIB, rel=1e-3)


@given(st.floats(0, 1e6), st.integers(0, 8 * GIB))
def test_the_baseline_never_overshoots_what_is_allocated(gap_s: float, allocated: int) -> None:
    made = ledger()
    made.weigh(GIB)
    made.observe(gap_s, core_cases.reading(reserved_bytes=allocated, allocated_bytes=allocated), idle=True)
    assert min(GIB, allocated) <= made.idle_baseline_bytes <= max(GIB, allocated)
