"""`gpuwatch doctor`."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from gpuwatch.cli.main import app

CLEAN = dict.fromkeys(("WEB_CONCURRENCY", "UVICORN_WORKERS", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))


def doctor(data_dir: Path, *arguments: str, **environment: str) -> Result:
    return CliRunner(env={**CLEAN, **environment}).invoke(app, ["doctor", "--data-dir", str(data_dir), *arguments])


def test_a_problem_is_status_1_with_its_remedy(tmp_path: Path) -> None:
    result = doctor(tmp_path, PYTORCH_ALLOC_CONF="expandable_segments:True,max_split_size_mb:64")
    assert result.exit_code == 1
    line, remedy = next(
        pair
        for pair in zip(result.stdout.splitlines(), result.stdout.splitlines()[1:], strict=False)
        if "allocator" in pair[0]
    )
    assert line.startswith("problem")
    assert remedy.strip().startswith("-> ")


def test_a_warning_is_no_failure_by_itself(tmp_path: Path) -> None:
    before, after = doctor(tmp_path, "--json"), doctor(tmp_path, "--json", WEB_CONCURRENCY="4")
    assert before.exit_code == after.exit_code
    (found,) = (f for f in json.loads(after.stdout)["findings"] if f["check"] == "workers")
    assert found["level"] == "warning"


def test_json_holds_each_finding_with_level_and_remedy(tmp_path: Path) -> None:
    data = json.loads(doctor(tmp_path, "--json").stdout)
    assert {"check", "level", "text", "remedy"} == set(data["findings"][0])
    assert data["worst"] in {"ok", "note", "warning", "problem"}


def test_looking_leaves_nothing_behind(tmp_path: Path) -> None:
    doctor(tmp_path / "data")
    assert list(tmp_path.iterdir()) == []
