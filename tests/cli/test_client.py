"""Reaching a service, and what is said when it cannot be reached."""

from pathlib import Path

import httpx
import pytest
from cli_fakes import FakeAdmin, serving
from typer.testing import CliRunner

from gpuwatch.cli.client import Admin, actor, find_service, reach
from gpuwatch.cli.errors import CommandFailed, NotReachable, WrongUsage
from gpuwatch.cli.main import app

RUNNER = CliRunner(env={"GPUWATCH_ADMIN_URL": None})


def admin(answer: httpx.Response, token: str | None = "t") -> Admin:  # noqa: S107 - no secret
    return Admin("http://service:8001/", token, transport=httpx.MockTransport(lambda _: answer))


def test_the_token_goes_as_a_bearer_and_the_actor_beside_it() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    with Admin("http://service:8001", "t", transport=httpx.MockTransport(answer)) as there:
        there.get("/state")
    assert str(seen[0].url) == "http://service:8001/admin/state"
    assert seen[0].headers["authorization"] == "Bearer t"
    assert seen[0].headers["x-gpuwatch-actor"] == actor()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.Response(401), "the token is not the service's"),
        (httpx.Response(403, json={"detail": "read.token may only look"}), "read.token may only look"),
        (httpx.Response(404, text="<html>"), "is it the admin address?"),
        (httpx.Response(500, json=[1]), "answers 500"),
        (httpx.Response(200, text="hello"), "does not speak as gpuwatch does"),
    ],
)
def test_every_refusal_is_one_plain_line(answer: httpx.Response, said: str) -> None:
    with admin(answer) as there, pytest.raises(CommandFailed, match=said) as failed:
        there.get("/state")
    assert failed.value.status == 1


def test_without_a_token_the_refusal_says_how_to_give_one() -> None:
    with admin(httpx.Response(401), token=None) as there, pytest.raises(CommandFailed, match="--token-file"):
        there.get("/state")


def test_a_connection_that_fails_is_not_reachable() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("connection refused", request=request)

    there = Admin("http://service:8001", None, transport=httpx.MockTransport(refuse))
    with there, pytest.raises(NotReachable, match="no service answers at http://service:8001"):
        there.get("/state")


@pytest.mark.parametrize("url", ["localhost:8001", "ftp://box", "http://", "http://[", "http://box:99999", ""])
def test_an_address_that_is_none_is_wrong_usage(url: str) -> None:
    with pytest.raises(WrongUsage, match="is no address; write it like"):
        Admin(url, None)


def test_an_address_nobody_listens_on_is_status_3() -> None:
    result = RUNNER.invoke(app, ["status", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 3


def test_a_named_directory_without_a_service_is_not_reachable(tmp_path: Path) -> None:
    with pytest.raises(NotReachable, match=str(tmp_path)):
        reach(None, None, tmp_path)


def test_a_token_file_wins_over_the_token_found(tmp_path: Path) -> None:
    token = tmp_path / "mine"
    token.write_text("mine\n")
    with serving(FakeAdmin(), tmp_path / "data"):
        found = find_service(None, token, tmp_path / "data")
        found_without = find_service(None, None, tmp_path / "data")
    assert found is not None
    assert found_without is not None
    assert (found.token, found_without.token) == ("mine", "secret")


def test_a_token_file_that_is_missing_is_wrong_usage(tmp_path: Path) -> None:
    with serving(FakeAdmin(), tmp_path), pytest.raises(WrongUsage, match="no token in it"):
        find_service(None, tmp_path / "none", tmp_path)


def test_a_wrong_token_is_status_1_and_says_so(tmp_path: Path) -> None:
    token = tmp_path / "mine"
    token.write_text("wrong\n")
    with serving(FakeAdmin(), tmp_path / "data"):
        result = RUNNER.invoke(app, ["status", "--data-dir", str(tmp_path / "data"), "--token-file", str(token)])
    assert result.exit_code == 1
    assert "the token is not the service's" in result.stderr


def test_the_database_of_a_named_directory_is_that_directorys(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["requests", "list", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert f"there is no database at {tmp_path / 'telemetry.db'}" in result.stderr
