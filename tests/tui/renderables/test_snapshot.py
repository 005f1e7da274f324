"""A snapshot's page stands whatever its payload lacks or holds, and invents nothing."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.storage.records import Cause, Trigger
from gpuwatch.tui.renderables.snapshot import page
from gpuwatch.tui.sources import scene

OOM = scene.SNAPSHOTS[1]
WHOLE: dict[str, Any] = dict(OOM.payload) | {
    "history": OOM.payload["history"][::30],
    "knobs": dict(list(scene.KNOBS.values.items())[-14:]),
}
GONE = object()


def paths(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from paths(value, (*path, key))


def twisted(path: tuple[Any, ...], value: object) -> dict[str, Any]:
    """Give the whole payload with one thing gone, or something else in its place."""
    payload: dict[str, Any] = copy.deepcopy(WHOLE)
    inner: Any = payload
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return payload


PATHS = sorted(paths(WHOLE), key=repr)
VALUES: list[object] = [
    GONE,
    None,
    "[/",
    "\x1b[31m中文👩🏽\u200d",
    [],
    {},
    [None],
    2**64,
    -1,
    1e308,
    float("nan"),
    True,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: "gone" if value is GONE else ascii(value))
def test_one_thing_that_is_gone_or_of_another_shape_costs_no_page(value: object) -> None:
    for path in PATHS:
        lines = page(replace(OOM, payload=twisted(path, value)), 80)
        assert {line.cell_len for line in lines} == {80}, path
        assert not any(said in line.plain for line in lines for said in ("None", "nan", "\x1b")), path


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(sorted(WHOLE)),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["at", "id", "lane", "price_bytes", "used_bytes", "dims"]), inner)
            ),
            max_leaves=8,
        ),
    ),
    st.integers(0, 150),
)
def test_any_json_costs_no_page(payload: dict[str, Any], width: int) -> None:
    assert {line.cell_len for line in page(replace(OOM, payload=payload), width, "x")} == {width}


@pytest.mark.parametrize("name", ["[0] Tesla T4", "[/", "中文模型", "\x1b[31m", "x" * 10_000, "\u200d👩"])
def test_names_from_outside_are_plain_text_on_the_page(name: str) -> None:
    process = {"pid": 1, "unit": name, "cmdline": name, "used_bytes": 1}
    run = {"id": 1, "request_id": name, "lane": name}
    payload = WHOLE | {"processes": [process], "in_flight": [run], "victim": {"id": 1, "dims": {name: name}}}
    snapshot = replace(OOM, payload=payload, headline=name, request_id=name)
    assert {line.cell_len for line in page(snapshot, 120, name)} == {120}


@given(st.sampled_from(Trigger), st.sampled_from(Cause))
def test_every_trigger_and_cause_has_words_and_without_figures_none_are_made_up(trigger: Trigger, cause: Cause) -> None:
    bare = replace(
        OOM, trigger=trigger, cause=cause, payload={}, requested_bytes=None, request_id=None, confidence=None
    )
    text = "\n".join(line.plain for line in page(bare, 80))
    assert trigger.upper() in text
    assert "ASKED" not in text
    assert "VICTIM" not in text
    assert "% sure" not in text
    assert "no samples were kept" in text


def test_a_run_without_an_id_is_not_taken_for_a_victim_without_one() -> None:
    payload = WHOLE | {"victim": None, "in_flight": [{"request_id": "r-1"}]}
    assert "FAILED" not in "\n".join(line.plain for line in page(replace(OOM, payload=payload), 80))


def test_what_would_have_fitted_is_called_fragmentation_and_only_where_both_figures_are_known() -> None:
    def asked(**error: int) -> str:
        return "\n".join(line.plain for line in page(replace(OOM, payload=WHOLE | {"error": error}), 120))

    assert "fragmentation" in asked(free_bytes=scene.gib(2))
    assert "really full" in asked(free_bytes=scene.gib(1))
    assert "=>" not in asked()


def test_a_snapshots_page_names_cause_victim_and_what_was_asked() -> None:
    text = "\n".join(line.plain for line in page(scene.SNAPSHOTS[1], 120))
    for said in (
        "NEIGHBOUR, not us (95% sure)",
        "VICTIM  r-8f21",
        "ASKED   1.5G",
        "really full",
        "FAILED",
        "whisper.service",
    ):
        assert said in text
