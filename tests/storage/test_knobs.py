import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.storage.errors import BadValue, KnobsInvalid
from gpuwatch.storage.knobs import DEFAULT_LANE, KNOBS, Knobs, KnobSpec, LaneKnobs, keys_of, spec_of
from gpuwatch.storage.records import KnobValue

UNITS = {"bytes", "s", "ms", "ratio", "count", "choice"}
NUMBERS = [spec for spec in KNOBS if not spec.choices]
WHOLE = [spec for spec in NUMBERS if isinstance(spec.default, int)]
BY_KEY = pytest.mark.parametrize("spec", KNOBS, ids=lambda spec: spec.key)


@BY_KEY
def test_every_knob_is_documented(spec: KnobSpec) -> None:
    assert spec.unit in UNITS
    assert spec.help.endswith(".")
    assert len(spec.help) > 20
    assert spec.range_text


@BY_KEY
def test_every_default_lies_in_its_own_range_and_keeps_its_type(spec: KnobSpec) -> None:
    checked = spec.check(spec.default)
    assert checked == spec.default
    assert type(checked) is type(spec.default)


@BY_KEY
def test_a_number_has_a_range_and_a_step_and_a_word_has_choices(spec: KnobSpec) -> None:
    if spec.unit == "choice":
        assert len(spec.choices) > 1
        assert (spec.low, spec.high, spec.step) == (None, None, None)
    else:
        assert spec.low is not None
        assert spec.high is not None
        assert spec.step is not None
        assert spec.low < spec.high
        assert 0 < spec.step <= spec.high - spec.low
        assert not spec.choices


@BY_KEY
def test_a_key_names_its_unit(spec: KnobSpec) -> None:
    suffix = {"bytes": "_bytes", "s": "_s", "ms": "_ms"}.get(spec.unit)
    if suffix is not None:
        assert spec.key.endswith(suffix)


def test_keys_are_unique() -> None:
    assert len({spec.key for spec in KNOBS}) == len(KNOBS)


def test_the_lanes_plain_attributes_are_the_tables_lane_knobs() -> None:
    rows = [spec.key.removeprefix("lanes.*.") for spec in KNOBS if spec.key.startswith("lanes.*.")]
    assert [field.name for field in dataclasses.fields(LaneKnobs)] == rows


@pytest.mark.parametrize("spec", NUMBERS, ids=lambda spec: spec.key)
@pytest.mark.parametrize(
    "value", [True, False, float("nan"), float("inf"), float("-inf"), "4", None, [4], {}, 10**400, -(10**400)], ids=repr
)
def test_a_number_refuses_what_is_no_finite_number_in_range(spec: KnobSpec, value: object) -> None:
    with pytest.raises(BadValue):
        spec.check(value)


@pytest.mark.parametrize("spec", WHOLE, ids=lambda spec: spec.key)
def test_a_whole_knob_refuses_fractions_and_takes_whole_floats_as_integers(spec: KnobSpec) -> None:
    assert spec.low is not None
    with pytest.raises(BadValue, match="whole"):
        spec.check(spec.low + 0.5)
    checked = spec.check(float(spec.low))
    assert checked == spec.low
    assert isinstance(checked, int)


@pytest.mark.parametrize("spec", NUMBERS, ids=lambda spec: spec.key)
def test_the_ends_of_a_range_are_in_and_what_lies_beyond_is_out(spec: KnobSpec) -> None:
    assert spec.low is not None
    assert spec.high is not None
    assert spec.check(spec.low) == spec.low
    assert spec.check(spec.high) == spec.high
    for beyond in (spec.low - 1, spec.high + 1):
        with pytest.raises(BadValue, match="out of range"):
            spec.check(beyond)


@pytest.mark.parametrize("spec", [spec for spec in KNOBS if spec.choices], ids=lambda spec: spec.key)
@pytest.mark.parametrize("value", ["", "Queue", "maybe", True, 1, None, ["queue"]], ids=repr)
def test_a_word_takes_only_its_choices(spec: KnobSpec, value: object) -> None:
    with pytest.raises(BadValue, match=" or "):
        spec.check(value)
    for choice in spec.choices:
        assert spec.check(choice) == choice


def test_default_lane_always_exists_and_is_made_once() -> None:
    assert Knobs.defaults().lanes == (DEFAULT_LANE,)
    assert Knobs.defaults(["image", DEFAULT_LANE, "image"]).lanes == ("image", DEFAULT_LANE)


@pytest.mark.parametrize("name", ["", "a.b", "*", "a b", "x" * 65, "ä", "a\n"])
def test_a_lane_whose_name_could_not_stand_in_a_key_is_refused(name: str) -> None:
    with pytest.raises(BadValue, match="lane"):
        Knobs.defaults([name])


def test_every_lane_has_every_lane_knob_and_globals_exist_once() -> None:
    knobs = Knobs.defaults(["image", "text"])
    per_lane = sum("*" in spec.key for spec in KNOBS)
    assert len(knobs.values) == 3 * per_lane + len(KNOBS) - per_lane
    assert set(knobs.by_lane) == {"image", "text", "default"}
    assert all(spec_of(key) is spec for key, spec in keys_of(knobs.lanes))


@pytest.mark.parametrize(
    "key", ["", "lanes", "lanes.*.concurrency", "lanes..concurrency", "lanes.a.b.concurrency", "nope"]
)
def test_what_is_no_key_has_no_spec(key: str) -> None:
    assert spec_of(key) is None


def test_a_turn_gives_new_knobs_and_leaves_the_old_as_they_were() -> None:
    before = Knobs.defaults(["image"])
    after = before.turned({"lanes.image.concurrency": 2, "watermark.action": "refuse"})
    assert after.by_lane["image"].concurrency == 2
    assert after.by_lane["default"].concurrency == 4
    assert after.word("watermark.action") == "refuse"
    assert before == Knobs.defaults(["image"])
    assert after.changes_from(before) == {
        "lanes.image.concurrency": (4, 2),
        "watermark.action": ("queue", "refuse"),
    }


def test_a_bad_turn_lists_every_bad_key_and_changes_nothing() -> None:
    knobs = Knobs.defaults(["image"])
    with pytest.raises(KnobsInvalid) as raised:
        knobs.turned(
            {
                "lanes.image.concurrency": -1,
                "lanes.gone.concurrency": 1,
                "nope": 1,
                "breaker.trip": 0.9,
                "watermark.action": 3,
                "watermark.low": 0.9,
            }
        )
    problems = raised.value.problems
    assert set(problems) == {
        "lanes.image.concurrency",
        "lanes.gone.concurrency",
        "nope",
        "watermark.action",
        "watermark.low",
    }
    assert "0 to 1024" in problems["lanes.image.concurrency"]
    assert "image, default" in problems["lanes.gone.concurrency"]
    assert "no such knob" in problems["nope"]
    assert all(key in str(raised.value) for key in problems)
    assert knobs == Knobs.defaults(["image"])


def test_the_low_watermark_stays_below_the_high_one_also_when_both_turn_at_once() -> None:
    knobs = Knobs.defaults()
    for changes in ({"watermark.low": 0.85}, {"watermark.high": 0.5}, {"watermark.low": 0.7, "watermark.high": 0.6}):
        with pytest.raises(KnobsInvalid, match="must be below") as raised:
            knobs.turned(changes)
        assert set(raised.value.problems) == set(changes)
    turned = knobs.turned({"watermark.low": 0.9, "watermark.high": 0.95})
    assert (turned.number("watermark.low"), turned.number("watermark.high")) == (0.9, 0.95)


def test_a_bad_watermark_is_named_by_its_own_fault_only() -> None:
    with pytest.raises(KnobsInvalid) as raised:
        Knobs.defaults().turned({"watermark.high": 7, "watermark.low": 0.95})
    assert set(raised.value.problems) == {"watermark.high"}


def any_value(spec: KnobSpec) -> st.SearchStrategy[KnobValue]:
    if spec.choices:
        return st.sampled_from(spec.choices)
    if isinstance(spec.default, int):
        return st.integers(int(spec.low or 0), int(spec.high or 0))
    return st.floats(float(spec.low or 0), float(spec.high or 0))


KEYS = dict(keys_of(["image", DEFAULT_LANE]))


@given(st.data())
def test_a_turn_is_all_or_nothing(data: st.DataObject) -> None:
    good = {key: data.draw(any_value(KEYS[key])) for key in data.draw(st.sets(st.sampled_from(sorted(KEYS))))}
    bad: dict[str, Any] = data.draw(
        st.dictionaries(st.sampled_from(sorted(KEYS)), st.none() | st.just("?"), max_size=2)
    )
    knobs = Knobs.defaults(["image"])
    changes = good | bad
    try:
        after = knobs.turned(changes)
    except KnobsInvalid as invalid:
        assert set(bad) <= set(invalid.problems) <= set(changes)  # noqa: PT017 - both ways are checked
        assert knobs == Knobs.defaults(["image"])
    else:
        assert not bad
        assert after.values == {**knobs.values, **good}
        assert set(after.changes_from(knobs)) == {key for key, value in good.items() if value != knobs.values[key]}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("lanes.default.concurrency", "8", 8),
        ("budget.max_bytes", "24GiB", 24 << 30),
        ("lanes.default.queue_timeout_s", "250ms", 0.25),
        ("lanes.default.run_timeout_s", "1m", 60.0),
        ("sampling.interval_ms", "250", 250),
        ("sampling.interval_ms", "250ms", 250),
        ("sampling.interval_ms", "1s", 1000),
        ("watermark.high", "0.9", 0.9),
        ("watermark.action", "refuse", "refuse"),
    ],
)
def test_what_a_person_types_is_read_with_its_unit(key: str, text: str, value: KnobValue) -> None:
    read = Knobs.defaults().read({key: text})[key]
    assert read == value
    assert type(read) is type(value)


def test_what_a_person_mistypes_is_listed_whole_with_what_would_be_taken() -> None:
    with pytest.raises(KnobsInvalid) as raised:
        Knobs.defaults().read(
            {"lanes.default.concurrency": "many", "watermark.high": "85", "budget.max_bytes": "-1G", "nope": "1"}
        )
    problems = raised.value.problems
    assert "not a number" in problems["lanes.default.concurrency"]
    assert "out of range" in problems["watermark.high"]
    assert "24GiB" in problems["budget.max_bytes"]
    assert "no such knob" in problems["nope"]


def test_a_range_in_bytes_is_said_in_units_a_person_reads() -> None:
    spec = spec_of("budget.max_bytes")
    assert spec is not None
    assert spec.range_text == "0 to 1PiB"


def test_a_word_is_no_number() -> None:
    with pytest.raises(TypeError, match=r"watermark\.action"):
        Knobs.defaults().number("watermark.action")
