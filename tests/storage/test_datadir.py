import os
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil  # type: ignore[import-untyped] # it ships no types
import pytest

from gpuwatch.storage.datadir import DataDir, ServiceInfo, alive, read_token, write_whole
from gpuwatch.storage.errors import AlreadyServing, DataDirUnusable

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="modes and signals are POSIX")
INFO = ServiceInfo(
    pid=os.getpid(),
    name="svc",
    inference_url="http://127.0.0.1:8000",
    admin_url="http://127.0.0.1:8001",
    db="/d/telemetry.db",
    gpu="sim:8GiB",
    started_at=time.time(),
)
HOLDER = """
import sys
from pathlib import Path
from gpuwatch.storage.datadir import DataDir
from gpuwatch.storage.errors import AlreadyServing
sys.stdin.readline()
try:
    hold = DataDir(Path(sys.argv[1])).hold()
except AlreadyServing:
    print("refused", flush=True)
else:
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def home(tmp_path: Path) -> DataDir:
    made = DataDir(tmp_path / "deep" / "data")
    made.prepare()
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def holder(home: DataDir) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", HOLDER, str(home.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"STATE_DIRECTORY": "/var/lib/gpuwatch", "GPUWATCH_DATA_DIR": "/x"}, "/var/lib/gpuwatch"),
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a"),
        ({"STATE_DIRECTORY": "", "GPUWATCH_DATA_DIR": "/x"}, "/x"),
        ({"GPUWATCH_DATA_DIR": "/x"}, "/x"),
    ],
)
def test_systemds_directory_comes_before_ours(environ: dict[str, str], path: str) -> None:
    assert DataDir.default(environ).path == Path(path)


def test_without_any_word_the_users_data_directory_is_taken() -> None:
    path = DataDir.default({}).path
    assert path.is_absolute()
    assert "gpuwatch" in path.name


def test_each_file_has_the_name_that_others_rely_on(home: DataDir) -> None:
    files = (home.database, home.journal, home.blackbox, home.service_file, home.admin_token, home.read_token)
    assert [file.name for file in files] == [
        "telemetry.db",
        "knobs.journal",
        "blackbox.bin",
        "service.json",
        "admin.token",
        "read.token",
    ]
    assert {file.parent for file in files} == {home.path}


@POSIX
def test_the_directory_is_made_for_its_owner_alone_and_one_that_exists_keeps_its_mode(home: DataDir) -> None:
    assert mode(home.path) == 0o700
    home.path.chmod(0o750)
    home.prepare()
    assert mode(home.path) == 0o750
    assert list(home.path.iterdir()) == []


def test_a_place_that_cannot_be_a_directory_is_named_with_a_way_out(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        with pytest.raises(DataDirUnusable, match=r"file.*--data-dir"):
            DataDir(path).prepare()


@POSIX
def test_tokens_are_made_once_long_different_and_for_the_owner_alone(home: DataDir) -> None:
    tokens = home.tokens()
    assert home.tokens() == tokens
    assert tokens.admin != tokens.read
    assert min(len(tokens.admin), len(tokens.read)) >= 43
    assert read_token(home.admin_token) == tokens.admin
    assert {mode(home.admin_token), mode(home.read_token)} == {0o600}
    assert sorted(path.name for path in home.path.iterdir()) == ["admin.token", "read.token"]


def test_two_that_make_tokens_at_once_agree(home: DataDir) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert len({made.admin for made in threads.map(lambda _: home.tokens(), range(32))}) == 1


def test_an_empty_token_file_never_opens_anything(home: DataDir) -> None:
    home.admin_token.write_text("\n", encoding="ascii")
    assert read_token(home.admin_token) is None
    assert len(home.tokens().admin) >= 43


def test_a_token_that_no_header_can_carry_is_refused(home: DataDir) -> None:
    home.admin_token.write_bytes(b"\xff\xfe")
    with pytest.raises(DataDirUnusable, match="tokens"):
        home.tokens()


def test_tokens_are_not_shown_by_accident(home: DataDir) -> None:
    tokens = home.tokens()
    assert tokens.admin not in repr(tokens)
    assert tokens.read not in repr(tokens)


def test_a_second_service_is_refused_with_the_first_ones_pid(home: DataDir) -> None:
    with home.hold():
        with pytest.raises(AlreadyServing) as raised:
            home.hold()
        assert raised.value.pid == os.getpid()
        assert str(home.path) in str(raised.value)


def test_a_directory_let_go_can_be_held_again(home: DataDir) -> None:
    first = home.hold()
    first.release()
    with home.hold():
        first.release()
        with pytest.raises(AlreadyServing):
            home.hold()


def test_holding_where_there_is_no_directory_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(DataDirUnusable, match="gone"):
        DataDir(tmp_path / "gone").hold()


def test_of_several_that_race_for_a_directory_exactly_one_gets_it(home: DataDir) -> None:
    racers = [holder(home) for _ in range(4)]
    for racer in racers:
        say(racer)
    assert sorted(hear(racer) for racer in racers) == ["held", "refused", "refused", "refused"]
    for racer in racers:
        racer.communicate()


@POSIX
def test_kill_9_lets_the_directory_go(home: DataDir) -> None:
    first = holder(home)
    say(first)
    assert hear(first) == "held"
    with pytest.raises(AlreadyServing) as raised:
        home.hold()
    assert raised.value.pid == first.pid
    first.send_signal(signal.SIGKILL)
    first.communicate()
    with home.hold():
        pass


@POSIX
def test_a_dead_pid_left_in_the_lock_file_is_not_blamed(home: DataDir) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with home.hold():
        (home.path / "service.lock").write_text(str(gone.pid), encoding="ascii")
        with pytest.raises(AlreadyServing) as raised:
            home.hold()
    assert raised.value.pid is None


def test_a_service_is_found_where_it_announced_itself_until_it_withdraws(home: DataDir) -> None:
    assert home.service() is None
    home.announce(INFO)
    assert home.service() == INFO
    home.announce(replace(INFO, gpu="auto"))
    assert home.service() == replace(INFO, gpu="auto")
    home.withdraw()
    assert home.service() is None
    home.withdraw()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "\x00"])
def test_an_announcement_that_is_none_is_no_service(home: DataDir, text: str) -> None:
    home.service_file.write_text(text, encoding="utf-8")
    assert home.service() is None


def test_announcing_where_nothing_can_be_written_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(DataDirUnusable):
        DataDir(tmp_path / "gone").announce(INFO)


def test_a_process_that_runs_since_before_the_service_started_is_alive() -> None:
    assert alive(INFO)


def test_a_process_that_began_at_the_very_tick_of_the_start_is_alive() -> None:
    assert alive(replace(INFO, started_at=psutil.Process().create_time()))


def test_a_recycled_pid_is_not_trusted() -> None:
    assert not alive(replace(INFO, started_at=psutil.Process().create_time() - 60))


def test_a_dead_process_is_not_alive() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert not alive(replace(INFO, pid=gone.pid))


@POSIX
def test_a_killed_process_that_nobody_has_collected_yet_is_not_alive() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as zombie:
        started = replace(INFO, pid=zombie.pid, started_at=time.time())
        assert alive(started)
        zombie.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        assert not alive(started)


@pytest.mark.parametrize("pid", [-1, 0, 1 << 40])
def test_a_pid_that_none_can_be_is_not_alive(pid: int) -> None:
    assert not alive(replace(INFO, pid=pid, started_at=0.0))


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"one", mode=0o600)
    write_whole(path, b"two", mode=0o644)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "full" / "below").mkdir(parents=True)
    with pytest.raises(OSError, match="full"):
        write_whole(tmp_path / "full", b"x", mode=0o600)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]
