"""The demo's stage with a console in front: a console that is left by itself, and one that breaks."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped] # it ships no types
import pytest

from gpuwatch.cli.client import Admin
from gpuwatch.cli.errors import CommandFailed
from gpuwatch.cli.play import play_on
from gpuwatch.cli.stage import Stage
from gpuwatch.storage.discovery import Found


def stage(data_dir: Path, said: list[str], console: Callable[[Found], object], gpu: str = "sim:640MiB") -> Stage:
    return Stage(
        play_on(gpu, has_cuda=lambda: False),
        data_dir=data_dir,
        port=0,
        admin_port=0,
        environment=os.environ,
        say=said.append,
        console=console,
    )


def until_answered(found: Found) -> None:
    """A console that is left after the first answer."""
    with Admin(found.admin_url, found.token) as admin:
        while not any(lane["outcomes"].get("ok") for lane in admin.get("/state")["lanes"]):
            time.sleep(0.05)


def test_a_demo_goes_on_until_the_console_is_left_and_then_settles_the_account(tmp_path: Path) -> None:
    said: list[str] = []
    assert stage(tmp_path, said, until_answered).run(seconds=None, screen=True) == 0
    assert "equal, request by request" in "\n".join(said)


def test_a_console_that_breaks_takes_the_children_with_it(tmp_path: Path) -> None:
    def broken(found: Found) -> None:
        raise RuntimeError(found.admin_url)

    with pytest.raises(RuntimeError):
        stage(tmp_path, [], broken).run(seconds=None, screen=True)
    assert psutil.Process().children(recursive=True) == []


def test_a_service_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="holds no model"):
        stage(tmp_path, [], until_answered, gpu="sim:1MiB").run(seconds=1, screen=False)
