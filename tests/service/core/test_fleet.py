import pytest
from core_cases import TOTAL_BYTES, reading

from gpuwatch.service.core.card import Card
from gpuwatch.service.core.fleet import Fleet
from gpuwatch.storage.knobs import GIB, MIB, Knobs
from gpuwatch.storage.records import BlockedBy

NOW_S = 100.0
FULL = TOTAL_BYTES
HIGH = int(0.86 * TOTAL_BYTES)


def fleet(*foreign_bytes: int) -> Fleet:
    """Make a card for each neighbour's size."""
    made = Fleet({index: Card(index, Knobs.defaults()) for index in range(len(foreign_bytes))})
    for index, foreign in enumerate(foreign_bytes):
        made.cards[index].observe(NOW_S, reading(foreign, gpu=index))
    return made


def test_one_card_that_would_take_it_is_enough() -> None:
    assert fleet(FULL, 0).blocked_by(NOW_S, GIB) is None


@pytest.mark.parametrize(
    ("foreign", "cause"),
    [
        ((FULL, 6 * GIB), BlockedBy.BYTES),
        ((FULL, HIGH), BlockedBy.WATERMARK),
        ((FULL, FULL), BlockedBy.BREAKER),
    ],
)
def test_the_cause_named_is_that_of_the_card_nearest_to_a_start(foreign: tuple[int, ...], cause: BlockedBy) -> None:
    assert fleet(*foreign).blocked_by(NOW_S, GIB) is cause


def test_without_a_card_the_cause_is_that_nothing_is_known() -> None:
    assert fleet().blocked_by(NOW_S, GIB) is BlockedBy.STALE
    assert fleet().roomiest() is None
    assert fleet().most_ever_bytes() == 0


def test_a_card_is_open_where_something_small_enough_could_start() -> None:
    made = fleet(0, FULL, 0, 0)
    made.cards[2].lost = True
    made.cards[3].ledger.promise(None)
    assert [card.index for card in made.open(NOW_S)] == [0]


def test_what_promises_keep_out_is_told_apart_from_what_a_neighbour_keeps_out() -> None:
    made = fleet(0, 5 * GIB)
    for card in made.cards.values():
        card.ledger.promise(card.ledger.capacity_bytes)
    assert made.waits_for_promises(NOW_S, 2 * GIB)
    made.cards[0].lost = True
    assert not made.waits_for_promises(NOW_S, 2 * GIB)
    assert made.waits_for_promises(NOW_S, GIB)


def test_a_lost_card_is_no_reason_to_let_requests_wait_behind_a_shut_one() -> None:
    made = fleet(0, FULL)
    assert not made.shut()
    assert not made.too_full()
    made.cards[0].lost = True
    assert made.shut()
    assert made.too_full()


def test_a_probe_that_runs_keeps_the_card_shut_for_those_who_come() -> None:
    made = fleet(FULL)
    made.cards[0].observe(NOW_S + 10, reading())
    assert not made.shut()
    made.cards[0].breaker.start(1)
    assert made.shut()


def test_figures_leave_lost_cards_out_but_what_could_ever_fit_does_not() -> None:
    made = fleet(0, 4 * GIB)
    made.cards[0].lost = True
    large = made.cards[0].ledger.empty_capacity_bytes
    assert made.roomiest() is made.cards[1].ledger
    assert made.count_fitting(GIB) == made.cards[1].ledger.available_bytes // GIB
    assert made.could_ever_take(large)
    assert not made.could_ever_take(large + 1)
    assert made.most_ever_bytes() == large


def test_a_neighbour_that_took_promised_room_leaves_none_and_not_less_than_none() -> None:
    made = fleet(0)
    made.cards[0].ledger.promise(4 * GIB)
    made.cards[0].observe(NOW_S, reading(5 * GIB))
    assert made.count_fitting(MIB) == 0
