"""Exactly one record a request, and the orphan's true end beside it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.service.requests import AlreadyEnded, Requests
from gpuwatch.storage.records import Outcome, RequestRecord


class Book:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.rows: list[RequestRecord] = []
        self.told: list[RequestRecord] = []
        self.requests = Requests(
            run_id=3,
            first_seq=11,
            clock=lambda: self.now_s,
            wall=lambda: 1e9 + self.now_s,
            put=self.rows.append,
            tell=self.told.append,
            lanes=["default", "image"],
        )


def test_a_record_has_its_times_and_its_number() -> None:
    book = Book()
    entry = book.requests.open(request_id="a", lane="image", model="m", version="2", traceparent="t")
    book.now_s = 101.0
    entry.asked_s = 101.0
    book.now_s = 103.5
    record = book.requests.end(entry, Outcome.QUEUE_TIMEOUT, 503)
    assert book.rows == book.told == [record]
    assert (record.seq, record.run_id, record.at) == (11, 3, 1e9 + 100)
    assert (record.queue_ms, record.run_ms, record.total_ms) == (2500.0, None, 3500.0)
    assert (record.model_version, record.traceparent) == ("2", "t")
    assert book.requests.open(request_id="a", lane="image", model="m").seq == 12


def test_a_second_outcome_is_an_error_and_changes_nothing() -> None:
    book = Book()
    entry = book.requests.open(request_id="a", lane="image", model="m")
    record = book.requests.end(entry, Outcome.OK, 200)
    with pytest.raises(AlreadyEnded):
        book.requests.end(entry, Outcome.CLIENT_GONE, 499)
    assert entry.record is record
    assert book.rows == [record]
    assert book.requests.facts()["image"].outcomes == {"ok": 1}


def test_an_amended_row_keeps_what_the_client_met_and_is_told_to_nobody_again() -> None:
    book = Book()
    entry = book.requests.open(request_id="a", lane="image", model="m")
    with pytest.raises(AlreadyEnded):
        book.requests.amend(entry)
    early = book.requests.end(entry, Outcome.RUN_TIMEOUT, 504)
    book.now_s += 50
    entry.run_ms, entry.peak_bytes, entry.peak_source = 9.0, 5, "sim"
    book.requests.amend(entry)
    late = book.rows[-1]
    assert (late.run_ms, late.peak_bytes, late.peak_source) == (9.0, 5, "sim")
    assert (late.seq, late.outcome, late.status, late.total_ms) == (early.seq, early.outcome, 504, early.total_ms)
    assert book.told == [early]


def test_what_holds_a_slot_is_listed_until_its_work_ends_whatever_its_client_met() -> None:
    book = Book()
    entry = book.requests.open(request_id="a", lane="image", model="m")
    book.requests.started(entry)
    book.requests.end(entry, Outcome.CLIENT_GONE, 499)
    assert book.requests.open_entries == ()
    assert book.requests.running_entries == (entry,)
    book.requests.stopped(entry)
    book.requests.stopped(entry)
    assert list(book.requests.running_entries) == []


def test_a_request_of_no_lane_is_recorded_and_in_no_window() -> None:
    book = Book()
    entry = book.requests.open(request_id="a", lane="", model="nothing")
    assert book.requests.end(entry, Outcome.UNKNOWN_MODEL, 404).lane == ""
    assert all(facts.outcomes == {} for facts in book.requests.facts().values())


def test_the_price_in_the_record_is_what_was_promised_where_something_was() -> None:
    book = Book()
    entry = book.requests.open(request_id="a", lane="image", model="m")
    entry.price_bytes = 5
    entry.promised_bytes = 8
    record = book.requests.end(entry, Outcome.OK, 200)
    assert (record.tag_bytes, record.price_bytes) == (5, 8)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["start", "end", "stop", "amend"])), max_size=60))
def test_in_any_order_there_is_one_outcome_each(steps: list[tuple[int, str]]) -> None:
    book = Book()
    entries = [book.requests.open(request_id=str(number), lane="image", model="m") for number in range(10)]
    ended: set[int] = set()
    doings: dict[str, Callable[[int], object]] = {
        "start": lambda n: book.requests.started(entries[n]),
        "end": lambda n: book.requests.end(entries[n], Outcome.OK, 200),
        "stop": lambda n: book.requests.stopped(entries[n]),
        "amend": lambda n: book.requests.amend(entries[n]),
    }
    for number, step in steps:
        forbidden = (step == "end" and number in ended) or (step == "amend" and number not in ended)
        if forbidden:
            with pytest.raises(AlreadyEnded):
                doings[step](number)
        else:
            doings[step](number)
        if step == "end":
            ended.add(number)
    assert {entry.seq for entry in book.requests.open_entries} == {
        e.seq for n, e in enumerate(entries) if n not in ended
    }
    assert len(book.told) == len(ended)
    assert book.requests.facts()["image"].ok == len(ended)
