import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_strategies import of

from gpuwatch.storage.errors import JournalUnwritable
from gpuwatch.storage.journal import Journal, Replay, overrides
from gpuwatch.storage.records import KnobChange, KnobValue


def change(
    version: int, key: str = "lanes.image.concurrency", before: KnobValue = 4, after: KnobValue = 2
) -> KnobChange:
    return KnobChange(
        version=version, at=float(version), actor="me", note="why: ünsicher\n", changes={key: (before, after)}
    )


CHANGES = tuple(change(version) for version in (1, 2, 3))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "knobs.journal"


@pytest.fixture
def whole(path: Path) -> bytes:
    journal = Journal(path)
    for made in CHANGES:
        journal.append(made)
    return path.read_bytes()


def test_no_journal_is_an_empty_one(path: Path) -> None:
    assert Journal(path).read() == Replay(changes=())
    assert not path.exists()


@settings(max_examples=50)
@given(change=of(KnobChange))
def test_every_change_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, change: KnobChange) -> None:
    path = tmp_path_factory.mktemp("journal") / "knobs.journal"
    Journal(path).append(change)
    assert Journal(path).replay() == (change,)


def test_a_change_is_one_line_of_json(whole: bytes) -> None:
    lines = whole.decode().splitlines()
    assert [json.loads(line)["change"]["version"] for line in lines] == [1, 2, 3]


def test_a_journal_torn_at_any_byte_replays_every_whole_line_before_it(path: Path, whole: bytes) -> None:
    for torn_at in range(len(whole) + 1):
        path.write_bytes(whole[:torn_at])
        before = whole[:torn_at].count(b"\n")
        rest = not whole[:torn_at].endswith(b"\n") and torn_at > 0
        assert Journal(path).read() == Replay(changes=CHANGES[:before], torn=int(rest)), torn_at


def test_what_was_torn_is_never_trusted_later_and_the_next_change_has_a_line_of_its_own(
    path: Path, whole: bytes
) -> None:
    for torn_at in range(1, len(whole)):
        path.write_bytes(whole[:torn_at])
        before = whole[:torn_at].count(b"\n")
        Journal(path).append(change(9))
        found = Journal(path).read()
        assert found.changes == (*CHANGES[:before], change(9)), torn_at
        assert found.torn == 0
        assert found.skipped == (() if whole[:torn_at].endswith(b"\n") else (before + 1,))


def test_a_flipped_bit_costs_its_own_line_only(path: Path, whole: bytes) -> None:
    start = whole.index(b"\n") + 1
    end = whole.index(b"\n", start)
    for place in range(start, end):
        for bit in (0x01, 0x20):
            flipped = bytearray(whole)
            flipped[place] ^= bit
            path.write_bytes(flipped)
            found = Journal(path).read()
            assert found.changes[0] == CHANGES[0]
            assert found.changes[-1] == CHANGES[2]
            assert CHANGES[1] not in found.changes or flipped[start:end] == whole[start:end]
            assert found.skipped


@pytest.mark.parametrize(
    "foreign", [b"", b"# a note by hand", b"{}", b"null", b"\xff\xfe", b'{"crc32":"00000000","change":{}}']
)
def test_a_foreign_line_in_the_middle_is_passed_over_and_reported(path: Path, whole: bytes, foreign: bytes) -> None:
    first, rest = whole.split(b"\n", 1)
    path.write_bytes(first + b"\n" + foreign + b"\n" + rest)
    assert Journal(path).read() == Replay(changes=CHANGES, skipped=(2,))


@given(st.binary(max_size=300))
def test_no_bytes_at_all_make_a_change_or_an_error(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("journal") / "knobs.journal"
    path.write_bytes(junk)
    assert Journal(path).replay() == ()


def test_the_journal_is_the_owners_alone(path: Path, whole: bytes) -> None:
    assert whole
    assert path.stat().st_mode & 0o777 == 0o600


def test_where_nothing_can_be_written_the_change_must_not_take_effect(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone" / "knobs.journal"):
        with pytest.raises(JournalUnwritable, match=str(path)):
            Journal(path).append(change(1))
    with pytest.raises(JournalUnwritable):
        Journal(tmp_path).replay()


FULL = """
import resource, sys
from gpuwatch.storage.errors import JournalUnwritable
from gpuwatch.storage.journal import Journal
from gpuwatch.storage.records import KnobChange
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    Journal(sys.argv[1]).append(KnobChange(version=9, at=1.0, actor="me", changes={}))
except JournalUnwritable:
    sys.exit(7)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_full_disk_leaves_the_journal_as_it_was(path: Path, whole: bytes) -> None:
    code = subprocess.run(  # noqa: S603 - our own interpreter and text
        [sys.executable, "-c", FULL, str(path), str(len(whole) + 10)], check=False
    ).returncode
    assert code == 7
    assert path.read_bytes() == whole
    Journal(path).append(change(4))
    assert Journal(path).replay() == (*CHANGES, change(4))


def test_the_last_value_of_every_key_wins() -> None:
    turned = (
        change(1, "a", 1, 2),
        change(2, "b", 0.5, 0.6),
        change(3, "a", 2, 3),
        change(4, "c", "queue", "refuse"),
        change(5, "c", "refuse", "queue"),
    )
    assert overrides(turned) == {"a": 3, "b": 0.6, "c": "queue"}
    assert overrides(()) == {}
