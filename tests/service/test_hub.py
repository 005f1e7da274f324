"""News: ids that grow, bounded queues, and a count of what was left out."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from service_fakes import until

from gpuwatch.service.hub import KEEP, QUEUE, Hub


def published(hub: Hub, count: int) -> None:
    for number in range(count):
        hub.publish("event", {"number": number})


def test_every_watcher_is_told_and_ids_grow() -> None:
    hub = Hub()
    one, two = hub.join(), hub.join()
    published(hub, 3)
    hub.leave(two)
    published(hub, 1)
    assert [news.id for news in one.take()[0]] == [1, 2, 3, 4]
    assert [news.id for news in two.take()[0]] == [1, 2, 3]
    assert one.take() == ((), 0)
    assert hub.watchers == 1
    hub.leave(two)


def test_a_slow_watcher_is_bounded_and_told_how_much_it_missed() -> None:
    hub = Hub()
    watcher = hub.join()
    published(hub, QUEUE + 7)
    news, left_out = watcher.take()
    assert (len(news), left_out) == (QUEUE, 7)
    published(hub, 1)
    assert watcher.take()[1] == 0


@given(st.integers(0, 3 * KEEP), st.integers(0, 4 * KEEP))
def test_who_comes_back_gets_all_it_missed_or_its_count(told: int, last_id: int) -> None:
    hub = Hub()
    published(hub, told)
    news, left_out = hub.join(last_id).take()
    missed = told - last_id if last_id <= told else told  # an id of an earlier life: all of this one's are news
    assert len(news) + left_out == missed
    ids = [one.id for one in news]
    assert ids == sorted(set(ids))


@pytest.mark.anyio
async def test_waiting_ends_with_news_or_with_its_time() -> None:
    hub = Hub()
    watcher = hub.join()
    await watcher.wait(0.0)
    waiting = asyncio.ensure_future(watcher.wait(1000.0))
    await asyncio.sleep(0)
    published(hub, 1)
    await waiting
    assert len(watcher.take()[0]) == 1
    again = asyncio.ensure_future(watcher.wait(1000.0))
    await asyncio.sleep(0)
    assert not again.done()
    published(hub, 1)
    await until(again.done)
