"""The operator's face: what it shows is what the contract names, and a change is all or nothing."""

import asyncio
import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from service_fakes import MIB, FakeModel, Held, until
from service_rigs import service

from gpuwatch.storage.journal import Journal
from gpuwatch.storage.knobs import KNOBS
from gpuwatch.storage.records import ProcessUse

pytestmark = pytest.mark.anyio
KEYS: dict[str, set[str]] = {
    "service": {
        *("name", "version", "pid", "started_at", "uptime_s", "mode", "status", "reason", "since", "loop_lag_ms"),
        "simulated",
    },
    "gpus": {
        *("index", "uuid", "name", "source", "simulated", "status", "stale_since", "read_age_s", "total_bytes"),
        *("used_bytes", "reserved_bytes", "allocated_bytes", "reclaimable_bytes", "foreign_bytes", "context_bytes"),
        *("weights_bytes", "promised_bytes", "capacity_bytes", "available_bytes", "pressure_bytes", "pressure_ratio"),
        *("pressure", "pressure_since", "breaker", "fragmentation_ratio", "alloc_retries", "util_pct"),
        *("temperature_c", "power_w", "processes"),
    },
    "processes": {"pid", "name", "cmdline", "unit", "used_bytes", "change_60s_bytes", "own"},
    "lanes": {
        *("name", "limit", "effective_limit", "in_flight", "running", "orphans", "draining", "waiting", "queue_limit"),
        *("oldest_wait_ms", "head_price_bytes", "blocked_by", "blocked_60s", "fits_now", "p50_60s_ms", "p99_60s_ms"),
        *("run_p99_60s_ms", "ok_60s", "refused_60s", "outcomes"),
    },
    "models": {"name", "version", "lane", "loaded", "weights_bytes", "price_source", "price_formula"},
    "telemetry": {"queued", "written", "dropped", "db_bytes", "wal_bytes", "last_error"},
    "in_flight": {"id", "request_id", "lane", "model", "price_bytes", "started_at", "orphan"},
}
TOP = {"service", "gpus", "lanes", "models", "knobs_version", "last_change", "last_snapshot", "telemetry", "in_flight"}


async def test_the_state_has_every_key_of_the_contract_idle_and_under_load(tmp_path: Path) -> None:
    held = Held()
    async with service(tmp_path, FakeModel(does=held), knobs={"lanes.default.concurrency": 1}) as one:
        idle = (await one.admin.get("/admin/state")).json()
        one.card.processes = (ProcessUse(pid=7, name="neighbour", used_bytes=5 * MIB),)
        calls = [asyncio.ensure_future(one.inference.post("/predict", content=b"x")) for _ in range(2)]
        await held.has_begun()
        await until(lambda: one.runtime.state().lanes[0].waiting == 1 and one.runtime.state().gpus[0].processes)
        await one.admin.patch("/admin/knobs", json={"changes": {"lanes.default.queue_limit": 5}})
        busy = (await one.admin.get("/admin/state")).json()
        for state in (idle, busy):
            assert state.keys() >= TOP
            assert state["service"].keys() == KEYS["service"]
            assert state["telemetry"].keys() == KEYS["telemetry"]
            for part in ("gpus", "lanes", "models"):
                assert all(one_of.keys() >= KEYS[part] for one_of in state[part]), part
            assert state["lanes"][0]["blocked_60s"].keys() == {"slots", "bytes", "watermark", "breaker", "stale"}
        (process,) = busy["gpus"][0]["processes"]
        assert process.keys() == KEYS["processes"]
        (run,) = busy["in_flight"]
        assert run.keys() == KEYS["in_flight"]
        lane = busy["lanes"][0]
        assert (lane["in_flight"], lane["waiting"], lane["blocked_by"]) == (1, 1, "slots")
        assert busy["gpus"][0]["promised_bytes"] == MIB
        assert busy["last_change"]["version"] == busy["knobs_version"] == 1
        held.go.set()
        await asyncio.gather(*calls)


async def test_knobs_show_value_origin_and_range(tmp_path: Path) -> None:
    async with service(tmp_path, knobs={"lanes.default.queue_limit": 9, "watermark.high": "0.9"}) as one:
        await one.admin.patch("/admin/knobs", json={"changes": {"watermark.low": 0.5}})
        found = (await one.admin.get("/admin/knobs")).json()
        assert found.keys() == {"version", "knobs", "origin", "spec"}
        assert found["knobs"].keys() == found["origin"].keys() == found["spec"].keys()
        assert len(found["knobs"]) == len(KNOBS)
        assert found["origin"]["lanes.default.queue_limit"] == "file"
        assert found["origin"]["watermark.low"] == "override"
        assert found["origin"]["breaker.trip"] == "default"
        assert found["knobs"]["watermark.high"] == 0.9
        assert found["spec"]["watermark.low"].keys() >= {"unit", "low", "high", "step", "default", "help"}


async def test_a_turn_takes_effect_at_once_and_is_told_everywhere(tmp_path: Path) -> None:
    held = Held()
    async with service(tmp_path, FakeModel(does=held), knobs={"lanes.default.concurrency": 1}) as one:
        calls = [asyncio.ensure_future(one.inference.post("/predict", content=b"x")) for _ in range(2)]
        await held.has_begun()
        answer = await one.admin.patch(
            "/admin/knobs",
            json={"changes": {"lanes.default.concurrency": 2}, "if_version": 0, "note": "rush hour"},
            headers={"X-Gpuwatch-Actor": "ann\x1b[31m"},
        )
        assert answer.status_code == 200, answer.text
        body = answer.json()
        assert body.keys() == {"version", "knobs", "changed", "warnings"}
        assert (body["version"], body["changed"], body["warnings"]) == (1, {"lanes.default.concurrency": [1, 2]}, [])
        assert body["knobs"]["lanes.default.concurrency"] == 2
        await held.has_begun()  # the second one runs now
        (change,) = (await one.admin.get("/admin/knobs/history")).json()["changes"]
        assert (change["version"], change["note"]) == (1, "rush hour")
        assert change["actor"] == "ann[31m (claimed; admin token, 127.0.0.1)"
        assert Journal(one.home.journal).replay()[0].version == 1
        await until(lambda: len(one.runtime.reader.knob_changes()) == 1)
        held.go.set()
        await asyncio.gather(*calls)
        events = (await one.admin.get("/admin/events")).json()["events"]
        assert [event["kind"] for event in events][:1] == ["knobs"]


@pytest.mark.parametrize(
    "value",
    [True, "4", "four", None, math.nan, math.inf, -1, 1025, 1.5, [4], {"a": 1}, 10**400],
    ids=lambda value: str(value)[:10],
)
async def test_what_is_no_value_is_refused_and_nothing_has_changed(tmp_path: Path, value: object) -> None:
    async with service(tmp_path) as one:
        text = json.dumps({"changes": {"lanes.default.queue_limit": 8, "lanes.default.concurrency": value}})
        answer = await one.admin.patch("/admin/knobs", content=text, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert "lanes.default.concurrency" in json.dumps(answer.json()["problems"])
        assert one.runtime.desk.version == 0
        assert one.runtime.desk.knobs.values["lanes.default.queue_limit"] == 64
        assert Journal(one.home.journal).replay() == ()


async def test_every_bad_key_is_listed_with_its_range(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        changes = {"lanes.default.concurrency": -1, "lanes.none.concurrency": 4, "watermark.low": 0.9, "no.knob": 1}
        problems = (await one.admin.patch("/admin/knobs", json={"changes": changes})).json()["problems"]
        assert problems.keys() == changes.keys()
        assert "0 to 1024" in problems["lanes.default.concurrency"]
        assert "lanes are default" in problems["lanes.none.concurrency"]
        assert "below watermark.high" in problems["watermark.low"]
        bodies: list[object] = [{}, {"changes": {}, "more": 1}, [], {"changes": 4}]
        for body in bodies:
            assert (await one.admin.patch("/admin/knobs", json=body)).status_code == 422
        assert (await one.admin.patch("/admin/knobs", content=b"{")).status_code == 422


async def test_who_turns_on_an_old_version_is_told_what_is_in_force(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        turns = [
            one.admin.patch("/admin/knobs", json={"changes": {"lanes.default.concurrency": n}, "if_version": 0})
            for n in (7, 8)
        ]
        first, second = await asyncio.gather(*turns)
        assert sorted((first.status_code, second.status_code)) == [200, 409]
        late = first if first.status_code == 409 else second
        assert late.json()["version"] == 1
        assert late.json()["last_change"]["changes"]["lanes.default.concurrency"][0] == 4
        assert one.runtime.desk.version == 1


async def test_a_locked_database_stops_no_request_no_refusal_and_no_knob(tmp_path: Path) -> None:
    model = FakeModel()
    async with service(tmp_path, model) as one:
        await one.rows()
        lock = sqlite3.connect(one.home.database, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        try:
            model.does = lambda _payload: one.card.run_out()
            refused = await one.inference.post("/predict", content=b"x")
            assert (refused.status_code, refused.json()["reason"]) == (503, "out-of-memory")
            number = refused.json()["snapshot"]
            assert (await one.admin.get(f"/admin/snapshots/{number}")).status_code == 404, "it is not stored yet"
            assert one.runtime.state().last_snapshot is not None
            answer = await one.admin.patch("/admin/knobs", json={"changes": {"watermark.low": 0.1}})
            assert answer.json()["warnings"] == []
            model.does = lambda _payload: "fine"
            assert (await one.inference.post("/predict", content=b"x")).status_code == 200
            await until(lambda: one.runtime.state().telemetry.last_error is not None)
        finally:
            lock.close()
        assert [row["outcome"] for row in await one.rows()] == ["ok", "out-of-memory"]
        found = (await one.admin.get(f"/admin/snapshots/{number}")).json()
        assert found["id"] == number
        assert one.runtime.state().telemetry.dropped == 0


async def test_requests_come_filtered_with_those_in_flight(tmp_path: Path) -> None:
    held = Held()
    model = FakeModel()
    async with service(tmp_path, model) as one:
        await one.inference.post("/predict", content=b"x")
        await one.inference.post("/predict", content=b"bad")
        await one.rows()
        model.does = held
        call = asyncio.ensure_future(one.inference.post("/predict", content=b"x", headers={"X-Request-Id": "now"}))
        await held.has_begun()
        found = (await one.admin.get("/admin/requests", params={"outcome": "bad-input"})).json()
        assert found.keys() == {"requests", "in_flight"}
        assert [row["outcome"] for row in found["requests"]] == ["bad-input"]
        assert [run["request_id"] for run in found["in_flight"]] == ["now"]
        assert len(await one.rows(limit="1")) == 1
        assert await one.rows(lane="none") == []
        assert await one.rows(since="99999999999") == []
        held.go.set()
        await call


async def test_samples_are_flat_buckets_no_more_than_asked_for(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        await until(lambda: one.card.reads > 20)
        await one.rows()
        buckets = (await one.admin.get("/admin/samples", params={"points": 3})).json()["buckets"]
        assert 1 <= len(buckets) <= 3
        spread = {
            f"{name}_{part}" for name in ("used_bytes", "in_flight", "waiting") for part in ("min", "mean", "max")
        }
        assert buckets[0].keys() >= {"at", "width_s", "gpu", "samples", "total_bytes"} | spread
        assert all(not isinstance(value, dict) for value in buckets[0].values())
        assert (await one.admin.get("/admin/samples", params={"gpu": 5})).json()["buckets"] == []


async def test_snapshots_are_listed_and_found_whole(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        model = one.runtime.answering.served["echo"].any_replica
        assert isinstance(model, FakeModel)
        model.does = lambda _payload: one.card.run_out()
        for _ in range(2):
            await one.inference.post("/predict", content=b"x")
        await one.rows()
        heads = (await one.admin.get("/admin/snapshots")).json()["snapshots"]
        assert [head["id"] for head in heads] == [2, 1]
        assert "payload" not in heads[0]
        assert len((await one.admin.get("/admin/snapshots", params={"limit": 1})).json()["snapshots"]) == 1
        none = await one.admin.get("/admin/snapshots", params={"trigger": "manual"})
        assert none.json()["snapshots"] == []
        whole = (await one.admin.get("/admin/snapshots/1")).json()
        wanted = {"reading", "processes", "in_flight", "waiting", "models", "knobs", "history", "error", "victim"}
        assert whole["payload"].keys() >= wanted
        assert whole["payload"]["history"]
        assert "segments" not in whole
        missing = await one.admin.get("/admin/snapshots/99")
        assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    "path",
    [
        "/admin/requests?since=nan",
        "/admin/requests?limit=0",
        "/admin/requests?limit=10001",
        "/admin/requests?outcome=nonsense",
        "/admin/samples?since=-inf",
        "/admin/samples?until=inf",
        "/admin/samples?points=0",
        f"/admin/samples?gpu={1 << 70}",
        f"/admin/snapshots/{1 << 70}",
        "/admin/snapshots/-1",
        "/admin/snapshots/one",
        "/admin/events?since=yesterday",
        "/admin/stream?hz=0",
        "/admin/stream?hz=21",
        "/admin/stream?hz=nan",
    ],
)
async def test_a_question_that_is_none_is_a_problem_and_no_crash(tmp_path: Path, path: str) -> None:
    async with service(tmp_path) as one:
        answer = await one.admin.get(path)
        assert answer.status_code == 422, answer.text
        assert answer.headers["content-type"] == "application/problem+json"


async def test_times_far_away_are_answered(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        for query in ("since=-1e300&until=1e300", "since=5&until=4", "since=0&until=1e-300"):
            assert (await one.admin.get(f"/admin/samples?{query}")).status_code == 200, query


async def test_a_database_that_is_gone_is_a_problem_and_the_state_still_answers(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        for name in ("telemetry.db", "telemetry.db-wal", "telemetry.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / "telemetry.db").mkdir()
        answer = await one.admin.get("/admin/events")
        assert answer.status_code == 503
        assert (await one.admin.get("/admin/state")).status_code == 200
        (tmp_path / "telemetry.db").rmdir()


async def test_the_admin_describes_itself(tmp_path: Path) -> None:
    async with service(tmp_path) as one:
        paths = (await one.admin.get("/admin/openapi.json")).json()["paths"]
        assert {"/admin/state", "/admin/stream", "/admin/knobs", "/admin/snapshots/{number}"} <= paths.keys()


@pytest.mark.parametrize("patch", [{"changes": {}}, {"changes": {"lanes.default.concurrency": 3}, "note": "x" * 1001}])
async def test_a_change_of_nothing_or_with_a_page_of_note_is_none(tmp_path: Path, patch: dict[str, Any]) -> None:
    async with service(tmp_path) as one:
        answer = await one.admin.patch("/admin/knobs", json=patch)
        assert answer.status_code == 422
        assert one.runtime.desk.version == 0
