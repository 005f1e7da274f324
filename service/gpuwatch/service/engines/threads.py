"""Blocking work on threads of our own.

Rules: admission bounds how much runs, so a granted run always finds a thread at once: an idle one, else a new one. Idle
threads end by themselves. Threads are daemons: a hung call must not keep the process from ending. What the work raised
comes back as a value without its traceback, whose frames would keep the run's tensors alive.
"""

import asyncio
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
_IDLE_S: Final = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The work's value."""

    value: T


@dataclass(frozen=True, slots=True)
class Failed:
    """What the work raised: the exception without its traceback, and the traceback's text."""

    error: BaseException
    text: str


class ThreadEngine:
    """Runs each call on a thread of its own. ``most`` bounds the threads where admission does not."""

    def __init__(self, name: str, *, most: int | None = None) -> None:
        self._name = name
        self._most = most
        self._changed = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._threads = 0
        self._closed = False

    @property
    def threads(self) -> int:
        """Count the threads alive."""
        return self._threads

    def submit(self, work: Callable[[], T], ended: Callable[[Done[T] | Failed], Any]) -> None:
        """Run ``work`` on a thread; ``ended`` is called on that thread when it has really ended."""
        with self._changed:
            if self._closed:
                raise RuntimeError(f"engine {self._name} is closed")
            self._tasks.append(lambda: ended(_outcome(work)))
            if self._idle >= len(self._tasks) or (self._most is not None and self._threads >= self._most):
                self._changed.notify()
                return
            self._threads += 1
        threading.Thread(target=self._serve, name=f"gpuwatch-{self._name}", daemon=True).start()

    async def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` on a thread and give its value or raise what it raised; on an event loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Done[T] | Failed] = loop.create_future()

        def hand_over(result: Done[T] | Failed) -> None:
            loop.call_soon_threadsafe(_resolve, answer, result)

        self.submit(work, hand_over)
        result = await answer
        if isinstance(result, Failed):
            raise result.error
        return result.value

    def close(self) -> None:
        """Let idle threads end; those at work end after it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                found = self._changed.wait_for(lambda: self._tasks or self._closed, timeout=_IDLE_S)
                self._idle -= 1
                if not found or not self._tasks:
                    self._threads -= 1
                    return
                task = self._tasks.popleft()
            try:
                task()
            except Exception:  # noqa: BLE001 - the receiver's fault (a closed loop), not the work's: live on
                _log.exception("a result could not be handed over")
            del task


def _resolve(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _outcome(work: Callable[[], T]) -> Done[T] | Failed:
    try:
        return Done(work())
    except BaseException as error:  # noqa: BLE001 - a model may raise anything; none of it may leak a slot
        failed = Failed(error, "".join(traceback.format_exception(error)))
    _let_go(failed.error)
    return failed


def _let_go(error: BaseException) -> None:
    """Drop the frames that an exception and those behind it keep alive, and with them the run's tensors."""
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if one.__traceback__ is not None:
            traceback.clear_frames(one.__traceback__)
            one.__traceback__ = None
        chain += [one.__cause__, one.__context__]
