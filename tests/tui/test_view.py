"""Folding news: nothing is forgotten too early, nothing is shown that is not so."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.storage.records import KnobChange, Trigger
from gpuwatch.tui import view as v
from gpuwatch.tui.sources import scene
from gpuwatch.tui.view import View, fold

BOOT = 1_000.0


def told(*news: v.News, view: View | None = None, now: float = scene.NOW) -> View:
    view = view or View()
    for item in news:
        view = fold(view, item, now)
    return view


def change(version: int, before: int = 6, after: int = 7) -> KnobChange:
    return KnobChange(version=version, at=scene.NOW, actor="dana", changes={"lanes.image.concurrency": (before, after)})


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 2**40)), min_size=1, max_size=60))
def test_a_slot_keeps_its_largest_value_and_slots_stand_in_order(seen: list[tuple[float, int]]) -> None:
    view, at = View(), scene.NOW
    largest: dict[int, int] = {}
    for step, used in seen:
        at += step
        gpu = replace(scene.state().gpus[0], used_bytes=used)
        view = fold(view, v.StateNews(replace(scene.state(), at=at, gpus=(gpu,))), at)
        slot = int(at / v.SLOT_S)
        largest[slot] = max(used, largest.get(slot, 0))
    points = view.points[0]
    assert {int(p.at / v.SLOT_S): p.used for p in points} == {
        slot: used for slot, used in largest.items() if slot >= int((at - v.HISTORY_S) / v.SLOT_S)
    }
    assert [p.at for p in points] == sorted(p.at for p in points)


def test_history_is_bounded() -> None:
    view = View()
    for n in range(4000):
        view = fold(view, v.StateNews(replace(scene.state(), at=scene.NOW + n)), scene.NOW + n)
    assert len(view.points[0]) <= v.HISTORY_S / v.SLOT_S + 1


def test_a_clock_that_was_set_back_leaves_no_point_in_the_future() -> None:
    view = told(
        v.StateNews(replace(scene.state(), at=scene.NOW)), v.StateNews(replace(scene.state(), at=scene.NOW - 50))
    )
    assert [p.at for p in view.points[0]] == [scene.NOW - 50]


def test_a_turned_knob_is_in_force_marked_and_counted_once() -> None:
    view = told(v.KnobsNews(scene.KNOBS.values, 41), v.ChangeNews(change(42)), v.ChangeNews(change(42)))
    assert (view.knobs["lanes.image.concurrency"], view.knobs_version) == (7, 42)
    assert [mark.kind for mark in view.marks] == [v.MarkKind.KNOB]
    assert len(view.changes) == 1


def test_a_snapshot_is_listed_once_and_an_out_of_memory_has_its_own_mark() -> None:
    near, oom = scene.HEADS[0], scene.HEADS[1]
    assert oom.trigger is Trigger.OUT_OF_MEMORY
    view = told(v.SnapshotNews(oom), v.SnapshotNews(near), v.SnapshotNews(near))
    assert [head.id for head in view.snapshots] == [near.id, oom.id]
    assert [mark.kind for mark in view.marks] == [v.MarkKind.OOM, v.MarkKind.SNAPSHOT]


def test_what_an_earlier_service_told_goes_when_another_answers() -> None:
    view = told(v.PastNews(snapshots=scene.HEADS, changes=(scene.CHANGE,)), v.PastNews())
    assert (view.snapshots, view.changes, view.marks) == ((), (), ())


def test_points_from_the_database_go_before_those_that_were_seen() -> None:
    view = told(v.StateNews(scene.state()))
    view = told(v.PastNews(points={0: scene.points()}), view=view)
    assert [p.at for p in view.points[0]] == sorted({p.at for p in view.points[0]})
    assert view.points[0][-1].at == scene.NOW


def test_the_services_clock_goes_on_between_its_states() -> None:
    view = told(v.StateNews(scene.state()), now=BOOT)
    assert view.service_now(BOOT + 7) == scene.NOW + 7


def test_figures_are_stale_when_the_link_is_not_live_or_nothing_comes() -> None:
    view = told(v.LinkNews(v.Link.LIVE), v.StateNews(scene.state()), now=BOOT)
    assert not view.is_stale(BOOT + v.STALE_S)
    assert view.is_stale(BOOT + v.STALE_S + 0.1)
    assert told(v.LinkNews(v.Link.RETRYING, "gone"), view=view, now=BOOT).is_stale(BOOT)


def test_the_links_age_counts_from_its_change_and_not_from_each_try() -> None:
    view = told(v.LinkNews(v.Link.RETRYING, "one"), now=10.0)
    view = told(v.LinkNews(v.Link.RETRYING, "two"), view=view, now=20.0)
    assert (view.link_since, view.link_why) == (10.0, "two")


def test_what_this_console_missed_is_counted() -> None:
    assert told(v.GapNews(3), v.GapNews(4)).left_out == 7


def test_a_change_that_was_seen_shows_its_effect_after_a_minute() -> None:
    view = told(v.StateNews(scene.state()), v.ChangeNews(change(42)))
    assert view.effect is not None
    assert view.effect.after == {}
    lanes = (replace(scene.state().lanes[0], p99_60s_ms=900.0), *scene.state().lanes[1:])
    view = told(v.StateNews(replace(scene.state(), at=scene.NOW + 61, lanes=lanes)), view=view)
    assert view.effect is not None
    assert (view.effect.before["image"].p99_ms, view.effect.after["image"].p99_ms) == (5400.0, 900.0)


def test_the_first_try_does_not_count_from_the_beginning_of_time() -> None:
    assert told(v.LinkNews(v.Link.CONNECTING, "connecting"), now=BOOT).link_since == BOOT
