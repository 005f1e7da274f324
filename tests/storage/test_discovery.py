import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwatch.storage.datadir import DataDir, ServiceInfo
from gpuwatch.storage.discovery import (
    SYSTEM_RUN_DIR,
    Found,
    _may_name,
    announce,
    find,
    run_directories,
    withdraw,
)


def info(port: int, *, pid: int | None = None, started_at: float | None = None) -> ServiceInfo:
    return ServiceInfo(
        pid=os.getpid() if pid is None else pid,
        name=f"svc{port}",
        inference_url=f"http://127.0.0.1:{port - 1}",
        admin_url=f"http://127.0.0.1:{port}",
        db="telemetry.db",
        gpu="auto",
        started_at=time.time() if started_at is None else started_at,
    )


@pytest.fixture
def dead() -> int:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def serving(path: Path, service: ServiceInfo) -> DataDir:
    home = DataDir(path)
    home.prepare()
    home.tokens()
    home.announce(service)
    return home


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def environ(tmp_path: Path, run_dir: Path) -> dict[str, str]:
    return {"GPUWATCH_DATA_DIR": str(tmp_path / "default"), "GPUWATCH_RUN_DIR": str(run_dir)}


def test_where_nothing_runs_nothing_is_found(environ: dict[str, str], tmp_path: Path) -> None:
    assert find(environ=environ) is None
    assert find(data_dir=tmp_path / "gone", environ=environ) is None


def test_a_named_address_is_taken_as_it_is(environ: dict[str, str]) -> None:
    assert find("http://far:1", environ=environ) == Found(
        admin_url="http://far:1", token=None, info=None, where="--url"
    )


def test_a_named_address_of_a_service_here_comes_with_its_token(environ: dict[str, str], tmp_path: Path) -> None:
    home = serving(tmp_path / "default", info(8001))
    found = find("http://127.0.0.1:8001/", environ=environ)
    assert found is not None
    assert (found.admin_url, found.token, found.info) == (
        "http://127.0.0.1:8001/",
        home.tokens().admin,
        home.service(),
    )
    other = find("http://127.0.0.1:9999", environ=environ)
    assert other is not None
    assert other.token is None


def test_places_are_looked_at_in_their_order(environ: dict[str, str], tmp_path: Path, run_dir: Path) -> None:
    named = serving(tmp_path / "named", info(1))
    default = serving(tmp_path / "default", info(2))
    elsewhere = serving(tmp_path / "elsewhere", info(3))
    announce(info(3), elsewhere, (run_dir,))
    with_url = environ | {"GPUWATCH_ADMIN_URL": "http://far:9"}

    def port(found: Found | None) -> str:
        assert found is not None
        return found.admin_url.rsplit(":", 1)[1]

    assert port(find("http://far:8", named.path, environ=with_url)) == "8"
    assert port(find(data_dir=named.path, environ=with_url)) == "9"
    assert port(find(data_dir=named.path, environ=environ)) == "1"
    assert port(find(environ=environ)) == "2"
    default.withdraw()
    assert port(find(environ=environ)) == "3"


def test_a_named_data_directory_is_never_exchanged_for_another_service(environ: dict[str, str], tmp_path: Path) -> None:
    serving(tmp_path / "default", info(2))
    empty = DataDir(tmp_path / "named")
    empty.prepare()
    assert find(data_dir=empty.path, environ=environ) is None


def test_a_dead_service_is_passed_over(environ: dict[str, str], tmp_path: Path, run_dir: Path, dead: int) -> None:
    stale = serving(tmp_path / "default", info(1, pid=dead))
    announce(info(1, pid=dead), stale, (run_dir,))
    assert find(environ=environ) is None
    living = serving(tmp_path / "elsewhere", info(2))
    announce(info(2), living, (run_dir,))
    found = find(environ=environ)
    assert found is not None
    assert found.admin_url.endswith(":2")


def test_the_youngest_of_several_in_a_run_directory_is_taken(
    environ: dict[str, str], tmp_path: Path, run_dir: Path
) -> None:
    now = time.time()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        for port, pid, started_at in ((1, os.getpid(), now + 60), (2, other.pid, now + 120)):
            service = info(port, pid=pid, started_at=started_at)
            announce(service, serving(tmp_path / str(port), service), (run_dir,))
        found = find(environ=environ)
        other.communicate(b"\n")
    assert found is not None
    assert found.admin_url.endswith(":2")


def test_an_announcement_leads_to_the_token_and_is_gone_when_withdrawn(
    environ: dict[str, str], tmp_path: Path, run_dir: Path
) -> None:
    home = serving(tmp_path / "elsewhere", info(3))
    path = announce(info(3), home, run_directories(environ))
    assert path is not None
    assert path.parent == run_dir
    assert "token" not in path.name
    assert home.tokens().admin not in path.read_text(encoding="utf-8")
    found = find(environ=environ)
    assert found is not None
    assert (found.token, found.where) == (home.tokens().admin, str(run_dir))
    withdraw(path)
    withdraw(path)
    withdraw(None)
    assert find(environ=environ) is None


def test_where_the_admin_token_is_not_there_the_read_token_is_given(environ: dict[str, str], tmp_path: Path) -> None:
    home = serving(tmp_path / "default", info(1))
    read = home.tokens().read
    home.admin_token.unlink()
    found = find(environ=environ)
    assert found is not None
    assert found.token == read
    home.read_token.unlink()
    found = find(environ=environ)
    assert found is not None
    assert found.token is None


def test_the_first_run_directory_that_takes_it_is_used_and_none_is_no_error(tmp_path: Path) -> None:
    home = serving(tmp_path / "home", info(1))
    file = tmp_path / "file"
    file.touch()
    assert announce(info(1), home, (file / "no", tmp_path / "yes", tmp_path / "later")) == (
        tmp_path / "yes" / f"{os.getpid()}.json"
    )
    assert not (tmp_path / "later").exists()
    assert announce(info(1), home, (file / "no",)) is None
    assert announce(info(1), home, ()) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"service": {}}', "null"])
def test_rubbish_in_a_run_directory_hides_nobody(
    environ: dict[str, str], tmp_path: Path, run_dir: Path, text: str
) -> None:
    announce(info(3), serving(tmp_path / "elsewhere", info(3)), (run_dir,))
    (run_dir / "0.json").write_text(text, encoding="utf-8")
    (run_dir / "1.json").mkdir()
    (run_dir / "gone.json").symlink_to(tmp_path / "nowhere")
    found = find(environ=environ)
    assert found is not None
    assert found.admin_url.endswith(":3")


@pytest.mark.skipif(sys.platform == "win32", reason="owners are POSIX")
def test_only_root_the_reader_or_the_tokens_owner_may_name_a_token(tmp_path: Path) -> None:
    mine = tmp_path / "admin.token"
    mine.touch()
    me = os.geteuid()
    stranger = me + 4321
    assert _may_name(0, mine)
    assert _may_name(me, mine)
    assert not _may_name(stranger, mine)
    assert not _may_name(stranger, tmp_path / "gone")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root may give files away")
def test_a_strangers_announcement_gets_no_token_but_an_owners_does(
    environ: dict[str, str], tmp_path: Path, run_dir: Path
) -> None:
    home = serving(tmp_path / "elsewhere", info(3))
    path = announce(info(3), home, (run_dir,))
    assert path is not None
    os.chown(path, 4321, 4321)
    found = find(environ=environ)
    assert found is not None
    assert found.token is None
    os.chown(home.admin_token, 4321, 4321)
    found = find(environ=environ)
    assert found is not None
    assert found.token == home.tokens().admin


def test_the_machines_run_directory_comes_first_and_the_environment_replaces_all(tmp_path: Path) -> None:
    assert run_directories({"GPUWATCH_RUN_DIR": str(tmp_path)}) == (tmp_path,)
    directories = run_directories({})
    assert directories[0] == SYSTEM_RUN_DIR
    assert all(directory.is_absolute() for directory in directories)


def test_run_directories_may_be_handed_in(environ: dict[str, str], tmp_path: Path) -> None:
    home = serving(tmp_path / "elsewhere", replace(info(3), name="in-mine"))
    announce(info(3), home, (tmp_path / "mine",))
    assert find(environ=environ) is None
    assert find(environ=environ, run_dirs=(tmp_path / "mine",)) is not None
