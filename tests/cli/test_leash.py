"""A child on a leash ends when whoever holds the other end does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from gpuwatch.cli.leash import GRACE_S, watch

WAITING = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("ended", flush=True), sys.exit(0)))
print("ready", *sys.argv[1:], flush=True)
while True:
    signal.pause()
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "gpuwatch.cli.leash", "waiting", "for", "it"], stdin=subprocess.PIPE)
sys.stdin.read()
"""


def test_the_module_runs_with_its_arguments_and_gets_sigterm_when_its_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    parent = subprocess.Popen(  # noqa: S603 - our own text
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        text=True,
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    with parent.stdout, parent.stdin:
        assert parent.stdout.readline() == "ready for it\n"
        parent.kill()
        parent.wait()
        assert parent.stdout.read() == "ended\n"


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    read_end, write_end = os.pipe()
    told: list[float] = []
    os.write(write_end, b"still here")
    os.close(write_end)
    watch(read_end, end=told.append, sleep=told.append)
    os.close(read_end)
    assert told == [signal.SIGTERM, GRACE_S, signal.SIGKILL]
