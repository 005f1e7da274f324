"""Children of the demo."""

import os
from pathlib import Path

import psutil  # type: ignore[import-untyped] # it ships no types
import pytest

from gpuwatch.cli.children import Child

WAITING = """
import signal, sys
print("started", *sys.argv[1:], file=sys.stderr, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
open("ready", "w").close()
while True:
    signal.pause()
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("ready", "w").close()
while True:
    time.sleep(60)
"""


def child(folder: Path, source: str, *arguments: str, grace_s: float = 30.0) -> Child:
    (folder / "played.py").write_text(source)
    started = Child(
        "played",
        arguments,
        output=folder / "out",
        errors=folder / "err",
        environment={**os.environ, "PYTHONPATH": str(folder)},
        folder=folder,
        grace_s=grace_s,
    )
    while not (folder / "ready").exists() and started.wait(0.02) is None:
        pass
    return started


def test_a_child_is_asked_to_end_and_its_status_told(tmp_path: Path) -> None:
    started = child(tmp_path, WAITING, "one", "two")
    assert started.status is None
    assert started.end() == 7
    assert started.last_words() == "started one two"
    assert started.end() == 7


def test_leaving_the_block_ends_the_child_whatever_was_raised(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), child(tmp_path, WAITING) as started:
        raise KeyboardInterrupt
    assert not psutil.pid_exists(started.pid)


def test_a_child_that_will_not_end_is_killed(tmp_path: Path) -> None:
    started = child(tmp_path, STUBBORN, grace_s=0.0)
    assert started.end() == -9
    assert not psutil.pid_exists(started.pid)


def test_a_child_that_has_ended_by_itself_keeps_its_status(tmp_path: Path) -> None:
    started = child(tmp_path, "raise SystemExit(3)")
    assert started.wait(30.0) == 3
    assert started.end() == 3


def test_a_child_has_a_session_of_its_own_so_that_ctrl_c_reaches_only_the_parent(tmp_path: Path) -> None:
    with child(tmp_path, WAITING) as started:
        assert os.getsid(started.pid) == started.pid
