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


@dataclass(frozen=True, slots=True, eq=False)
class _Task(Generic[T]):
    """Work that waits for its thread."""

    work: Callable[[], T]
    ended: Callable[[Done[T] | Failed], Any]

    def __call__(self) -> None:
        self.ended(_outcome(self.work))


class ThreadEngine:
    """Runs each call on a thread of its own. ``most`` bounds the threads where admission does not.

    ``spawn`` runs its argument on a new thread; threads that were idle for ``idle_s`` seconds end.
    """

    def __init__(
        self,
        name: str,
        *,
        most: int | None = None,
        idle_s: float = _IDLE_S,
        spawn: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._name = name
        self._most = most
        self._idle_s = idle_s
        self._spawn = spawn or self._start_thread
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
        """Run ``work`` on a thread; ``ended`` is called on that thread when it has really ended.

        Raises `RuntimeError` where there is no thread to be had; the work never runs then.
        """
        task = _Task(work, ended)
        with self._changed:
            if self._closed:
                raise RuntimeError(f"engine {self._name} is closed")
            self._tasks.append(task)
            if self._idle >= len(self._tasks) or (self._most is not None and self._threads >= self._most):
                self._changed.notify()
                return
            self._threads += 1
        try:
            self._spawn(self._serve)
        except BaseException:
            with self._changed:
                self._threads -= 1
                if task not in self._tasks:
                    return  # a thread that came free has taken it meanwhile
                self._tasks.remove(task)
            raise

    def _start_thread(self, serve: Callable[[], None]) -> None:
        threading.Thread(target=serve, name=f"gpuwatch-{self._name}", daemon=True).start()

    async def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` on a thread and give its value or raise what it raised; on an event loop.

        For work of our own: what a model raises could end the loop (`SystemExit`) or look like a cancelled wait.
        """
        result = await self.outcome(work)
        if isinstance(result, Failed):
            raise result.error
        return result.value

    async def outcome(self, work: Callable[[], T]) -> Done[T] | Failed:
        """Run ``work`` on a thread and give what became of it; on an event loop."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Done[T] | Failed] = loop.create_future()

        def hand_over(result: Done[T] | Failed) -> None:
            loop.call_soon_threadsafe(_resolve, answer, result)

        self.submit(work, hand_over)
        return await answer

    def close(self) -> None:
        """Let idle threads end; those at work end after it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                found = self._changed.wait_for(lambda: self._tasks or self._closed, timeout=self._idle_s)
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
        failed = Failed(error, _text(error))
    _let_go(failed.error)
    return failed


def _text(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - its own methods may raise anything; the outcome must go out all the same
        return f"{type(error).__name__}, whose text cannot be had"


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
        if isinstance(one, BaseExceptionGroup):
            chain += one.exceptions
