"""Figures of the allocator model: time of an allocate/free pair, and how far above the live peak a card has to be.

Run: ``python bench/allocator.py``. The second figure is the smallest capacity that a seeded workload of 60 mixed shapes
survives, over its live peak: what an honest price has to be multiplied with before it is compared with a card.
"""

import random
import time

from gpuwatch.service.core.allocator import MIB, AllocatorFull, CachingAllocator

Step = tuple[int, int]
"""Which slot, and how many bytes it then holds: 0 frees it."""


def workload(seed: int, *, shapes: int = 60, steps: int = 4000, live: int = 12) -> list[Step]:
    """Make requests of ``shapes`` sizes from 4 KiB to 200 MiB, at most ``live`` at once."""
    dice = random.Random(seed)
    sizes = [int(2 ** dice.uniform(12, 27.6)) for _ in range(shapes)]
    made: list[Step] = []
    held = [False] * live
    for _ in range(steps):
        slot = dice.randrange(live)
        made.append((slot, 0 if held[slot] else dice.choice(sizes)))
        held[slot] = not held[slot]
    return made


def play(steps: list[Step], capacity_bytes: int | None) -> CachingAllocator:
    """Run the workload. Raises `AllocatorFull` when the capacity is too small."""
    allocator = CachingAllocator(capacity_bytes)
    slots = {}
    for slot, size_bytes in steps:
        if size_bytes:
            slots[slot] = allocator.allocate(size_bytes)
        else:
            allocator.free(slots.pop(slot))
    return allocator


def survives(steps: list[Step], capacity_bytes: int) -> bool:
    """Whether the workload runs to its end within ``capacity_bytes``."""
    try:
        play(steps, capacity_bytes)
    except AllocatorFull:
        return False
    return True


def smallest_capacity(steps: list[Step]) -> float:
    """Give the smallest surviving capacity over the live peak, bisected to 2 MiB as if more never hurt."""
    peak_bytes = play(steps, None).statistics().allocated_peak_bytes
    low, high = peak_bytes // (2 * MIB), 4 * peak_bytes // (2 * MIB)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if survives(steps, middle * 2 * MIB) else (middle + 1, high)
    return low * 2 * MIB / peak_bytes


def main() -> None:
    """Print both figures."""
    steps = workload(0, steps=40_000)
    play(steps, None)
    began = time.perf_counter()
    play(steps, None)
    pair_us = (time.perf_counter() - began) / (len(steps) / 2) * 1e6
    print(f"allocate + free: {pair_us:.1f} us a pair, {len(steps) // 2} pairs of 60 mixed shapes, at most 12 live")
    ratios = sorted(smallest_capacity(workload(seed)) for seed in range(8))
    print("smallest surviving capacity / live peak over 8 seeds:", " ".join(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
