"""Folding news: nothing is forgotten too early, nothing is shown that is not so."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
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


def test_the_time_without_a_service_goes_on_through_every_try() -> None:
    news = (v.LinkNews(v.Link.RETRYING, "refused"), v.LinkNews(v.Link.CONNECTING, "connecting"))
    view = View()
    for now in (10.0, 20.0, 30.0):
        for item in news:
            view = fold(view, item, now)
    assert view.link_since == 10.0
    view = fold(view, v.LinkNews(v.Link.LIVE), 40.0)
    assert view.link_since == 40.0
    assert fold(view, v.LinkNews(v.Link.RETRYING, "gone"), 50.0).link_since == 50.0


def test_the_database_fills_the_time_without_a_connection() -> None:
    view = told(v.StateNews(replace(scene.state(), at=scene.NOW - 300)))
    view = told(v.PastNews(points={0: scene.points()}), v.StateNews(scene.state()), view=view)
    times = [p.at for p in view.points[0]]
    assert max(later - before for before, later in pairwise(times)) <= 2.0
    assert times == sorted(set(times))


def test_what_was_seen_is_not_replaced_by_what_the_database_says_of_it() -> None:
    view = told(v.StateNews(scene.state()))
    view = told(v.PastNews(points={0: (v.Point(scene.NOW, used=1.0),)}), view=view)
    assert [p.used for p in view.points[0]] == [scene.state().gpus[0].used_bytes]


def test_a_change_whose_news_were_lost_is_learned_from_the_state() -> None:
    view = told(v.KnobsNews(scene.KNOBS.values, 41), v.StateNews(replace(scene.state(), last_change=change(42))))
    assert (view.knobs["lanes.image.concurrency"], view.knobs_version) == (7, 42)
    view = told(v.ChangeNews(change(42)), view=view)
    assert [one.version for one in view.changes] == [42]


def test_a_snapshot_whose_news_were_lost_is_learned_from_the_state() -> None:
    missed = replace(scene.HEADS[0], id=119)
    view = told(v.PastNews(snapshots=scene.HEADS), v.StateNews(replace(scene.state(), last_snapshot=missed)))
    assert [head.id for head in view.snapshots] == [119, 118, 117, 104]


def test_a_change_that_was_not_seen_is_not_passed_over() -> None:
    seen = (change(43, after=9), replace(change(44), changes={"lanes.text.concurrency": (4, 5)}))
    view = told(v.KnobsNews(scene.KNOBS.values, 41), *(v.ChangeNews(one) for one in seen))
    assert view.knobs_version == 41  # so that a turn is refused as too late, and does not undo what 42 did
    assert [view.knobs[f"lanes.{name}.concurrency"] for name in ("image", "text")] == [9, 5]
    view = told(v.ChangeNews(change(42)), view=view)
    assert (view.knobs["lanes.image.concurrency"], view.knobs_version) == (9, 44)
    assert [one.version for one in view.changes] == [44, 43, 42]


def test_all_knobs_asked_for_anew_close_the_hole() -> None:
    view = told(v.KnobsNews(scene.KNOBS.values, 41), v.ChangeNews(change(43)), v.KnobsNews(scene.KNOBS.values, 43))
    assert view.knobs_version == 43
    assert told(v.ChangeNews(change(44)), view=view).knobs_version == 44


def test_snapshots_that_come_late_are_listed_in_their_place() -> None:
    view = told(*(v.SnapshotNews(replace(scene.HEADS[0], id=number)) for number in (7, 9, 8)))
    assert [head.id for head in view.snapshots] == [9, 8, 7]


def test_a_service_that_began_anew_has_the_last_word_about_its_knobs() -> None:
    view = told(v.KnobsNews(scene.KNOBS.values, 41), v.ChangeNews(change(42)))
    view = told(v.KnobsNews({"watermark.high": 0.5}, 1), v.ChangeNews(change(2)), view=view)
    assert dict(view.knobs) == {"watermark.high": 0.5, "lanes.image.concurrency": 7}
    assert (view.knobs_version, [one.version for one in view.changes]) == (2, [2])


TIMES = st.floats(scene.NOW - 1000, scene.NOW + 1000)
NEWS = st.one_of(
    TIMES.map(lambda at: v.StateNews(replace(scene.state(), at=at))),
    st.integers(1, 400).map(lambda n: v.SnapshotNews(replace(scene.HEADS[n % 3], id=n))),
    st.integers(1, 400).map(lambda n: v.ChangeNews(change(n))),
    st.integers(1, 400).map(lambda n: v.EventNews(replace(scene.EVENTS[0], id=n))),
    st.builds(v.LinkNews, st.sampled_from(v.Link), st.text(max_size=3)),
    st.builds(v.GapNews, st.integers(1, 9)),
    st.just(v.PastNews({0: scene.points()}, scene.HEADS, (scene.CHANGE,), scene.EVENTS)),
    st.just(v.PastNews()),
    st.just(v.KnobsNews(scene.KNOBS.values, 41)),
)


@settings(max_examples=50)
@given(st.lists(st.tuples(NEWS, TIMES), max_size=30))
def test_in_any_order_news_change_no_earlier_view_and_leave_one_that_is_whole(
    story: list[tuple[v.News, float]],
) -> None:
    view = View()
    for item, now in story:
        before = repr(view)
        after = fold(view, item, now)
        assert repr(view) == before
        view = after
    assert len({head.id for head in view.snapshots}) == len(view.snapshots) <= 200
    assert len({one.version for one in view.changes}) == len(view.changes) <= 200
    assert len(view.marks) <= 200
    for points in view.points.values():
        slots = [int(p.at / v.SLOT_S) for p in points]
        assert slots == sorted(set(slots))
    assert view.age_s(scene.NOW) is None or (view.age_s(scene.NOW) or 0.0) >= 0


def test_what_is_kept_has_bounds() -> None:
    view = View()
    for n in range(250):
        view = told(
            v.SnapshotNews(replace(scene.HEADS[0], id=n)),
            v.ChangeNews(change(n)),
            v.EventNews(replace(scene.EVENTS[0], id=n)),
            view=view,
        )
    assert [len(kept) for kept in (view.snapshots, view.changes, view.events, view.marks)] == [200] * 4
    assert (view.snapshots[0].id, view.changes[0].version, view.events[0].id) == (249, 249, 249)


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
