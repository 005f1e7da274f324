"""The demo's account."""

from dataclasses import replace

import pytest
from cli_fakes import MIB, NOW, RECORD, STATE
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.cli.tally import Peak, Tally, second_line, summary_lines, tally
from gpuwatch.cli.traffic import Answer, Summary, summarize
from gpuwatch.storage.records import Cause, Outcome, RequestRecord, Trigger
from gpuwatch.storage.state import SnapshotHead

requests = st.dictionaries(st.integers(min_value=1, max_value=50).map(str), st.sampled_from(Outcome), max_size=20)


def record(request_id: str, outcome: Outcome) -> RequestRecord:
    return replace(RECORD, request_id=request_id, outcome=outcome)


def client(ended: dict[str, Outcome], *errors: str, not_sent: int = 0) -> Summary:
    answers = [Answer(request_id=f"d-{n}", latency_s=1.0, outcome=outcome.value) for n, outcome in ended.items()]
    answers += [Answer(request_id=f"d-e{i}", latency_s=1.0, error=error) for i, error in enumerate(errors)]
    return summarize(answers, not_sent=not_sent)


@given(requests)
def test_the_same_requests_with_the_same_outcomes_are_equal(ended: dict[str, Outcome]) -> None:
    counted = tally(client(ended), [record(f"d-{n}", outcome) for n, outcome in ended.items()], prefix="d")
    assert counted.equal
    assert sum(counted.client.values()) == len(ended)


@given(requests.filter(bool), st.data())
def test_a_record_that_is_lost_doubled_or_different_is_a_difference(
    ended: dict[str, Outcome], data: st.DataObject
) -> None:
    records = [record(f"d-{n}", outcome) for n, outcome in ended.items()]
    which = data.draw(st.integers(min_value=0, max_value=len(records) - 1))
    fault = data.draw(st.sampled_from(["lost", "doubled", "different"]))
    if fault == "lost":
        del records[which]
    elif fault == "doubled":
        records.append(records[which])
    else:
        other = data.draw(st.sampled_from([o for o in Outcome if o is not records[which].outcome]))
        records[which] = replace(records[which], outcome=other)
    counted = tally(client(ended), records, prefix="d")
    assert not counted.equal
    assert counted.differing == (2 if fault == "different" else 1)


def test_outcomes_swapped_between_two_requests_are_a_difference_though_the_counts_agree() -> None:
    ended = {"1": Outcome.OK, "2": Outcome.QUEUE_TIMEOUT}
    counted = tally(client(ended), [record("d-2", Outcome.OK), record("d-1", Outcome.QUEUE_TIMEOUT)], prefix="d")
    assert counted.client == counted.database
    assert not counted.equal


def test_requests_of_others_are_left_out() -> None:
    records = [record("d-1", Outcome.OK), record("somebody", Outcome.OK), record("d2-1", Outcome.OK)]
    assert tally(client({"1": Outcome.OK}), records, prefix="d").equal


def test_a_connection_that_broke_has_no_outcome_and_is_shown_beside() -> None:
    counted = tally(client({"1": Outcome.OK}, "ReadTimeout", not_sent=2), [record("d-1", Outcome.OK)], prefix="d")
    assert counted.equal
    shown = page(counted)
    assert "connections that broke: ReadTimeout 1" in shown
    assert "not sent, too many in flight at the client: 2" in shown


def page(counted: Tally) -> str:
    snapshot = SnapshotHead(
        id=1, at=NOW, gpu=0, trigger=Trigger.WATERMARK, cause=Cause.OTHER_PROCESS, headline="neighbour +512M"
    )
    lines = summary_lines(
        counted, client({"1": Outcome.OK}), card="SIMULATED card", simulated=True,
        peak=Peak(used_bytes=512 * MIB, total_bytes=640 * MIB, foreign_bytes=400 * MIB), snapshots=[snapshot],
        blocked={"bytes": 3}, neighbour="SCRIPTED: takes 512 MiB", database="/d/telemetry.db",
    )  # fmt: skip
    return "\n".join(lines)


def test_the_summary_holds_both_counts_latency_peak_snapshots_and_where_it_lies() -> None:
    counted = Tally(
        client={"ok": 40, "queue-timeout": 2},
        database={"ok": 40, "queue-timeout": 2},
        differing=0,
        errors={},
        not_sent=0,
    )
    shown = page(counted)
    for words in (
        "SUMMARY  SIMULATED card\n", "equal, request by request", "p50 1.00 s, p99 1.00 s", "bytes 3",
        "512 MiB of 640 MiB (80 %) (SIMULATED), others' part up to 400 MiB", "SCRIPTED", "#1", "watermark",
        "neighbour +512M", "/d/telemetry.db",
    ):  # fmt: skip
        assert words in shown
    assert [line.split() for line in shown.splitlines()[2:6]] == [
        ["requests", "client", "database"], ["ok", "40", "40"], ["queue-timeout", "2", "2"],
        ["all", "42", "42", "equal,", "request", "by", "request"],
    ]  # fmt: skip


def test_a_difference_is_said_loudly() -> None:
    assert "NOT EQUAL: 3 differ" in page(Tally(client={"ok": 1}, database={}, differing=3, errors={}, not_sent=0))


def test_the_line_of_a_second_says_what_happens_now() -> None:
    lane = replace(STATE.lanes[0], outcomes={"ok": 12, "queue-timeout": 2})
    line = second_line(7, replace(STATE, lanes=(lane,)))
    for words in (
        "  7 s", "in flight  2", "waiting  7 for bytes", "ok  12", "refused: queue-timeout 2",
        "used 512 MiB of 640 MiB SIMULATED", "promised 60.0 MiB of 170 MiB", "snapshot #2 other-process",
    ):  # fmt: skip
        assert words in line


@pytest.mark.parametrize("ok", [0, 3])
def test_what_was_answered_is_what_the_client_saw(ok: int) -> None:
    assert Tally(client={"ok": ok} if ok else {}, database={}, differing=0, errors={}, not_sent=0).ok == ok
