"""`gpuwatch serve`: what cannot be started says why. A service that runs is the demo's test."""

import subprocess
import sys
from pathlib import Path

SERVE = [sys.executable, "-m", "gpuwatch.cli", "serve"]
PORTS = ["--port", "0", "--admin-port", "0"]


def serve(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*SERVE, *arguments], cwd=cwd, capture_output=True, check=False, text=True, timeout=120)  # noqa: S603 - ours


def test_a_setting_that_cannot_be_meant_is_wrong_usage(tmp_path: Path) -> None:
    (tmp_path / "gpuwatch.toml").write_text("[sim]\nneighbour_bytes = 'many'\n")
    done = serve("builtin:detector", cwd=tmp_path)
    assert done.returncode == 2
    assert "'many' is not a size" in done.stderr


def test_a_target_that_does_not_exist_fails_and_says_what_does(tmp_path: Path) -> None:
    done = serve("builtin:nonsense", "--gpu", "sim:64MiB", *PORTS, "--data-dir", str(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "builtin:detector" in done.stderr
