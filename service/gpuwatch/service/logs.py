"""Logging: every record goes through a queue to one thread, so that no request waits for a terminal."""

import logging
import logging.handlers
import queue
from typing import Final

FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def start(level: str) -> logging.handlers.QueueListener:
    """Send all logging to stderr by way of a queue; stop the listener at the end. Raises `ValueError`: bad level."""
    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    root = logging.getLogger()
    root.setLevel(level.upper())
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(logging.handlers.QueueHandler(lines))
    out = logging.StreamHandler()
    out.setFormatter(logging.Formatter(FORMAT))
    # uvicorn's and httpx's own lines at info are one a request: the records hold those already.
    for noisy in ("uvicorn.access", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    listener = logging.handlers.QueueListener(lines, out, respect_handler_level=True)
    listener.start()
    return listener
