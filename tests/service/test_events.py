"""An event is stored, logged and told, with an id that grows."""

import logging

import pytest

from gpuwatch.service.events import KEEP, Events
from gpuwatch.storage.records import Event, Severity


def test_each_event_goes_everywhere_once(caplog: pytest.LogCaptureFixture) -> None:
    stored: list[Event] = []
    told: list[Event] = []
    events = Events(run_id=2, first_id=8, wall=lambda: 4.5, put=stored.append, tell=told.append)
    with caplog.at_level(logging.INFO):
        first = events.happened("kind", "100 % of [0] {x}", data={"a": 1})
        second = events.happened("kind", "two", severity=Severity.ERROR)
    assert stored == told == [first, second]
    assert first == Event(
        id=8, at=4.5, run_id=2, kind="kind", severity=Severity.INFO, message="100 % of [0] {x}", data={"a": 1}
    )
    assert second.id == 9
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.INFO, "kind: 100 % of [0] {x}"),
        (logging.ERROR, "kind: two"),
    ]


def test_only_the_newest_are_kept_at_hand() -> None:
    events = Events(run_id=1, first_id=1, wall=lambda: 0.0, put=lambda _event: None, tell=lambda _event: None)
    for number in range(KEEP + 5):
        events.happened("kind", str(number))
    assert [event.id for event in events.recent] == list(range(6, KEEP + 6))
