"""The demo from one end to the other: real network, simulated card, scripted neighbour, an account that agrees."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped] # it ships no types
import pytest

from gpuwatch.storage.datadir import DataDir
from gpuwatch.storage.reader import Reader
from gpuwatch.storage.records import Outcome

DEMO = [sys.executable, "-m", "gpuwatch.cli", "demo", "--headless"]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
    data_dir = tmp_path_factory.mktemp("demo")
    done = subprocess.run(  # noqa: S603 - ours
        [*DEMO, "--seconds", "8", "--data-dir", str(data_dir)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=180,
    )
    return data_dir, done


Played = tuple[Path, "subprocess.CompletedProcess[str]"]


def test_what_the_client_saw_is_what_the_database_holds(played: Played) -> None:
    data_dir, done = played
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal, request by request" in done.stdout
    seen = json.loads((data_dir / "traffic.json").read_bytes())
    reader = Reader(DataDir(data_dir).database)
    stored = {r.request_id: r.outcome.value for r in reader.requests(limit=10_000)}
    assert stored == seen["by_id"]
    assert seen["outcomes"]["ok"] > 0


def test_answers_are_priced_and_measured(played: Played) -> None:
    answered = Reader(DataDir(played[0]).database).requests(outcome=Outcome.OK, limit=10_000)
    assert answered
    assert all(r.price_bytes is not None and r.peak_bytes is not None for r in answered)
    assert all(
        r.peak_bytes <= r.price_bytes for r in answered if r.peak_bytes is not None and r.price_bytes is not None
    )


def test_a_line_is_printed_each_second_and_the_card_is_called_simulated(played: Played) -> None:
    lines = re.findall(r"^ *\d+ s  in flight.*SIMULATED.*$", played[1].stdout, re.MULTILINE)
    assert len(lines) >= 4


def test_the_summary_names_peak_neighbour_and_where_the_database_lies(played: Played) -> None:
    data_dir, done = played
    for words in ("peak VRAM", "SCRIPTED", "p50", str(DataDir(data_dir).database)):
        assert words in done.stdout


def test_nothing_of_the_demo_is_left_running(played: Played) -> None:
    assert descendants_on(played[0]) == []
    assert DataDir(played[0]).service() is None


def descendants_on(data_dir: Path) -> list[psutil.Process]:
    """Give the living processes that were started on ``data_dir``."""
    return [p for p in psutil.process_iter(["cmdline"]) if str(data_dir) in " ".join(p.info["cmdline"] or ())]


def test_a_demo_that_is_killed_leaves_no_children(tmp_path: Path) -> None:
    demo = subprocess.Popen(  # noqa: S603 - ours
        [*DEMO, "--seconds", "60", "--data-dir", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    with demo.stdout:
        while not demo.stdout.readline().lstrip().startswith("2 s"):
            assert demo.poll() is None
        children = psutil.Process(demo.pid).children(recursive=True)
        demo.kill()
        demo.wait()
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert len(gone) == 2
    assert alive == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_gets_a_signal_ends_its_children(tmp_path: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(  # noqa: S603 - ours
        [*DEMO, "--seconds", "60", "--data-dir", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert demo.stdout is not None
    with demo.stdout:
        while not demo.stdout.readline().lstrip().startswith("3 s"):
            assert demo.poll() is None
        demo.send_signal(number)
        said = demo.stdout.read()
        status = demo.wait()
    assert descendants_on(tmp_path) == []
    if number is signal.SIGINT:
        assert status == 0
        assert "equal, request by request" in said
    else:
        assert status == 128 + number


def test_a_directory_on_which_another_service_runs_is_refused_with_its_pid(tmp_path: Path) -> None:
    with DataDir(tmp_path).hold():
        done = subprocess.run(  # noqa: S603 - ours
            [*DEMO, "--seconds", "2", "--data-dir", str(tmp_path)],
            stdin=subprocess.DEVNULL, capture_output=True, check=False, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"a service already runs on {tmp_path} (pid {os.getpid()})" in done.stderr


def test_a_card_that_cannot_be_meant_is_wrong_usage() -> None:
    done = subprocess.run([*DEMO, "--gpu", "sim:big"], capture_output=True, check=False, text=True, timeout=60)  # noqa: S603 - ours
    assert done.returncode == 2
    assert "is not a size" in done.stderr
