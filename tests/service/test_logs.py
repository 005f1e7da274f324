"""Logging goes through a queue: nobody who logs waits for the terminal."""

import logging
import logging.handlers
from collections.abc import Iterator

import pytest

from gpuwatch.service import logs


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_lines_come_out_in_order_on_stderr_from_the_level_on(capfd: pytest.CaptureFixture[str]) -> None:
    listener = logs.start("info")
    log = logging.getLogger("somewhere")
    log.debug("too quiet")
    for number in range(100):
        log.info("line %d of 100 %%", number)
    logging.getLogger("httpx").info("one a request")
    listener.stop()
    lines = capfd.readouterr().err.splitlines()
    assert [line.split("somewhere: ")[1] for line in lines] == [f"line {number} of 100 %" for number in range(100)]
    assert "INFO" in lines[0]


def test_only_the_queue_is_left_as_a_handler() -> None:
    listener = logs.start("warning")
    (handler,) = logging.getLogger().handlers
    assert isinstance(handler, logging.handlers.QueueHandler)
    listener.stop()
