"""Who may use the admin listener, and by which name."""

from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_rigs import listening, service

from gpuwatch.service.http.admin import admin_app
from gpuwatch.service.http.auth import host_name, is_loopback

PATHS = ["/admin/state", "/admin/knobs", "/admin/requests", "/admin/openapi.json", "/admin/nothing", "/admin"]


def client(one_app: object, token: str | None = None, **headers: str) -> httpx.AsyncClient:
    given = {"Authorization": f"Bearer {token}"} if token is not None else {}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(one_app),  # type: ignore[arg-type]  # any ASGI app
        base_url="http://127.0.0.1:8001",
        headers=given | headers,
    )


@pytest.mark.anyio
async def test_without_the_right_token_nothing_below_admin_answers(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        app = admin_app(one.runtime)
        right = one.runtime.tokens.admin
        for header in (
            "",
            "Bearer",
            "Bearer ",
            "Bearer wrong",
            f"Basic {right}",
            right,
            f"Bearer {right}x",
            "Bearer é",
        ):
            async with client(app) as stranger:
                stranger.headers.pop("Authorization", None)
                for path in PATHS:
                    answer = await stranger.get(path, headers={b"Authorization": header.encode()})
                    assert answer.status_code == 401, (header, path)
                    assert answer.headers["www-authenticate"] == "Bearer"
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert right not in answer.text
        async with client(app, right) as operator:
            assert (await operator.get("/admin/state")).status_code == 200
            assert (await operator.get("/admin/nothing")).status_code == 404
            assert (await operator.get("/elsewhere")).status_code == 404


@pytest.mark.anyio
async def test_the_read_token_may_only_look(tmp_path: Path) -> None:
    async with service(tmp_path) as one, client(admin_app(one.runtime), one.runtime.tokens.read) as reader:
        assert (await reader.get("/admin/knobs")).status_code == 200
        answer = await reader.patch("/admin/knobs", json={"changes": {"lanes.default.concurrency": 9}})
        assert answer.status_code == 403
        assert one.runtime.desk.version == 0
        assert (await reader.post("/admin/drain")).status_code == 403


@pytest.mark.anyio
async def test_a_name_that_is_not_ours_is_misdirected(tmp_path: Path) -> None:
    async with service(tmp_path, admin={"allowed_hosts": ("GPU-Box.lan",)}) as one:
        app, token = admin_app(one.runtime), one.runtime.tokens.admin
        expected = {
            "127.0.0.1": 200,
            "127.0.0.1:8001": 200,
            "127.8.9.1": 200,
            "localhost:8001": 200,
            "LOCALHOST": 200,
            "[::1]:8001": 200,
            "[::1]": 200,
            "gpu-box.lan:8001": 200,
            "evil.example": 421,
            "evil.example:8001": 421,
            "127.0.0.1.evil.example": 421,
            "localhost.evil.example": 421,
            "10.0.0.5": 421,
            "[2001:db8::1]:8001": 421,
            "evil.example@127.0.0.1": 421,
            "localhost:80?": 421,
            "localhost/admin": 421,
            "localhost:x": 421,
            "": 421,
        }
        for host, status in expected.items():
            async with client(app, token, Host=host) as one_client:
                assert (await one_client.get("/admin/state")).status_code == status, host
                assert (await one_client.get("/nothing")).status_code == (404 if status == 200 else 421), host


@pytest.mark.anyio
async def test_no_host_bends_the_path_past_the_token(tmp_path: Path) -> None:
    async with (
        service(tmp_path) as one,
        listening(admin_app(one.runtime)) as (name, port),
        httpx.AsyncClient(base_url=f"http://{name}:{port}") as stranger,
    ):
        for host in ("localhost:80?", "localhost:80#", "localhost:80/x", "localhost:80\\", "[::1]/x", "localhost"):
            answer = await stranger.get("/admin/knobs", headers={"Host": host})
            assert answer.status_code in {400, 401, 421}, host


@given(st.ip_addresses(v=4), st.integers(0, 65535))
def test_an_address_is_loopback_with_and_without_its_port(address: object, port: int) -> None:
    ours = str(address).startswith("127.")
    assert is_loopback(host_name(str(address))) == ours
    assert is_loopback(host_name(f"{address}:{port}")) == ours
