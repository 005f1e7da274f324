"""Records as lines: lists and the page of a snapshot."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cli_fakes import MIB, NOW, PAYLOAD, RECORD, SNAPSHOT
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.cli.history import dims_text, request_table, snapshot_page, snapshot_table
from gpuwatch.cli.text import cells
from gpuwatch.storage.records import Cause, Outcome, Trigger
from gpuwatch.storage.state import SnapshotHead

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_the_page_says_who_what_was_asked_and_what_else_was_there() -> None:
    page = "\n".join(snapshot_page(SNAPSHOT))
    for words in (
        "SNAPSHOT #3  OUT-OF-MEMORY  GPU 0 SIMULATED", "knobs v2", "other-process (confidence 90 %)",
        "neighbour (scripted) +440M", "r-7 height=1800 width=1536", "38.0 MiB, 26.0 MiB free",
        "614 MiB of 640 MiB (96 %)", "440 MiB (+440 MiB in the last 60 s)", "133 MiB of 20.0 MiB",
        "IN FLIGHT  1, 133 MiB promised together", "400 ms", "61.0 MiB", "watermark.high", "lanes.image.concurrency",
    ):  # fmt: skip
        assert words in page


def test_the_minute_before_is_drawn_with_its_range() -> None:
    (line,) = (line for line in snapshot_page(SNAPSHOT) if line.lstrip().startswith("used ") and "▁▂▃"[2] in line)
    assert line.endswith("200 MiB to 592 MiB")


def test_a_figure_that_no_sample_knew_is_not_drawn() -> None:
    drawn = [line for line in snapshot_page(SNAPSHOT) if line.lstrip().startswith("others") and " to " in line]
    assert drawn == []


@given(st.dictionaries(st.sampled_from(sorted(PAYLOAD)), anything))
def test_a_payload_of_another_version_never_breaks_the_page(payload: Mapping[str, Any]) -> None:
    lines = snapshot_page(replace(SNAPSHOT, payload=payload))
    assert lines[0].startswith("SNAPSHOT #3")
    assert not any("\x1b" in line for line in lines)


def test_a_near_miss_has_no_victim_and_nothing_was_asked() -> None:
    near = replace(SNAPSHOT, trigger=Trigger.WATERMARK, request_id=None, requested_bytes=None)
    page = "\n".join(snapshot_page(near))
    assert "watermark near-miss" in page
    assert "VICTIM" not in page
    assert "ASKED" not in page


def test_lists_show_one_aligned_line_a_record() -> None:
    other = replace(RECORD, request_id="模型-2", outcome=Outcome.OK, status=200, blocked_by=None, dims=None)
    head, first, second = request_table([RECORD, other])
    assert "queue-timeout" in first
    assert first.endswith("bytes       height=1200 width=1024")
    assert cells(head[: head.index("lane")]) == cells(second[: second.index("image")])
    assert second.endswith("-")


def test_a_snapshots_line_names_trigger_cause_and_headline() -> None:
    head = SnapshotHead(
        id=3, at=NOW, gpu=0, trigger=Trigger.WATERMARK, cause=Cause.OTHER_PROCESS, headline="it was not us\n",
        used_bytes=614 * MIB, total_bytes=640 * MIB, foreign_bytes=440 * MIB,
    )  # fmt: skip
    line = snapshot_table([head])[1]
    for words in ("watermark", "other-process", "96 %", "440 MiB", "it was not us"):
        assert words in line
    assert "\n" not in line


def test_dims_read_as_they_are_named() -> None:
    assert dims_text({"height": 600, "width": 512}) == "height=600 width=512"
    assert dims_text(None) == "-"
