"""Every line of the dashboard and of a snapshot's page is as wide as asked, whatever the figures and names are."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from gpuwatch.storage.records import BlockedBy, ProcessUse
from gpuwatch.storage.state import GpuStatus, State, Status
from gpuwatch.tui.renderables import head, lanes
from gpuwatch.tui.sources import scene
from gpuwatch.tui.view import ChangeNews, GapNews, Link, LinkNews, StateNews, View, fold

NAMES = ["[0] Tesla T4", "[/", "中文模型", "👩🏽‍🚀", "\x1b[31m", "x" * 10_000, ""]


def seen(state: State) -> View:
    return fold(fold(View(), LinkNews(Link.LIVE), scene.NOW), StateNews(state), scene.NOW)


def drawn(view: View, width: int) -> list[Text]:
    state = view.state
    now = scene.NOW
    lines = [head.header(view, now, width), head.why(view, now, width), head.flow(view, now, width)]
    lines += [lanes.last_change(view, width), lanes.last_snapshot(view, now, width), lanes.advice(view, width)]
    lines += lanes.events(view, width, 5) + lanes.running(view, now, width, 5)
    if state is not None:
        lines += lanes.table(state.lanes, "image", width)
        for gpu in state.gpus:
            lines += [head.card(gpu, width), head.promised(view, gpu, width), *lanes.neighbours(gpu, width, 4)]
    return lines


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [80, 120])
def test_names_from_outside_bend_no_line_and_are_no_markup(name: str, width: int) -> None:
    state = scene.state()
    gpu = replace(state.gpus[0], name=name, processes=(ProcessUse(pid=1, name=name, cmdline=name, unit=name),))
    state = replace(
        state,
        verdict=name,
        service=replace(state.service, name=name, reason=name),
        gpus=(gpu,),
        lanes=tuple(replace(lane, name=name) for lane in state.lanes),
        in_flight=tuple(replace(run, request_id=name, lane=name) for run in state.in_flight),
    )
    assert {line.cell_len for line in drawn(seen(state), width)} == {width}


@given(st.floats(), st.integers(-1, 2**64))
def test_no_figure_bends_a_line(number: float, size: int) -> None:
    state = scene.state()
    gpu = replace(state.gpus[0], util_pct=number, temperature_c=number, used_bytes=size, capacity_bytes=size)
    lane = replace(state.lanes[0], oldest_wait_ms=number, p50_60s_ms=number, head_price_bytes=size, fits_now=size)
    assert {line.cell_len for line in drawn(seen(replace(state, gpus=(gpu,), lanes=(lane,))), 80)} == {80}


def test_before_anything_is_known_the_console_says_so() -> None:
    assert "looking for a service" in head.why(View(), 0.0, 80).plain
    retrying = fold(View(), LinkNews(Link.RETRYING, "none found"), 0.0)
    assert "no service" in head.why(retrying, 5.0, 80).plain


def test_old_figures_are_never_shown_as_new_ones() -> None:
    view = seen(scene.state())
    assert "NO NEWS" in head.why(view, scene.NOW + 5, 80).plain
    gone = fold(view, LinkNews(Link.RETRYING, "connection refused"), scene.NOW)
    assert "DISCONNECTED" in head.why(gone, scene.NOW + 5, 80).plain
    assert "connection refused" in head.why(gone, scene.NOW + 5, 120).plain


@pytest.mark.parametrize("status", [GpuStatus.STALE, GpuStatus.LOST])
def test_a_card_that_cannot_be_believed_is_named_first(status: GpuStatus) -> None:
    state = scene.state()
    view = seen(replace(state, gpus=(replace(state.gpus[0], status=status),)))
    assert status.upper() in head.why(view, scene.NOW, 80).plain[:20]


def test_simulated_and_read_only_stand_in_the_first_line() -> None:
    state = scene.state()
    view = seen(replace(state, service=replace(state.service, simulated=True)))
    line = head.header(view, scene.NOW, 80, read_only=True).plain
    assert "SIMULATED" in line
    assert "READ-ONLY" in line


@pytest.mark.parametrize("name", NAMES)
def test_a_long_name_hides_neither_mode_nor_status_nor_age(name: str) -> None:
    state = scene.state()
    view = seen(replace(state, service=replace(state.service, name=name, simulated=True, mode="observe")))
    line = head.header(view, scene.NOW, 80, read_only=True).plain
    for said in ("OBSERVE", "SIMULATED", "READ-ONLY", "! DEGRADED 6m14s", "data 0.00s"):
        assert said in line, said


def test_a_name_that_fits_leaves_nothing_out() -> None:
    line = head.header(seen(scene.state()), scene.NOW, 80).plain
    assert "gpu-a yolo-api  ENFORCING  ! DEGRADED 6m14s (readyz 200)" in line


def test_what_was_changed_and_what_it_did_stand_beside_each_other_at_80_cells() -> None:
    change = replace(scene.CHANGE, version=42, at=scene.NOW)
    view = fold(seen(scene.state()), ChangeNews(change), scene.NOW)
    view = fold(view, StateNews(scene.state(scene.NOW + 61)), scene.NOW + 61)
    assert "dana@gpu-a image.concurrency 4>6" in lanes.last_change(view, 80).plain
    assert "ref 126>126 p99 5.4s>5.4s" in lanes.last_change(view, 80).plain
    assert "effect/min: ok 558>558, refused 126>126, p99 5.4s>5.4s" in lanes.last_change(view, 120).plain


def test_a_long_actor_hides_no_change() -> None:
    change = replace(scene.CHANGE, actor="x" * 500)
    assert "image.concurrency 4>6" in lanes.last_change(replace(View(), changes=(change,)), 80).plain


@given(st.floats(0, 1e8), st.floats(0, 1e8), st.integers(0, 99_999), st.integers(0, 99_999), st.sampled_from(BlockedBy))
def test_the_columns_of_a_lane_never_touch(
    wait_ms: float, run_ms: float, waiting: int, cap: int, by: BlockedBy
) -> None:
    lane = replace(
        scene.state().lanes[0],
        oldest_wait_ms=wait_ms,
        queue_timeout_s=wait_ms / 1000,
        waiting=waiting,
        queue_limit=cap,
        blocked_by=by,
        blocked_60s={by.value: 60.0},
        p50_60s_ms=run_ms,
        p99_60s_ms=run_ms,
        run_p99_60s_ms=run_ms,
        refused_60s={"queue-timeout": 99_999},
    )
    line = lanes.table((lane,), "image", 80)[1].plain
    assert len(line.split()) == 11  # the mark and the share of the cause are words of their own


def test_readyz_is_what_the_service_would_answer() -> None:
    state = scene.state()
    assert head.readyz(state) == 200
    assert head.readyz(replace(state, service=replace(state.service, status=Status.DRAINING))) == 503
    assert head.readyz(replace(state, gpus=(replace(state.gpus[0], status=GpuStatus.LOST),))) == 503


def test_what_was_lost_is_counted_in_sight() -> None:
    view = fold(seen(scene.state()), GapNews(7), scene.NOW)
    assert "lost 7" in head.flow(view, scene.NOW, 80).plain


@pytest.mark.parametrize("cause", [BlockedBy.BYTES, BlockedBy.WATERMARK, BlockedBy.BREAKER])
def test_advice_says_at_80_cells_what_will_not_help(cause: BlockedBy) -> None:
    state = scene.state()
    view = seen(replace(state, lanes=(replace(state.lanes[0], blocked_by=cause),)))
    assert "NOT help" in lanes.advice(view, 80).plain


def test_a_lane_that_drains_or_is_paused_says_so() -> None:
    image = scene.state().lanes[0]
    text = "\n".join(line.plain for line in lanes.table((replace(image, running=4, limit=2, draining=True),), None, 80))
    assert "4>2" in text
    assert lanes.blocked(replace(image, limit=0)) == "PAUSED"


def test_a_change_is_shown_in_the_knobs_own_unit() -> None:
    change = replace(scene.CHANGE, changes={"budget.margin_bytes": (0, 512 << 20), "watermark.high": (0.85, 0.9)})
    assert lanes.change_text(change).endswith("budget.margin_bytes 0>512M, watermark.high 0.85>0.9")


def test_without_a_service_the_advice_is_how_to_start_one() -> None:
    assert "gpuwatch serve" in lanes.advice(View(), 80).plain
