import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_strategies import event, of, request, sample, snapshot

from gpuwatch.storage import codec
from gpuwatch.storage.records import KnobChange, Reading, Run
from gpuwatch.storage.tables import TABLES, Row

ROWS = st.one_of([of(kind) for kind in TABLES])


@given(ROWS)
def test_every_row_comes_back_from_sqlites_types_as_it_was(record: Row) -> None:
    flat = codec.row(record)
    assert tuple(flat) == codec.fields(type(record))
    assert all(value is None or type(value) in {int, float, str, bytes} for value in flat.values())
    assert codec.unrow(type(record), flat) == record


@given(st.one_of(ROWS, of(Reading)))
def test_every_record_comes_back_from_plain_data_and_from_json_as_it_was(record: Row | Reading) -> None:
    assert codec.build(type(record), codec.plain(record)) == record
    assert codec.build(type(record), codec.loads(codec.dumps(record))) == record


@pytest.mark.parametrize("word", ["null", "true", "1", "1.5", "[]", "", "\x00", "🜁 ключ"])
def test_text_stays_the_text_it_is(word: str) -> None:
    record = request(1, error=word, would=word, request_id=word)
    assert codec.unrow(type(record), codec.row(record)) == record
    change = KnobChange(version=1, at=1.0, actor=word, note=word, changes={word: (word, word)})
    assert codec.unrow(KnobChange, codec.row(change)) == change
    assert codec.build(KnobChange, codec.loads(codec.dumps(change))) == change


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), float("-inf")])
def test_a_figure_that_no_format_can_say_becomes_null(figure: float) -> None:
    lost = sample(1.0, util_pct=figure)
    assert codec.row(lost)["util_pct"] is None
    assert codec.plain(lost)["util_pct"] is None
    assert codec.unrow(type(lost), codec.row(lost)) == sample(1.0)
    nested = event(1, data={"a": [figure]})
    assert codec.plain(nested)["data"] == {"a": [None]}
    assert codec.row(nested)["data"] == '{"a":[null]}'


def test_text_that_is_not_unicode_is_spelled_out_and_costs_no_record() -> None:
    name = b"caf\xe9".decode(errors="surrogateescape")
    record = snapshot(1, headline=name, payload={name: [name]})
    flat = codec.row(record)
    assert flat["headline"] == "caf\\udce9"
    assert codec.unrow(type(record), flat).payload == {"caf\\udce9": ["caf\\udce9"]}
    assert codec.loads(codec.dumps(record)) == codec.plain(record)


def test_whole_and_broken_numbers_keep_their_type_through_json() -> None:
    change = KnobChange(version=1, at=1.0, actor="a", changes={"a": (4, 2), "b": (0.5, 1.0), "c": (True, False)})
    back = codec.build(KnobChange, codec.loads(codec.dumps(change)))
    assert [type(value) for pair in back.changes.values() for value in pair] == [int, int, float, float, bool, bool]


def test_a_runs_clean_is_0_1_or_null_in_the_database() -> None:
    for clean, cell in ((None, None), (True, 1), (False, 0)):
        run = Run(id=1, started_at=1.0, clean=clean, pid=1, version="v", host="h")
        assert codec.row(run)["clean"] == cell
        assert codec.unrow(Run, codec.row(run)).clean is clean


@pytest.mark.parametrize("wrong", [{"outcome": "fine"}, {"seq": None}, {"dims": "{"}, {"dims": '{"a":"b"}'}])
def test_a_row_that_does_not_fit_is_refused(wrong: dict[str, object]) -> None:
    flat = codec.row(request(1)) | wrong
    with pytest.raises(msgspec.DecodeError):
        codec.unrow(type(request(1)), flat)


def test_unknown_columns_are_passed_over() -> None:
    assert codec.unrow(type(request(1)), codec.row(request(1)) | {"new": 1}) == request(1)


def test_what_is_no_plain_data_is_refused() -> None:
    with pytest.raises(TypeError):
        codec.dumps({"a": object()})
