"""`gpuwatch knobs`."""

import json
from pathlib import Path

import pytest
from cli_fakes import CHANGE, FakeAdmin, serving
from fastapi.responses import JSONResponse
from typer.testing import CliRunner, Result

from gpuwatch.cli.main import app
from gpuwatch.storage.knobs import Knobs

RUNNER = CliRunner(env={"GPUWATCH_ADMIN_URL": None})


def knobs(admin: FakeAdmin, tmp_path: Path, *arguments: str) -> Result:
    with serving(admin, tmp_path):
        return RUNNER.invoke(app, ["knobs", *arguments, "--data-dir", str(tmp_path)])


def test_sizes_and_durations_are_typed_by_the_services_own_table(tmp_path: Path) -> None:
    admin = FakeAdmin()
    result = knobs(
        admin, tmp_path, "set", "budget.margin_bytes=512MiB", "lanes.image.queue_timeout_s=1m",
        "lanes.image.concurrency=6", "watermark.action=refuse", "--note", "busy",
    )  # fmt: skip
    assert result.exit_code == 0
    assert admin.patches == [
        {
            "changes": {
                "budget.margin_bytes": 512 << 20,
                "lanes.image.queue_timeout_s": 60.0,
                "lanes.image.concurrency": 6,
                "watermark.action": "refuse",
            },
            "note": "busy",
        }
    ]
    assert result.stdout.splitlines() == [
        "knobs v4",
        "  budget.margin_bytes          0 -> 512MiB",
        "  lanes.image.queue_timeout_s  10s -> 60s",
        "  lanes.image.concurrency      4 -> 6",
        "  watermark.action             queue -> refuse",
    ]


def test_the_change_names_who_made_it(tmp_path: Path) -> None:
    admin = FakeAdmin()
    knobs(admin, tmp_path, "set", "lanes.image.concurrency=2")
    assert all("@" in headers["x-gpuwatch-actor"] for headers in admin.headers)


def test_all_bad_keys_are_listed_and_nothing_is_sent(tmp_path: Path) -> None:
    admin = FakeAdmin()
    result = knobs(
        admin, tmp_path, "set", "lanes.image.concurrency=lots", "budget.margin_bytes=3 apples", "no.such=1",
        "watermark.high=0.9",
    )  # fmt: skip
    assert result.exit_code == 2
    assert admin.patches == []
    for words in ("nothing was changed", "'lots' is not a number; it takes 0 to 1024", "'3 apples' is not a size",
                  "no.such: there is no such knob"):  # fmt: skip
        assert words in result.stderr


def test_what_the_service_refuses_is_told_key_by_key(tmp_path: Path) -> None:
    problem = {"title": "no", "problems": {"watermark.low": "must be below watermark.high"}}
    refusal = JSONResponse(problem, status_code=422, media_type="application/problem+json")
    result = knobs(FakeAdmin(refusal=refusal), tmp_path, "set", "watermark.low=0.9")
    assert result.exit_code == 1
    assert "watermark.low: must be below watermark.high" in result.stderr


def test_warnings_go_to_stderr_and_the_change_stands(tmp_path: Path) -> None:
    result = knobs(FakeAdmin(warnings=["that is more than fits"]), tmp_path, "set", "lanes.image.concurrency=99")
    assert result.exit_code == 0
    assert "warning: that is more than fits" in result.stderr
    assert "warning" not in result.stdout


@pytest.mark.parametrize("text", ["lanes.image.concurrency", "=4"])
def test_what_is_no_key_and_value_is_wrong_usage(tmp_path: Path, text: str) -> None:
    assert knobs(FakeAdmin(), tmp_path, "set", text).exit_code == 2


def test_a_key_given_twice_is_wrong_usage(tmp_path: Path) -> None:
    admin = FakeAdmin()
    assert knobs(admin, tmp_path, "set", "watermark.high=0.9", "watermark.high=0.8").exit_code == 2
    assert admin.patches == []


def test_get_shows_value_origin_unit_and_range(tmp_path: Path) -> None:
    result = knobs(FakeAdmin(), tmp_path, "get", "watermark.high", "lanes.image.queue_timeout_s")
    head, first, second = result.stdout.splitlines()
    assert head.split()[:5] == ["knob", "value", "origin", "unit", "takes"]
    assert first.split()[:4] == ["watermark.high", "0.85", "override", "ratio"]
    assert "0.05 to 1" in first
    assert second.split()[:4] == ["lanes.image.queue_timeout_s", "10s", "default", "s"]


def test_get_without_keys_shows_every_knob(tmp_path: Path) -> None:
    result = knobs(FakeAdmin(), tmp_path, "get")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(Knobs.defaults(("image",)).values)


def test_get_json_holds_the_keys_asked_for_in_the_services_shape(tmp_path: Path) -> None:
    result = knobs(FakeAdmin(), tmp_path, "get", "watermark.high", "--json")
    data = json.loads(result.stdout)
    assert data["version"] == 3
    assert data["knobs"] == {"watermark.high": 0.85}
    assert data["origin"] == {"watermark.high": "override"}
    assert set(data["spec"]) == {"watermark.high"}


def test_an_unknown_key_is_wrong_usage(tmp_path: Path) -> None:
    result = knobs(FakeAdmin(), tmp_path, "get", "watermark.hihg")
    assert result.exit_code == 2
    assert "watermark.hihg" in result.stderr


def test_history_shows_who_when_what_and_why(tmp_path: Path) -> None:
    result = knobs(FakeAdmin(history=[CHANGE]), tmp_path, "history")
    line = result.stdout.splitlines()[1]
    assert line.startswith("v3 ")
    assert "ann@box" in line
    assert "lanes.image.concurrency 6 -> 4" in line
    assert line.endswith("calmer")


def test_history_json_is_the_services_shape(tmp_path: Path) -> None:
    data = json.loads(knobs(FakeAdmin(history=[CHANGE]), tmp_path, "history", "--json").stdout)
    assert [change["version"] for change in data["changes"]] == [3]
