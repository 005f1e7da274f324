from gpuwatch.storage.tables import TABLES


def test_what_the_operator_must_not_lose_is_kept_and_what_streams_is_bounded() -> None:
    assert {table.name for table in TABLES.values() if table.kept} == {"snapshots", "knob_changes", "events", "runs"}
    assert {table.name for table in TABLES.values() if not table.kept} == {"requests", "samples"}


def test_a_tables_key_is_one_of_its_columns() -> None:
    for table in TABLES.values():
        assert table.key is None or table.key in table.columns
