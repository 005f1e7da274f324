"""Follows every tensor storage that a thread creates, so that a card can be charged for it.

Rules: one `StorageTracker` a run, active on the thread that entered it; one `StorageBook` a card, shared by all runs. A
storage is charged once, however many tensors look at it, when it first comes out of an operation, and given back when
it ends, during the run or long after (results, weights). Sizes are bytes.

A storage's end may be noticed anywhere: in the middle of the book's own work, or in another thread, by the garbage
collector. So the weak reference's callback is ``deque.append`` itself, and nothing else; `StorageBook.settle` empties
the deque later, under the book's lock: before each allocation, when somebody looks, and when a run ends.

Seen: whatever goes through torch's dispatcher on this thread, also inside ``no_grad`` and ``inference_mode``. Under
``inference_mode`` composite operations (``linear``, ``matmul``) arrive whole; they are taken apart here, so that what
they create inside is seen as well. Inputs: ``torch.tensor``, ``torch.as_tensor`` and (from torch 2.13 at the latest)
``torch.from_numpy`` announce themselves; whatever else was made outside (``torch.frombuffer``, a tensor from before
the run) is charged when ``.to(…)`` moves it, also where source and target are the same memory and nothing is copied,
since on a card it would be. Outside ``inference_mode`` such a move never reaches the dispatcher: `Moves` sees it.

Not seen: storages from before the run that are only read, looked at or written in place; scratch buffers inside a
kernel; what other threads create; the gap between ``UntypedStorage.resize_`` and the next operation on that storage.
``.cpu()`` copies nothing here, so a result stays charged until its last tensor ends. Sparse and meta tensors hold no
storage that could be charged.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ROUND_BYTES: Final = 512
_Operator = Any  # torch gives its operators, and what goes in and out of them, no public type
_Values = Any
_COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - torch has no public name for it


def rounded(size_bytes: int) -> int:
    """Bytes that a storage of ``size_bytes`` takes on a card: the next multiple of 512."""
    return -(-size_bytes // ROUND_BYTES) * ROUND_BYTES


class _Held(weakref.ref[torch.UntypedStorage]):
    """A storage that is charged for: when it ends, this object is appended to the book's deque."""

    __slots__ = ("handle", "key", "owner", "size_bytes")
    size_bytes: int
    handle: int
    key: int
    owner: "StorageTracker"


class StorageBook:
    """Which storages are charged to one card, whichever run created them. Safe from any thread.

    ``allocate(size_bytes)`` gives a handle or raises: what it raises comes out of the operation that created the
    storage. It is called without ``lock`` and must call `settle` with it, first. ``free(handle)`` is called with
    ``lock`` held and must not raise. Without the two, storages are only counted.
    """

    def __init__(self, allocate: Callable[[int], int] | None = None, free: Callable[[int], None] | None = None) -> None:
        self.lock = threading.Lock()
        self._allocate = allocate or self._count
        self._free = free
        self._held: dict[int, _Held] = {}
        self._ended: deque[_Held] = deque()

    def _count(self, size_bytes: int) -> int:
        with self.lock:
            self.settle()
        return size_bytes

    def settle(self) -> None:
        """Give back what storages that have ended held. The caller holds ``lock``."""
        while self._ended:
            held = self._ended.popleft()
            del self._held[held.key]
            self._return(held)

    def _return(self, held: _Held) -> None:
        held.owner.live_bytes -= rounded(held.size_bytes)
        if self._free is not None:
            self._free(held.handle)

    def charges(self, storage: torch.UntypedStorage) -> int | None:
        """Bytes that the book holds for ``storage``, ``None`` when it does not follow it."""
        held = self._held.get(id(storage))
        return held.size_bytes if held is not None and held() is storage else None

    def charge(self, storage: torch.UntypedStorage, owner: "StorageTracker") -> None:
        """Charge ``storage`` at its size now, in place of what it was charged before. Raises what ``allocate`` raises.

        As on a card, a storage that grows holds both places for a moment.
        """
        size_bytes = storage.nbytes()
        handle = self._allocate(size_bytes) if size_bytes else None
        with self.lock:
            self.settle()  # an entry under this id is now the storage's own, not that of one that had the id before it
            key = id(storage)
            before = self._held.pop(key, None)
            if handle is not None:
                held = _Held(storage, self._ended.append)
                held.key, held.size_bytes, held.handle, held.owner = key, size_bytes, handle, owner
                self._held[key] = held
                owner.live_bytes += rounded(size_bytes)
                owner.peak_bytes = max(owner.peak_bytes, owner.live_bytes)
            if before is not None:
                self._return(before)


class _Traits:
    """What has to be known of an operator, looked up once."""

    __slots__ = ("composite", "moves", "mutates")

    def __init__(self, func: _Operator) -> None:
        name = func.name()
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - as torch's own modes ask
        self.composite: bool = has_kernel(name, _COMPOSITE) and not has_kernel(name, "CPU")
        self.moves: bool = name.partition(".")[0] in {"aten::to", "aten::lift_fresh"}
        self.mutates: bool = func._schema.is_mutable  # noqa: SLF001 - as torch's own modes ask


_traits: dict[_Operator, _Traits] = {}


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook for subclasses is untyped
    """Charges every storage that the thread inside ``with`` creates to ``book``; without one, it only counts.

    ``live_bytes`` is what is alive of it as of the last `StorageBook.settle`, each storage rounded up to 512 bytes;
    ``peak_bytes`` is its largest value. Both may be read at any time, also after the run.
    """

    def __init__(self, book: StorageBook | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own constructor is untyped
        self.book = book or StorageBook()
        self.live_bytes = 0
        self.peak_bytes = 0

    def __torch_dispatch__(
        self, func: _Operator, types: _Values, args: Sequence[_Values] = (), kwargs: Mapping[str, _Values] | None = None
    ) -> _Values:
        kwargs = kwargs or {}
        traits = _traits.get(func) or _traits.setdefault(func, _Traits(func))
        if traits.composite:
            with self:
                out = func._op_dk(_COMPOSITE, *args, **kwargs)  # noqa: SLF001 - OpOverload.decompose would take Python's
                # decompositions, which build bilinear interpolation out of arithmetic that no card runs
            if traits.moves:
                self.adopt(out)
            return out
        before = {id(s): s.nbytes() for s in _storages(args, kwargs)} if traits.mutates else None
        out = func(*args, **kwargs)
        for storage in _storages(out):
            size_bytes = storage.nbytes()
            charged = self.book.charges(storage)
            if charged is not None:
                fresh = charged != size_bytes
            elif before is not None:
                fresh = before.get(id(storage)) != size_bytes
            else:
                fresh = size_bytes > 0 and (traits.moves or not any(storage is s for s in _storages(args, kwargs)))
            if fresh:
                self.book.charge(storage, self)
        return out

    def adopt(self, value: object) -> None:
        """Charge the storages of ``value`` (tensors, also in lists, tuples and dicts) that are not followed yet."""
        for storage in _storages(value):
            if self.book.charges(storage) is None:
                self.book.charge(storage, self)


class Moves(TorchFunctionMode):
    """Shows ``tracker`` the tensors that ``Tensor.to`` moves outside ``inference_mode``, where the dispatcher does not.

    It sees every call of torch's Python functions, so it is for loading weights, not for runs.
    """

    def __init__(self, tracker: StorageTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_function__(
        self, func: _Operator, types: _Values, args: Sequence[_Values] = (), kwargs: Mapping[str, _Values] | None = None
    ) -> _Values:
        out = func(*args, **(kwargs or {}))
        if func is torch.Tensor.to:
            self._tracker.adopt(out)
        return out


def _storages(*values: object) -> list[torch.UntypedStorage]:
    """List the storages of all tensors in ``values`` (also in lists, tuples and dicts) that can hold memory."""
    found: list[torch.UntypedStorage] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout is torch.strided and not value.is_meta:
                found.append(value.untyped_storage())
        elif isinstance(value, list | tuple):
            found += _storages(*value)
        elif isinstance(value, dict) and value:
            found += _storages(*value.values())
    return found
