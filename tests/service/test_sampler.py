"""The heartbeat lives through whatever a driver does."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from service_fakes import FakeDevice, until

from gpuwatch.service.gpu.base import DeviceLost
from gpuwatch.service.sampler import Sampler
from gpuwatch.storage.records import Reading

pytestmark = pytest.mark.anyio


class Sink:
    def __init__(self) -> None:
        self.readings: dict[int, int] = {}
        self.lags_ms: list[float] = []
        self.losses: list[tuple[int, str]] = []

    def reading(self, reading: Reading, loop_lag_ms: float) -> None:
        self.readings[reading.gpu] = self.readings.get(reading.gpu, 0) + 1
        self.lags_ms.append(loop_lag_ms)

    def lost(self, gpu: int, why: str) -> None:
        self.losses.append((gpu, why))

    def count(self, gpu: int = 0) -> int:
        return self.readings.get(gpu, 0)


@asynccontextmanager
async def sampling(sink: Sink, *cards: FakeDevice, interval_s: float = 0.001) -> AsyncIterator[Sampler]:
    sampler = Sampler(
        {card.info.index: card for card in cards},
        sink,
        interval_s=lambda: interval_s,
        clock=time.monotonic,
        loop=asyncio.get_running_loop(),
    )
    sampler.start()
    try:
        yield sampler
    finally:
        for card in cards:
            card.may_read.set()
        await asyncio.to_thread(sampler.stop)


async def test_readings_keep_coming_with_the_loops_lag() -> None:
    sink = Sink()
    async with sampling(sink, FakeDevice()) as sampler:
        await until(lambda: sink.count() > 3)
    assert all(lag >= 0 for lag in sink.lags_ms)
    assert not any(thread.is_alive() for thread in sampler._threads)


async def test_a_card_whose_driver_hangs_holds_up_no_other() -> None:
    hung, well = FakeDevice(0), FakeDevice(1)
    hung.may_read.clear()
    sink = Sink()
    async with sampling(sink, hung, well):
        await until(lambda: sink.count(1) > 5)
        assert sink.count(0) == 0
        hung.may_read.set()
        await until(lambda: sink.count(0) > 0)


async def test_a_lost_card_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    card, sink = FakeDevice(), Sink()
    card.trouble = DeviceLost("fell off the bus")
    with caplog.at_level(logging.WARNING):
        async with sampling(sink, card):
            await until(lambda: len(sink.losses) > 3)
            assert sink.losses[0] == (0, "fell off the bus")
            card.trouble = None
            await until(lambda: sink.count() > 0)
    assert [record.getMessage() for record in caplog.records] == ["GPU0 cannot be read: fell off the bus"]


async def test_an_error_is_logged_once_a_change_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    card, sink = FakeDevice(), Sink()
    with caplog.at_level(logging.WARNING):
        async with sampling(sink, card):
            await until(lambda: sink.count() > 1)
            for trouble in (ValueError("one"), KeyError("two"), None, ValueError("one")):
                card.trouble = trouble
                card.tried = 0
                await until(lambda: card.tried > 3)
    assert [record.getMessage() for record in caplog.records] == [
        "GPU0 cannot be read: ValueError: one",
        "GPU0 cannot be read: KeyError: 'two'",
        "GPU0 cannot be read: ValueError: one",
    ]
    assert sink.losses == []


async def test_a_card_that_states_no_memory_gives_no_reading() -> None:
    card, sink = FakeDevice(total_bytes=0), Sink()
    async with sampling(sink, card):
        await until(lambda: card.tried > 3)
    assert sink.readings == {}


async def test_a_long_interval_is_not_waited_out_when_it_is_turned() -> None:
    card, sink = FakeDevice(), Sink()
    async with sampling(sink, card, interval_s=1000.0) as sampler:
        await until(lambda: sink.count() == 1)
        sampler.hurry()
        await until(lambda: sink.count() == 2)


async def test_a_hanging_driver_does_not_keep_the_sampler_from_stopping() -> None:
    card, sink = FakeDevice(), Sink()
    card.may_read.clear()
    sampler = Sampler({0: card}, sink, interval_s=lambda: 0.001, clock=time.monotonic, loop=asyncio.get_running_loop())
    sampler.start()
    await until(lambda: card.tried > 0)
    await asyncio.to_thread(sampler.stop)
    assert sink.count() == 0
    card.may_read.set()


def test_a_loop_that_is_closed_ends_the_beat() -> None:
    card, sink = FakeDevice(), Sink()
    loop = asyncio.new_event_loop()
    loop.close()
    sampler = Sampler({0: card}, sink, interval_s=lambda: 0.0, clock=time.monotonic, loop=loop)
    sampler.start()
    sampler.join()
    assert card.reads == 1
