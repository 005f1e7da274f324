"""A model of torch's caching allocator on one device: rounds, splits, caches, fragments and runs out as it does.

Rules: pure; it holds no memory, only the book of who would hold which bytes. Sizes are bytes. What the driver can give
is ``capacity_bytes``, which the owner may turn at any time: the driver gives a segment when all segments together stay
within it.

Theory, from torch's ``c10/cuda/CUDACachingAllocator.cpp`` (``round_size``, ``get_pool``, ``get_allocation_size``,
``get_free_block``, ``should_split``, ``alloc_block``, ``release_cached_blocks``, ``try_merge_blocks``), default
settings and one stream:

- a request is rounded up to 512 B; up to 1 MiB it belongs to the small pool, above to the large one;
- the smallest free block of the pool that holds it is taken, at equal size the one with the lowest address;
- else the driver is asked for a segment: 2 MiB for the small pool, 20 MiB below 10 MiB, else the size rounded up to
  2 MiB. If it has none, every cached block that is a whole segment goes back to the driver and it is asked once more
  (``num_alloc_retries``); then the device is out of memory (``num_ooms``);
- a block is split when the rest is at least 512 B (small pool) or more than 1 MiB (large pool);
- a freed block merges with its free neighbours; a segment goes back only when nothing in it is allocated.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import NewType

KIB = 1024
MIB = 1024 * KIB
MIN_BLOCK_BYTES = 512
SMALL_BYTES = MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
MIN_LARGE_BYTES = 10 * MIB
ROUND_LARGE_BYTES = 2 * MIB

Handle = NewType("Handle", int)
"""Names one allocation. Never used twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorStatistics:
    """What the allocator holds, named as in ``torch.cuda.memory_stats()``.

    ``reserved_bytes`` = ``allocated_bytes`` + free blocks. ``inactive_split_bytes`` are free blocks of segments that
    are partly allocated: `CachingAllocator.empty_cache` cannot give them back. Peaks are over the whole life.
    """

    reserved_bytes: int = 0
    allocated_bytes: int = 0
    inactive_split_bytes: int = 0
    largest_free_block_bytes: int = 0
    num_alloc_retries: int = 0
    num_ooms: int = 0
    reserved_peak_bytes: int = 0
    allocated_peak_bytes: int = 0

    @property
    def fragmentation_ratio(self) -> float | None:
        """1 - largest free block / all free blocks: 0 when they are one, ``None`` when nothing is cached."""
        free = self.reserved_bytes - self.allocated_bytes
        return 1 - self.largest_free_block_bytes / free if free else None


class AllocatorFull(Exception):
    """No block and no segment can be had. Every allocation stands as before; what was cached whole has gone back.

    ``segment_bytes`` is what the driver was asked for (torch's "Tried to allocate"), ``requested_bytes`` the caller's
    own figure, ``statistics`` the state right after.
    """

    def __init__(self, requested_bytes: int, segment_bytes: int, statistics: AllocatorStatistics) -> None:
        super().__init__(f"no room for a segment of {segment_bytes} bytes ({requested_bytes} requested)")
        self.requested_bytes = requested_bytes
        self.segment_bytes = segment_bytes
        self.statistics = statistics


class NotAllocated(ValueError):
    """The handle names no live allocation: freed before, or never given. Nothing has changed."""


def round_size(size_bytes: int) -> int:
    """Bytes that a request of ``size_bytes`` takes from a block: the next multiple of 512; 0 takes none."""
    return -(-size_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def segment_size(rounded_bytes: int) -> int:
    """Bytes of the segment that is asked of the driver for a rounded request."""
    if rounded_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded_bytes < MIN_LARGE_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-rounded_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


class _Pool:
    """Free blocks of one kind, sorted by (size, address)."""

    __slots__ = ("free", "min_rest_bytes")

    def __init__(self, *, min_rest_bytes: int) -> None:
        self.free: list[tuple[int, int, _Block]] = []
        self.min_rest_bytes = min_rest_bytes

    def put(self, block: "_Block") -> None:
        insort(self.free, (block.size_bytes, block.address, block))

    def drop(self, block: "_Block") -> None:
        del self.free[bisect_left(self.free, (block.size_bytes, block.address))]

    def take(self, size_bytes: int) -> "_Block | None":
        """Take the best fit out, if there is one."""
        at = bisect_left(self.free, (size_bytes,))
        return self.free.pop(at)[2] if at < len(self.free) else None


class _Block:
    """A stretch of one segment; ``before`` and ``after`` are its neighbours in the segment."""

    __slots__ = ("address", "after", "allocated", "before", "pool", "requested_bytes", "size_bytes")

    def __init__(self, pool: _Pool, address: int, size_bytes: int) -> None:
        self.pool = pool
        self.address = address
        self.size_bytes = size_bytes
        self.requested_bytes = 0
        self.allocated = False
        self.before: _Block | None = None
        self.after: _Block | None = None

    @property
    def is_split(self) -> bool:
        return self.before is not None or self.after is not None


class CachingAllocator:
    """The book of one device. ``capacity_bytes`` bounds all segments together; ``None``: the driver always gives."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self._small = _Pool(min_rest_bytes=MIN_BLOCK_BYTES)
        self._large = _Pool(min_rest_bytes=SMALL_BYTES + 1)
        self._live: dict[Handle, _Block | None] = {}
        self._next_handle = 1
        self._next_address = 0
        self._reserved_bytes = self._reserved_peak_bytes = 0
        self._allocated_bytes = self._allocated_peak_bytes = 0
        self._num_alloc_retries = self._num_ooms = 0

    def allocate(self, size_bytes: int) -> Handle:
        """Allocate; 0 bytes cost nothing. Raises `AllocatorFull`, or `ValueError` for a negative size."""
        if size_bytes < 0:
            raise ValueError(f"a size cannot be negative: {size_bytes}")
        block = self._found(size_bytes) if size_bytes else None
        handle = Handle(self._next_handle)
        self._next_handle += 1
        self._live[handle] = block
        return handle

    def free(self, handle: Handle) -> None:
        """End an allocation; its block stays cached. Raises `NotAllocated`."""
        try:
            block = self._live.pop(handle)
        except KeyError:
            raise NotAllocated(f"{handle} names no live allocation") from None
        if block is None:
            return
        block.allocated = False
        block.requested_bytes = 0
        self._allocated_bytes -= block.size_bytes
        before, after = block.before, block.after
        if after is not None and not after.allocated:
            block.pool.drop(after)
            _absorb(block, after)
        if before is not None and not before.allocated:
            block.pool.drop(before)
            _absorb(before, block)
            block = before
        block.pool.put(block)

    def empty_cache(self) -> int:
        """Give every cached block that is a whole segment back to the driver; says how many bytes."""
        given = 0
        for pool in (self._small, self._large):
            given += sum(size for size, _, block in pool.free if not block.is_split)
            pool.free = [entry for entry in pool.free if entry[2].is_split]
        self._reserved_bytes -= given
        return given

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments."""
        return self._reserved_bytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all allocated blocks."""
        return self._allocated_bytes

    def statistics(self) -> AllocatorStatistics:
        """Give the figures as they are now; looks at every free block."""
        pools = (self._small, self._large)
        return AllocatorStatistics(
            reserved_bytes=self._reserved_bytes,
            allocated_bytes=self._allocated_bytes,
            inactive_split_bytes=sum(size for pool in pools for size, _, block in pool.free if block.is_split),
            largest_free_block_bytes=max((pool.free[-1][0] for pool in pools if pool.free), default=0),
            num_alloc_retries=self._num_alloc_retries,
            num_ooms=self._num_ooms,
            reserved_peak_bytes=self._reserved_peak_bytes,
            allocated_peak_bytes=self._allocated_peak_bytes,
        )

    def _found(self, size_bytes: int) -> _Block:
        rounded = round_size(size_bytes)
        pool = self._small if rounded <= SMALL_BYTES else self._large
        block = pool.take(rounded) or self._segment(pool, rounded, size_bytes)
        rest_bytes = block.size_bytes - rounded
        if rest_bytes >= pool.min_rest_bytes:
            rest = _Block(pool, block.address + rounded, rest_bytes)
            rest.before, rest.after = block, block.after
            if rest.after is not None:
                rest.after.before = rest
            block.after = rest
            block.size_bytes = rounded
            pool.put(rest)
        block.allocated = True
        block.requested_bytes = size_bytes
        self._allocated_bytes += block.size_bytes
        self._allocated_peak_bytes = max(self._allocated_peak_bytes, self._allocated_bytes)
        return block

    def _segment(self, pool: _Pool, rounded_bytes: int, requested_bytes: int) -> _Block:
        size_bytes = segment_size(rounded_bytes)
        if not self._driver_gives(size_bytes):
            self.empty_cache()
            self._num_alloc_retries += 1
            if not self._driver_gives(size_bytes):
                self._num_ooms += 1
                raise AllocatorFull(requested_bytes, size_bytes, self.statistics())
        block = _Block(pool, self._next_address, size_bytes)
        self._next_address += size_bytes
        self._reserved_bytes += size_bytes
        self._reserved_peak_bytes = max(self._reserved_peak_bytes, self._reserved_bytes)
        return block

    def _driver_gives(self, size_bytes: int) -> bool:
        return self.capacity_bytes is None or self._reserved_bytes + size_bytes <= self.capacity_bytes


def _absorb(block: _Block, after: _Block) -> None:
    """Make ``after`` part of ``block``, its neighbour."""
    block.size_bytes += after.size_bytes
    block.after = after.after
    if block.after is not None:
        block.after.before = block
