"""Figures and tables as plain lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.cli import text
from gpuwatch.storage.knobs import KNOBS
from gpuwatch.storage.units import parse_size


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, "-"), (0, "0 B"), (512, "512 B"), (21 << 20, "21.0 MiB"), (768 << 20, "768 MiB"), (3 << 29, "1.50 GiB"),
     (-(64 << 20), "-64.0 MiB")],
)  # fmt: skip
def test_a_size_has_at_most_three_figures_and_its_unit(value: int | None, written: str) -> None:
    assert text.size(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, "-"), (0.012, "12 ms"), (1.25, "1.25 s"), (42.4, "42 s"), (185.0, "3m 05s"), (7800.0, "2h 10m"),
     (356_400.0, "4d 3h")],
)  # fmt: skip
def test_a_duration_is_written_in_the_unit_a_person_would_say(value: float | None, written: str) -> None:
    assert text.duration(value) == written


@given(st.integers(min_value=0, max_value=1 << 50))
def test_an_exact_size_reads_back_as_itself(value_bytes: int) -> None:
    assert parse_size(text.exact_size(value_bytes)) == value_bytes


@pytest.mark.parametrize("spec", KNOBS, ids=lambda spec: spec.key)
def test_every_knobs_default_as_shown_is_read_back_as_itself(spec: object) -> None:
    known = next(s for s in KNOBS if s == spec)
    assert known.read(text.knob_value(known.default, known.unit)) == known.default


@given(st.text())
def test_text_from_outside_cannot_drive_the_terminal(dirty: str) -> None:
    shown = text.safe(dirty)
    assert len(shown) == len(dirty)
    assert not any(ord(c) < 32 or ord(c) == 127 for c in shown)


def test_columns_are_aligned_by_cells_not_characters() -> None:
    lines = text.table(("name", "n"), [("模型", "1"), ("ab", "12")], right=(1,))
    assert [text.cells(line) for line in lines] == [8, 8, 8]
    assert lines[1] == "模型   1"


def test_counts_name_the_largest_first_and_leave_zeros_out() -> None:
    assert text.counts({"a": 1, "b": 3, "c": 0}) == "b 3, a 1"
    assert text.counts({"c": 0}) == "none"


def test_a_sparkline_keeps_the_maximum_of_each_column_and_shows_gaps() -> None:
    values = [0.0, 100.0, 0.0, 0.0, None, None]
    assert text.sparkline(values, low=0, high=100, width=3) == "█▁ "


@given(st.lists(st.none() | st.floats(min_value=-1e12, max_value=1e12)), st.integers(min_value=1, max_value=80))
def test_a_sparkline_is_never_wider_than_asked(values: list[float | None], width: int) -> None:
    assert len(text.sparkline(values, low=0, high=1e9, width=width)) == min(width, len(values))


def test_ago_never_tells_of_the_future() -> None:
    assert text.ago(10.0, 5.0) == "just now"
    assert text.ago(10.0, 75.0) == "1m 05s ago"
    assert text.ago(10.0, 15.9) == "5 s ago"


def test_a_change_is_written_in_the_knobs_units() -> None:
    changes = {"budget.margin_bytes": (0, 64 << 20), "watermark.high": (0.85, 0.9), "of.a.later.version": (True, None)}
    shown = text.change_pairs(changes)
    assert shown == ("budget.margin_bytes 0 -> 64MiB, watermark.high 0.85 -> 0.9, of.a.later.version True -> None")
