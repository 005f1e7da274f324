"""What the engine promises: every way out of the work comes back as a value, and nothing of it is kept alive."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from service_fakes import PATIENCE_S, Held, until

from gpuwatch.service.engines.threads import Done, Failed, ThreadEngine


class Tensor:
    """Something whose life can be followed."""


class Evil(Exception):
    """An exception that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]  # evil on purpose
        raise RuntimeError("no notes either")


def outcome_of(engine: ThreadEngine, work: Callable[[], Any]) -> Done[Any] | Failed:
    ended = threading.Event()
    outcomes: list[Done[Any] | Failed] = []

    def take(result: Done[Any] | Failed) -> None:
        outcomes.append(result)
        ended.set()

    engine.submit(work, take)
    assert ended.wait(PATIENCE_S)
    assert len(outcomes) == 1
    return outcomes[0]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        BaseException("x"),
        KeyboardInterrupt(),
        SystemExit(3),
        GeneratorExit(),
        StopIteration(1),
        asyncio.CancelledError(),
        MemoryError(),
        Evil(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_is_raised_comes_back_and_the_thread_lives_on(error: BaseException) -> None:
    engine = ThreadEngine("test")

    def work() -> None:
        raise error

    failed = outcome_of(engine, work)
    assert isinstance(failed, Failed)
    assert failed.error is error
    assert failed.error.__traceback__ is None
    assert type(error).__name__ in failed.text
    assert outcome_of(engine, lambda: 5) == Done(5)
    assert engine.threads == 1
    engine.close()


def raised_with(tensor: Tensor, how: Callable[[Tensor], None]) -> tuple[Failed, "weakref.ref[Tensor]"]:
    engine = ThreadEngine("test")
    failed = outcome_of(engine, lambda: how(tensor))
    engine.close()
    assert isinstance(failed, Failed)
    return failed, weakref.ref(tensor)


def plainly(tensor: Tensor) -> None:
    held = [tensor]
    raise ValueError(len(held))


def while_handling(tensor: Tensor) -> None:
    try:
        plainly(tensor)
    except ValueError:
        raise KeyError("second") from None


def because_of(tensor: Tensor) -> None:
    try:
        plainly(tensor)
    except ValueError as error:
        raise KeyError("second") from error


def in_a_group(tensor: Tensor) -> None:
    errors: list[Exception] = []
    try:
        plainly(tensor)
    except ValueError as error:
        errors.append(error)
    raise BaseExceptionGroup("several", [BaseExceptionGroup("inner", errors)])  # no context leads to what lies in it


@pytest.mark.parametrize("how", [plainly, while_handling, because_of, in_a_group])
def test_what_the_work_held_is_let_go_though_its_error_is_kept(how: Callable[[Tensor], None]) -> None:
    gc.disable()  # the collector must not be what frees it: it may come minutes later
    try:
        failed, alive = raised_with(Tensor(), how)
        assert alive() is None
        assert failed.text
    finally:
        gc.enable()


def test_a_value_that_was_given_is_not_kept_by_an_idle_thread() -> None:
    engine = ThreadEngine("test")
    payload = Tensor()
    alive = weakref.ref(payload)
    outcome = outcome_of(engine, lambda payload=payload: payload)  # type: ignore[misc]  # a default binds it now
    assert isinstance(outcome, Done)
    del outcome, payload
    # The thread itself lets go a moment after it has handed over: a second task is proof that it has.
    outcome_of(engine, lambda: None)
    assert alive() is None
    engine.close()


@pytest.mark.anyio
async def test_threads_grow_with_need_are_used_again_and_end_when_closed() -> None:
    engine = ThreadEngine("test")
    held = Held()
    calls = [asyncio.ensure_future(engine.call(held)) for _ in range(7)]
    await held.has_begun(7)
    assert engine.threads == 7
    held.go.set()
    await asyncio.gather(*calls)
    for _ in range(20):
        await engine.call(lambda: None)
    assert engine.threads == 7
    engine.close()
    await until(lambda: engine.threads == 0)
    with pytest.raises(RuntimeError, match="closed"):
        await engine.call(lambda: None)


@pytest.mark.anyio
async def test_two_that_come_at_once_do_not_share_the_one_idle_thread() -> None:
    engine = ThreadEngine("test")
    await engine.call(lambda: None)
    held = Held()
    calls = [asyncio.ensure_future(engine.call(held)) for _ in range(2)]
    await held.has_begun(2)
    held.go.set()
    await asyncio.gather(*calls)
    assert engine.threads == 2
    engine.close()


@pytest.mark.anyio
async def test_idle_threads_end_by_themselves() -> None:
    engine = ThreadEngine("test", idle_s=0.01)
    await engine.call(lambda: None)
    await until(lambda: engine.threads == 0)
    assert await engine.call(lambda: 4) == 4
    engine.close()


@pytest.mark.anyio
async def test_no_more_threads_than_the_bound_and_the_rest_waits_in_order() -> None:
    engine = ThreadEngine("test", most=2)
    held = Held()
    order: list[int] = []
    calls = [asyncio.ensure_future(engine.call(held)) for _ in range(2)]
    await held.has_begun(2)
    calls += [asyncio.ensure_future(engine.call(lambda number=number: order.append(number))) for number in range(50)]  # type: ignore[misc]  # a default binds it now
    await asyncio.sleep(0)
    assert engine.threads == 2
    assert order == []
    held.go.set()
    await asyncio.gather(*calls)
    assert sorted(order) == list(range(50))
    assert engine.threads == 2
    engine.close()


@pytest.mark.anyio
async def test_work_already_begun_ends_after_the_engine_is_closed() -> None:
    engine = ThreadEngine("test")
    held = Held()
    call = asyncio.ensure_future(engine.call(held))
    await held.has_begun()
    engine.close()
    held.go.set()
    await call
    await until(lambda: engine.threads == 0)


@pytest.mark.anyio
async def test_a_call_that_is_cancelled_takes_its_late_value_quietly() -> None:
    engine = ThreadEngine("test")
    held = Held()
    call = asyncio.ensure_future(engine.call(held))
    await held.has_begun()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    held.go.set()
    assert await engine.call(lambda: 1) == 1
    engine.close()


@pytest.mark.anyio
async def test_an_outcome_is_a_value_even_of_what_would_end_the_event_loop() -> None:
    engine = ThreadEngine("test")

    def leave() -> None:
        raise SystemExit(1)

    assert isinstance(await engine.outcome(leave), Failed)
    assert await engine.outcome(lambda: 2) == Done(2)
    engine.close()


def test_a_receiver_that_raises_costs_no_thread() -> None:
    engine = ThreadEngine("test")

    def refuse(_result: object) -> None:
        raise RuntimeError("the loop is closed")

    engine.submit(lambda: None, refuse)
    assert outcome_of(engine, lambda: 1) == Done(1)
    engine.close()


def test_work_that_found_no_thread_never_runs() -> None:
    ran: list[int] = []
    spawned: list[Callable[[], None]] = []
    full = True

    def spawn(serve: Callable[[], None]) -> None:
        if full:
            raise RuntimeError("can't start new thread")
        spawned.append(serve)
        threading.Thread(target=serve, daemon=True).start()

    engine = ThreadEngine("test", spawn=spawn)
    with pytest.raises(RuntimeError, match="new thread"):
        engine.submit(lambda: ran.append(1), lambda _result: None)
    assert engine.threads == 0
    full = False
    assert outcome_of(engine, lambda: ran.append(2)) == Done(None)
    assert ran == [2]
    assert len(spawned) == 1
    engine.close()


def test_work_waits_for_an_idle_thread_that_the_bound_allows_though_no_new_one_starts() -> None:
    engine = ThreadEngine("test", most=1)
    assert outcome_of(engine, lambda: 1) == Done(1)
    assert outcome_of(engine, lambda: 2) == Done(2)
    assert engine.threads == 1
    engine.close()
