"""Every storage that a run creates is charged once, from its first tensor to its last, and nothing else is."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812 - everyone calls it so

from gpuwatch.service.gpu.tracker import Moves, StorageBook, StorageTracker, rounded

MODES = [torch.inference_mode, torch.no_grad, torch.enable_grad]
KIB = 1024


class Memory:
    """Counts what is allocated, hands out each handle once, and refuses above ``room_bytes``."""

    def __init__(self, room_bytes: int = 1 << 60) -> None:
        self.room_bytes = room_bytes
        self.live: dict[int, int] = {}
        self.given = 0
        self.book = StorageBook(self.allocate, self.free)

    def allocate(self, size_bytes: int) -> int:
        with self.book.lock:
            self.book.settle()
            if self.bytes + size_bytes > self.room_bytes:
                raise torch.OutOfMemoryError("full")
            self.given += 1
            self.live[self.given] = size_bytes
            return self.given

    def free(self, handle: int) -> None:
        del self.live[handle]

    @property
    def bytes(self) -> int:
        return sum(self.live.values())

    def settled_bytes(self) -> int:
        with self.book.lock:
            self.book.settle()
        return self.bytes


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    assert made.settled_bytes() == 0, "something outlived its tensors"


def ones(kib: int) -> torch.Tensor:
    return torch.ones(kib * 256)


@pytest.mark.parametrize("mode", MODES)
def test_the_peak_of_a_chain_is_what_a_hand_computes(mode: Callable[[], AbstractContextManager[None]]) -> None:
    with mode(), StorageTracker() as tracker:
        x = torch.ones(1000)  # 4000 bytes take 4096
        assert tracker.live_bytes == 4096
        y = x + 1
        del x
        z = torch.cat([y, y])  # 8000 bytes take 8192
        assert tracker.live_bytes == 4096 + 8192
        del y
        w = z.double()  # 16000 bytes take 16384
        del z
        assert w.sum().item() == 4000
    assert tracker.peak_bytes == 8192 + 16384


def test_views_in_place_operations_and_aliases_cost_nothing(memory: Memory) -> None:
    with torch.inference_mode(), StorageTracker(memory.book) as tracker:
        x = ones(64)
        views = [x.view(64, 256), x[::2], x.t(), *x.chunk(64), *x.view(4, -1).unbind(), x.detach(), x.to("cpu")]
        x.add_(1).relu_().mul_(2)
        x[:100].zero_()
        torch.mul(x, 2, out=x)
    assert len(views) > 20
    assert tracker.peak_bytes == 64 * KIB
    assert len(memory.live) == 1


def test_an_alias_keeps_the_storage_charged(memory: Memory) -> None:
    with StorageTracker(memory.book):
        x = ones(4)
        alias = x[:1]
        del x
        assert memory.settled_bytes() == 4 * KIB
        del alias
    assert memory.settled_bytes() == 0


def test_storages_without_bytes_cost_nothing(memory: Memory) -> None:
    with StorageTracker(memory.book) as tracker:
        held = [torch.empty(0), torch.zeros(3, 0, 5), ones(4)[:0].clone()]
    assert [tensor.numel() for tensor in held] == [0, 0, 0]
    assert memory.settled_bytes() == 0
    assert tracker.peak_bytes == 4 * KIB


@pytest.mark.parametrize("mode", MODES)
def test_what_existed_before_is_not_charged(mode: Callable[[], AbstractContextManager[None]], memory: Memory) -> None:
    old = ones(64)
    with mode(), StorageTracker(memory.book) as tracker:
        kept = [old.view(-1, 2), old.t(), old.contiguous(), old[3:]]
        old.add_(1)
        torch.add(old, 1, out=old)
    assert len(kept) == 4
    assert tracker.peak_bytes == 0
    assert memory.given == 0


def test_a_storage_that_gets_the_id_of_an_ended_one_is_charged_anew(memory: Memory) -> None:
    ids = set()
    with StorageTracker(memory.book):
        for _ in range(50):
            x = ones(1)
            ids.add(id(x.untyped_storage()))
            del x
    assert len(ids) < 50, "no id came again: this proves nothing"
    assert memory.given == 50


def test_an_empty_storage_that_gets_the_id_of_an_ended_one_returns_nothing_twice(memory: Memory) -> None:
    with torch.inference_mode(), StorageTracker(memory.book) as tracker:
        for _ in range(20):
            x = ones(1)
            del x
            moved = torch.empty(0).to("cpu")
            del moved
    assert memory.settled_bytes() == tracker.live_bytes == 0


def test_several_outputs_are_charged_each(memory: Memory) -> None:
    with torch.inference_mode(), StorageTracker(memory.book) as tracker:
        x = ones(1)
        values, indices = x.topk(128)  # 512 and 1024 bytes
        assert tracker.live_bytes == KIB + 512 + KIB
        many = torch._foreach_add([x, x], 1)  # a list comes out
        assert tracker.live_bytes == KIB + 512 + KIB + 2 * KIB
        del values, indices, many, x


def test_growing_charges_the_new_size_and_gives_the_old_back(memory: Memory) -> None:
    with StorageTracker(memory.book) as tracker:
        x = torch.ones(256)
        x.resize_(2048)
        assert memory.settled_bytes() == 8 * KIB
        assert tracker.live_bytes == 8 * KIB
        assert tracker.peak_bytes == 9 * KIB, "both places are held while it is copied"
        out = torch.empty(0)
        torch.add(x, 1, out=out)
        assert memory.settled_bytes() == 16 * KIB
        x.untyped_storage().resize_(0)
        x.set_(x.untyped_storage(), 0, (0,), (1,))
        assert memory.settled_bytes() == 8 * KIB
        del x, out


def test_a_storage_from_before_that_grows_is_charged(memory: Memory) -> None:
    old = torch.ones(256)
    with StorageTracker(memory.book):
        old.resize_(2048)
    assert memory.settled_bytes() == 8 * KIB
    del old


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.from_numpy(np.ones(256, np.float32)).to("cpu"),
        lambda: torch.from_numpy(np.ones(256, np.float32)).float(),
        lambda: torch.from_numpy(np.ones(256, np.float32)).to(torch.float32),
        lambda: torch.as_tensor(np.ones(256, np.float32), device="cpu"),
        lambda: torch.frombuffer(bytearray(KIB), dtype=torch.float32).to("cpu"),
        lambda: torch.tensor([1.0] * 256),
        lambda: torch.tensor([1.0] * 256, device="cpu"),
        lambda: ones(1).clone(),
        lambda: torch.frombuffer(bytearray(256), dtype=torch.uint8).float(),
    ],
)
def test_inputs_are_charged_however_they_come_in(make: Callable[[], torch.Tensor], memory: Memory) -> None:
    with torch.inference_mode(), StorageTracker(memory.book):
        moved = make()
        assert memory.settled_bytes() == KIB
    del moved


def test_a_tensor_from_before_is_charged_when_it_is_moved(memory: Memory) -> None:
    old = ones(1)
    with torch.inference_mode(), StorageTracker(memory.book):
        moved = old.to("cpu")
        again = moved.to("cpu")
        assert memory.settled_bytes() == KIB
    del old, moved, again


def test_moving_a_module_from_before_charges_its_weights(memory: Memory) -> None:
    net = torch.nn.Linear(256, 256)  # weights of 256 KiB, a bias of 1 KiB
    tracker = StorageTracker(memory.book)
    with Moves(tracker), tracker:
        net.to("cpu")
    assert memory.settled_bytes() == 257 * KIB
    with torch.inference_mode(), StorageTracker(memory.book) as run:
        net.to("cpu")(torch.ones(1, 256))
    assert run.peak_bytes == 2 * KIB, "only input and output: the weights are charged already"
    del net


@pytest.mark.parametrize(
    "composite",
    [
        lambda x: torch.cosine_similarity(x[:, None], x[None], dim=-1),
        lambda x: torch.einsum("ij,kj->ik", x, x * 2),
        lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], dropout_p=0.1),
        lambda x: F.layer_norm(F.linear(x[None].transpose(0, 1), x, x[0]), (64,)),
    ],
)
def test_composite_operations_cost_the_same_with_and_without_inference_mode(
    composite: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    peaks = []
    for mode in (torch.inference_mode, torch.no_grad):
        x = torch.ones(64, 64)
        with mode(), StorageTracker() as tracker:
            composite(x)
        peaks.append(tracker.peak_bytes)
    assert peaks[0] == peaks[1] > 64 * 64 * 4, "more than the result alone"


@pytest.mark.parametrize("mode", MODES)
def test_bilinear_interpolation_costs_its_result_and_no_arithmetic(
    mode: Callable[[], AbstractContextManager[None]],
) -> None:
    with mode(), StorageTracker() as tracker:
        x = torch.ones(1, 3, 32, 32)
        F.interpolate(x, size=(64, 64), mode="bilinear", align_corners=False)
    assert tracker.peak_bytes == 3 * 32 * 32 * 4 + 3 * 64 * 64 * 4


def test_a_refusal_comes_out_of_the_operation_and_leaves_nothing_behind(memory: Memory) -> None:
    memory.room_bytes = 10 * KIB
    tracker = StorageTracker(memory.book)

    def run() -> None:
        with torch.inference_mode(), tracker:
            x = ones(4)
            y = x + 1
            torch.cat([x, y])

    with pytest.raises(torch.OutOfMemoryError, match="full"):
        run()
    assert tracker.peak_bytes == 8 * KIB
    assert memory.settled_bytes() == 0
    assert tracker.live_bytes == 0


def test_a_refused_growth_keeps_the_old_charge(memory: Memory) -> None:
    memory.room_bytes = 4 * KIB
    with StorageTracker(memory.book):
        x = ones(1)
        with pytest.raises(torch.OutOfMemoryError):
            x.resize_(4096)
        assert memory.settled_bytes() == KIB
        del x


def test_results_stay_charged_after_the_run_until_they_end(memory: Memory) -> None:
    with torch.inference_mode(), StorageTracker(memory.book) as tracker:
        result = ones(8)
    assert memory.settled_bytes() == 8 * KIB
    with torch.inference_mode(), StorageTracker(memory.book) as later:
        kept = result + 1
        del result
        assert memory.settled_bytes() == 8 * KIB
    assert (tracker.live_bytes, later.live_bytes) == (0, 8 * KIB)
    del kept


def test_the_collector_may_end_storages_while_the_book_is_locked(memory: Memory) -> None:
    with StorageTracker(memory.book):
        for _ in range(10):
            ring: list[object] = [ones(1)]
            ring.append(ring)
            del ring
    with memory.book.lock:
        collector = threading.Thread(target=gc.collect)
        collector.start()
        collector.join(timeout=60)
        assert not collector.is_alive(), "a finalizer waits for the lock"
    assert memory.settled_bytes() == 0


def test_an_inner_run_finds_its_storages_charged_to_the_outer_one_and_only_once(memory: Memory) -> None:
    with StorageTracker(memory.book) as outer, StorageTracker(memory.book) as inner:
        x = ones(4)
        assert memory.settled_bytes() == 4 * KIB
    assert outer.peak_bytes + inner.peak_bytes == 4 * KIB
    del x


def test_each_thread_measures_its_own_run_on_the_shared_book(memory: Memory) -> None:
    peaks: dict[int, int] = {}
    barrier = threading.Barrier(4)

    def run(kib: int) -> None:
        with torch.inference_mode(), StorageTracker(memory.book) as tracker:
            barrier.wait(timeout=60)
            for _ in range(50):
                x = ones(kib)
                y = x * 2
                del x, y
        peaks[kib] = tracker.peak_bytes

    threads = [threading.Thread(target=run, args=(kib,)) for kib in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert peaks == {kib: 2 * kib * KIB for kib in (1, 2, 3, 4)}


def test_sparse_and_meta_tensors_pass_through(memory: Memory) -> None:
    with StorageTracker(memory.book) as tracker:
        meta = torch.ones(1000, device="meta") + 1
        before = tracker.peak_bytes
        sparse = torch.eye(16).to_sparse()
        assert before == 0
        assert torch.equal(sparse.to_dense(), torch.eye(16))
        assert meta.shape == (1000,)
        del sparse


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["new", "view", "copy", "grow", "drop", "add_"]), st.integers(0, 5), st.integers(0, 3000)
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_live_bytes_are_a_recount_of_living_storages(steps: list[tuple[str, int, int]]) -> None:
    memory = Memory()
    slots: dict[int, torch.Tensor] = {}
    peak = 0

    def act(what: str, slot: int, size: int) -> None:
        source = slots.get((slot * 7 + size) % 6)
        if what == "new" or source is None:
            slots[slot] = torch.empty(size)
        elif what == "view":
            slots[slot] = source[: source.numel() // 2]
        elif what == "copy":
            slots[slot] = source + 1
        elif what == "grow":
            source.resize_(source.numel() + size)
        elif what == "add_":
            source.add_(1)
        else:
            slots.pop(slot, None)

    with StorageTracker(memory.book) as tracker:
        for step in steps:
            act(*step)
            alive = {id(t.untyped_storage()): t.untyped_storage().nbytes() for t in slots.values()}
            assert memory.settled_bytes() == sum(alive.values())
            assert tracker.live_bytes == sum(rounded(size) for size in alive.values())
            peak = max(peak, tracker.live_bytes)
    assert tracker.peak_bytes >= peak
    slots.clear()
    assert memory.settled_bytes() == tracker.live_bytes == 0
