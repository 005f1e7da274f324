from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.core.waitlist import Waiter, Waitlist

LANES = ("a", "b", "c")


class Counted(int):
    """A ticket that counts how often it is looked up."""

    looked_up = 0

    def __hash__(self) -> int:
        Counted.looked_up += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)


def waiter(ticket: int, lane: str = "a", arrived_s: float = 0.0) -> Waiter:
    return Waiter(ticket, lane, None, arrived_s, arrived_s + 10)


def filled(tickets: list[int]) -> Waitlist:
    made = Waitlist(LANES)
    for ticket in tickets:
        made.add(waiter(ticket))
    return made


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(LANES), st.integers(0, 30)), max_size=80))
def test_each_lane_keeps_the_order_of_arrival_under_any_adds_and_removes(steps: list[tuple[bool, str, int]]) -> None:
    made = Waitlist(LANES)
    model: dict[int, Waiter] = {}
    for add, lane, ticket in steps:
        if add and ticket not in model:
            model[ticket] = waiter(ticket, lane)
            made.add(model[ticket])
        elif not add and ticket in model:
            assert made.remove(ticket) == model.pop(ticket)
        assert len(made) == len(model)
        assert bool(made) == bool(model)
        for name in LANES:
            line = [w for w in model.values() if w.lane == name]
            assert made.waiting(name) == len(line)
            assert made.head(name) == next(iter(line), None)
            assert list(made.first(name, 5)) == line[:5]
    assert sorted(w.ticket for w in made.everyone()) == sorted(model)
    assert all((ticket in made) == (ticket in model) for ticket in range(31))


def test_a_ticket_waits_once() -> None:
    made = filled([1])
    with pytest.raises(ValueError, match="waits already"):
        made.add(waiter(1, "b"))
    assert (len(made), made.waiting("a"), made.waiting("b")) == (1, 1, 0)


def test_who_does_not_wait_cannot_be_removed() -> None:
    made = filled([1])
    with pytest.raises(KeyError):
        made.remove(2)
    assert len(made) == 1


def test_a_lane_that_does_not_exist_leaves_no_trace() -> None:
    made = filled([])
    with pytest.raises(KeyError):
        made.add(waiter(1, "nowhere"))
    assert 1 not in made
    assert not made


@pytest.mark.parametrize("order", ["front", "back", "middle"])
def test_taking_ten_thousand_out_looks_each_up_a_fixed_number_of_times(order: str) -> None:
    tickets: list[int] = [Counted(n) for n in range(10_000)]
    made = filled(tickets)
    going = {"front": tickets, "back": tickets[::-1], "middle": tickets[5000:] + tickets[:5000]}[order]
    Counted.looked_up = 0
    for ticket in going:
        made.head("a")
        made.remove(ticket)
    assert Counted.looked_up <= 4 * len(tickets)
    assert not made


def test_a_line_finds_its_first_without_walking_over_those_that_left() -> None:
    # A dict would: its first item lies behind a hole for each one removed, which no count of look-ups shows.
    assert all(type(line) is OrderedDict for line in Waitlist(LANES)._lanes.values())
