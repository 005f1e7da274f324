"""The allocator model keeps torch's figures, loses no byte, and runs out where torch would."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpuwatch.service.core.allocator import (
    MIB,
    AllocatorFull,
    AllocatorStatistics,
    CachingAllocator,
    Handle,
    NotAllocated,
    _Block,
    round_size,
    segment_size,
)

KIB = 1024


def free_blocks(allocator: CachingAllocator) -> list[_Block]:
    return [block for pool in (allocator._small, allocator._large) for _, _, block in pool.free]


def live_blocks(allocator: CachingAllocator) -> list[_Block]:
    return [block for block in allocator._live.values() if block is not None]


def segments_of(allocator: CachingAllocator) -> list[list[_Block]]:
    """Every segment as its chain of blocks, found from the blocks that have none before them."""
    chains = []
    for first in (block for block in free_blocks(allocator) + live_blocks(allocator) if block.before is None):
        chain = [first]
        while chain[-1].after is not None:
            chain.append(chain[-1].after)
        chains.append(chain)
    return chains


@pytest.mark.parametrize(
    ("size_bytes", "allocated_bytes", "reserved_bytes"),
    [
        (0, 0, 0),
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB - 511, 10 * MIB, 10 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),  # the rest, just under 2 MiB, is split off
        (11 * MIB, 12 * MIB, 12 * MIB),  # a rest of exactly 1 MiB is not
        (21 * MIB, 22 * MIB, 22 * MIB),
    ],
)
def test_a_first_request_takes_what_torch_takes(size_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
    allocator = CachingAllocator()
    allocator.allocate(size_bytes)
    held = allocator.statistics()
    assert (held.allocated_bytes, held.reserved_bytes) == (allocated_bytes, reserved_bytes)


def test_a_large_rest_is_split_off_only_above_one_mib() -> None:
    allocator = CachingAllocator()
    allocator.allocate(19 * MIB - 512)  # a segment of 20 MiB, a rest of 1 MiB + 512
    assert allocator.statistics().inactive_split_bytes == MIB + 512
    allocator.allocate(19 * MIB)  # a rest of 1 MiB
    assert allocator.statistics().inactive_split_bytes == MIB + 512
    assert allocator.allocated_bytes == 19 * MIB - 512 + 20 * MIB


def test_a_small_rest_is_split_off_from_512_bytes_on() -> None:
    allocator = CachingAllocator()
    allocator.allocate(MIB)
    allocator.allocate(MIB - 512)
    held = allocator.statistics()
    assert (held.reserved_bytes, held.inactive_split_bytes, held.largest_free_block_bytes) == (2 * MIB, 512, 512)


def test_small_requests_share_a_segment_and_never_enter_a_large_one() -> None:
    allocator = CachingAllocator()
    allocator.allocate(2 * MIB)  # leaves 18 MiB of a large segment free
    allocator.allocate(MIB)
    allocator.allocate(MIB)
    assert allocator.reserved_bytes == 22 * MIB
    allocator.allocate(512)
    assert allocator.reserved_bytes == 24 * MIB


def test_the_smallest_block_that_holds_it_is_taken_and_of_equals_the_lowest() -> None:
    allocator = CachingAllocator()
    handles = [allocator.allocate(size * MIB) for size in (30, 16, 40, 16)]
    for handle in handles:
        allocator.free(handle)
    taken = allocator._live[allocator.allocate(15 * MIB)]
    assert taken is not None
    assert (taken.size_bytes, taken.address) == (16 * MIB, 30 * MIB)


def test_a_freed_block_merges_with_both_neighbours() -> None:
    allocator = CachingAllocator()
    first, middle, last = (allocator.allocate(4 * MIB) for _ in range(3))
    allocator.free(first)
    allocator.free(last)
    assert allocator.statistics().largest_free_block_bytes == 16 * MIB - 4 * MIB
    allocator.free(middle)
    assert allocator.statistics() == AllocatorStatistics(
        reserved_bytes=20 * MIB,
        largest_free_block_bytes=20 * MIB,
        reserved_peak_bytes=20 * MIB,
        allocated_peak_bytes=12 * MIB,
    )


def test_a_miss_gives_cached_segments_back_and_tries_again() -> None:
    allocator = CachingAllocator(capacity_bytes=40 * MIB)
    allocator.free(allocator.allocate(20 * MIB))
    allocator.allocate(30 * MIB)
    held = allocator.statistics()
    assert (held.num_alloc_retries, held.num_ooms, held.reserved_bytes) == (1, 0, 30 * MIB)
    assert held.reserved_peak_bytes == 30 * MIB


def test_running_out_touches_no_allocation_and_says_what_was_asked() -> None:
    allocator = CachingAllocator(capacity_bytes=40 * MIB)
    kept = allocator.allocate(2 * MIB)
    allocator.free(allocator.allocate(12 * MIB))  # 18 MiB of the first segment are free: it comes out of these
    with pytest.raises(AllocatorFull) as caught:
        allocator.allocate(21 * MIB)
    assert caught.value.requested_bytes == 21 * MIB
    assert caught.value.segment_bytes == 22 * MIB
    held = allocator.statistics()
    assert caught.value.statistics == held
    assert (held.allocated_bytes, held.reserved_bytes) == (2 * MIB, 20 * MIB)
    assert (held.num_alloc_retries, held.num_ooms) == (1, 1)
    allocator.free(kept)
    allocator.allocate(21 * MIB)  # the segment is whole again and goes back: now there is room


def test_a_segment_that_is_partly_allocated_never_goes_back() -> None:
    allocator = CachingAllocator()
    first = allocator.allocate(4 * MIB)
    second = allocator.allocate(4 * MIB)
    allocator.free(first)
    assert allocator.empty_cache() == 0
    allocator.free(second)
    assert allocator.empty_cache() == 20 * MIB
    assert allocator.reserved_bytes == 0


def test_the_capacity_may_be_turned_while_it_runs() -> None:
    allocator = CachingAllocator(capacity_bytes=0)
    with pytest.raises(AllocatorFull):
        allocator.allocate(1)
    allocator.capacity_bytes = 2 * MIB
    allocator.allocate(1)
    allocator.capacity_bytes = 0  # below what is reserved: cached blocks still serve
    allocator.allocate(1)
    assert allocator.reserved_bytes == 2 * MIB


def test_fragmentation_is_the_share_of_free_bytes_outside_the_largest_block() -> None:
    allocator = CachingAllocator()
    assert allocator.statistics().fragmentation_ratio is None
    handles = [allocator.allocate(5 * MIB) for _ in range(4)]
    assert allocator.statistics().fragmentation_ratio is None
    allocator.free(handles[0])
    assert allocator.statistics().fragmentation_ratio == 0.0
    allocator.free(handles[2])
    assert allocator.statistics().fragmentation_ratio == 0.5


@pytest.mark.parametrize("size_bytes", [0, 512, 3 * MIB])
def test_freeing_twice_raises_and_changes_nothing(size_bytes: int) -> None:
    allocator = CachingAllocator()
    handle = allocator.allocate(size_bytes)
    allocator.free(handle)
    allocator.allocate(3 * MIB)
    before = allocator.statistics()
    for wrong in (handle, Handle(999)):
        with pytest.raises(NotAllocated):
            allocator.free(wrong)
    assert allocator.statistics() == before


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        CachingAllocator().allocate(-1)


@given(st.integers(1, 1 << 40))
def test_rounding_never_gives_less_than_asked(size_bytes: int) -> None:
    rounded = round_size(size_bytes)
    assert rounded % 512 == 0
    assert 0 <= rounded - size_bytes < 512
    assert segment_size(rounded) % (2 * MIB) == 0
    assert segment_size(rounded) >= rounded


SIZES = st.one_of(st.integers(0, 4 * KIB), st.integers(0, 2 * MIB), st.integers(MIB, 40 * MIB))


class AllocatorMachine(RuleBasedStateMachine):
    """Allocates, frees, empties and turns the capacity in any order, beside a plain book of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[Handle, int] = {}
        self.reserved_peak = self.allocated_peak = 0

    @initialize(capacity_mib=st.integers(0, 200))
    def start(self, capacity_mib: int) -> None:
        self.allocator = CachingAllocator(capacity_bytes=capacity_mib * MIB)

    @rule(size_bytes=SIZES)
    def allocate(self, size_bytes: int) -> None:
        before = {block.address: block.size_bytes for block in live_blocks(self.allocator)}
        try:
            handle = self.allocator.allocate(size_bytes)
        except AllocatorFull:
            asked_bytes = segment_size(round_size(size_bytes))
            assert self.allocator.capacity_bytes is not None
            assert self.allocator.reserved_bytes + asked_bytes > self.allocator.capacity_bytes
            assert all(block.is_split for block in free_blocks(self.allocator))
            assert before == {block.address: block.size_bytes for block in live_blocks(self.allocator)}
            return
        assert handle not in self.live
        self.live[handle] = size_bytes

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        handle = data.draw(st.sampled_from(sorted(self.live)))
        del self.live[handle]
        self.allocator.free(handle)

    @rule()
    def empty_cache(self) -> None:
        reserved = self.allocator.reserved_bytes
        assert self.allocator.empty_cache() == reserved - self.allocator.reserved_bytes
        assert all(block.is_split for block in free_blocks(self.allocator))

    @rule(capacity_mib=st.integers(0, 200))
    def turn(self, capacity_mib: int) -> None:
        self.allocator.capacity_bytes = capacity_mib * MIB

    @invariant()
    def segments_are_whole_and_blocks_never_overlap(self) -> None:
        chains = segments_of(self.allocator)
        spans = []
        for chain in chains:
            for left, right in pairwise(chain):
                assert right.before is left
                assert right.address == left.address + left.size_bytes
                assert left.allocated or right.allocated, "two free neighbours"
            spans.append((chain[0].address, chain[-1].address + chain[-1].size_bytes))
            assert (spans[-1][1] - spans[-1][0]) % (2 * MIB) == 0
            assert len({id(block.pool) for block in chain}) == 1
        spans.sort()
        assert all(left[1] <= right[0] for left, right in pairwise(spans))
        blocks = [block for chain in chains for block in chain]
        assert len(blocks) == len(free_blocks(self.allocator)) + len(live_blocks(self.allocator))
        assert all(block.size_bytes > 0 for block in blocks)

    @invariant()
    def every_live_request_has_its_bytes(self) -> None:
        assert set(self.allocator._live) == set(self.live)
        for handle, size_bytes in self.live.items():
            block = self.allocator._live[handle]
            assert (block.size_bytes if block else 0) >= round_size(size_bytes)
            assert (block.requested_bytes if block else 0) == size_bytes

    @invariant()
    def statistics_are_a_recount(self) -> None:
        held = self.allocator.statistics()
        free = [block.size_bytes for block in free_blocks(self.allocator)]
        chains = segments_of(self.allocator)
        allocated = sum(block.size_bytes for block in live_blocks(self.allocator))
        self.allocated_peak = max(self.allocated_peak, allocated)
        self.reserved_peak = max(self.reserved_peak, held.reserved_bytes)
        assert held.allocated_bytes == allocated == self.allocator.allocated_bytes
        assert held.reserved_bytes == allocated + sum(free) == self.allocator.reserved_bytes
        assert held.largest_free_block_bytes == max(free, default=0)
        assert held.inactive_split_bytes == sum(
            block.size_bytes for chain in chains if len(chain) > 1 for block in chain if not block.allocated
        )
        assert (held.allocated_peak_bytes, held.reserved_peak_bytes) == (self.allocated_peak, self.reserved_peak)
        ratio = held.fragmentation_ratio
        assert ratio is None if not free else 0 <= (ratio or 0.0) < 1
        assert sum(block.size_bytes for chain in chains for block in chain) == held.reserved_bytes

    def teardown(self) -> None:
        if not hasattr(self, "allocator"):
            return
        for handle in self.live:
            self.allocator.free(handle)
        self.allocator.empty_cache()
        held = self.allocator.statistics()
        assert (held.reserved_bytes, held.allocated_bytes) == (0, 0)
        assert not free_blocks(self.allocator)


AllocatorMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAllocator = AllocatorMachine.TestCase
