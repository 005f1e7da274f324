"""The simulated card books a real model's memory, runs out as torch does, and says that it is simulated."""

import json
import os
import re
import threading

import pytest
import torch

from gpuwatch.service.gpu.base import Device, DeviceLost, OutOfMemory
from gpuwatch.service.gpu.simulated import CONTEXT_BYTES, SimulatedCard, size_text
from gpuwatch.storage.codec import plain
from gpuwatch.storage.records import Source

KIB, MIB, GIB = 1024, 1024**2, 1024**3


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def card_of(total_mib: int, *, context_mib: int = 0, clock: Clock | None = None) -> SimulatedCard:
    return SimulatedCard(0, total_mib * MIB, context_bytes=context_mib * MIB, clock=clock or Clock(), host_threads=None)


def mib(count: float) -> torch.Tensor:
    return torch.ones(int(count * MIB / 4))


class Net(torch.nn.Module):
    """A small convolutional net with batch norm and a residual: 3 to 8 channels and back to 10 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.first(x)))
        y = y + self.second(y)
        out: torch.Tensor = self.head(y.mean(dim=(2, 3)))
        return out


def weights_bytes(net: torch.nn.Module) -> int:
    """Bytes of parameters and buffers, each rounded up to 512."""
    return sum(-(-t.untyped_storage().nbytes() // 512) * 512 for t in [*net.parameters(), *net.buffers()])


def exhaust(card: SimulatedCard) -> str:
    """Allocate until the card runs out; the error's text, with nothing of the run left alive."""
    held = []
    try:
        with card.run():
            while True:
                held.append(mib(20))
    except torch.OutOfMemoryError as error:
        return str(error)


def test_it_is_a_device_and_says_that_it_is_simulated() -> None:
    card: Device = SimulatedCard(3, 8 * GIB)
    assert card.info.simulated
    assert card.info.source is Source.SIM
    assert "SIMULATED" in card.info.name
    assert (card.info.index, card.info.total_bytes, card.torch_device) == (3, 8 * GIB, "cpu")
    assert card.read().source is Source.SIM
    json.dumps(plain(card.info))


def test_the_context_comes_with_the_first_use_and_is_never_part_of_the_allocator() -> None:
    card = SimulatedCard(0, 8 * GIB, host_threads=None)
    before = card.read()
    assert (before.used_bytes, before.context_bytes, before.processes) == (0, 0, ())
    with card.run():
        pass
    after = card.read()
    assert after.used_bytes == after.context_bytes == CONTEXT_BYTES
    assert (after.reserved_bytes, after.allocated_bytes, after.fragmentation_ratio) == (0, 0, None)
    assert [(process.pid, process.own, process.used_bytes) for process in after.processes] == [
        (os.getpid(), True, CONTEXT_BYTES)
    ]


def test_a_small_card_gives_its_context_a_sixteenth() -> None:
    assert SimulatedCard(0, 320 * MIB).info.settings == {"context_bytes": 20 * MIB}


@pytest.mark.parametrize("context_bytes", [-1, 4 * MIB, 5 * MIB])
def test_a_context_that_cannot_fit_is_refused(context_bytes: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        SimulatedCard(0, 4 * MIB, context_bytes=context_bytes)


def test_a_context_that_neighbours_leave_no_room_for_fails_as_cuda_does() -> None:
    card = card_of(100, context_mib=20)
    card.set_neighbour("other", 90 * MIB)
    with pytest.raises(torch.AcceleratorError, match="CUDA error: out of memory"), card.run():
        pass
    card.set_neighbour("other", 0)
    with card.run():
        pass
    assert card.read().used_bytes == 20 * MIB


def test_used_is_context_and_reserved_and_neighbours() -> None:
    card = card_of(200, context_mib=30)
    assert card.set_neighbour("trainer", 50 * MIB) == 50 * MIB
    with card.run():
        held = mib(3)
    reading = card.read()
    assert (reading.reserved_bytes, reading.allocated_bytes) == (20 * MIB, 3 * MIB)
    assert (reading.used_bytes, reading.inactive_split_bytes) == (100 * MIB, 17 * MIB)
    assert reading.foreign_bytes == 50 * MIB
    assert reading.pressure_bytes == 100 * MIB, "a cached rest of a segment in use cannot be given back"
    del held
    assert card.read().pressure_bytes == 80 * MIB
    card.empty_cache()
    assert card.read().used_bytes == 80 * MIB


def test_a_models_weights_are_all_that_is_left_after_its_runs() -> None:
    card = card_of(256)
    with card.loading() as loaded:
        net = Net().eval()
    held = weights_bytes(net)
    assert loaded.peak_bytes is not None
    assert loaded.peak_bytes >= held
    assert card.read().allocated_bytes == held
    peaks = []
    for _ in range(2):
        with card.run() as measured:
            result = net(torch.rand(1, 3, 64, 64)).tolist()
        assert len(result[0]) == 10
        assert card.read().allocated_bytes == held
        peaks.append((measured.peak_bytes, measured.peak_source))
    assert peaks[0] == peaks[1]
    assert peaks[0][1] == "sim"
    del net
    assert card.read().allocated_bytes == 0


def test_the_peak_is_what_a_hand_computes_on_one_chain_of_convolutions() -> None:
    card = card_of(256)
    with card.loading():
        first, second = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Conv2d(8, 8, 3, padding=1)
    with card.run() as measured:
        x = first(torch.zeros(1, 3, 64, 64))  # 48 KiB in, 128 KiB out
        x = second(x)  # 128 KiB in, 128 KiB out
        x = x.mean(dim=(2, 3))
        del x
    assert measured.peak_bytes == 256 * KIB


def test_weights_made_while_loading_can_still_be_trained() -> None:
    card = card_of(256)
    with card.loading():
        net = Net()
    with card.run():
        net.eval()(torch.rand(1, 3, 16, 16))
    net(torch.rand(2, 3, 16, 16)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def test_a_module_from_before_is_charged_when_loading_moves_it() -> None:
    card, net = card_of(256), Net()
    with card.loading() as measured:
        net.to(card.torch_device)
    assert card.read().allocated_bytes == weights_bytes(net) == measured.peak_bytes


def test_running_out_raises_torchs_own_error_in_torchs_own_words() -> None:
    card = card_of(200, context_mib=30)
    card.set_neighbour("trainer", 50 * MIB)
    (pid,) = (process.pid for process in card.read().processes if not process.own)
    # Room for 120 MiB: six blocks of 20 MiB.
    assert exhaust(card) == (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 200.00 MiB of which 0 bytes is"
        " free. Including non-PyTorch memory, this process has 150.00 MiB memory in use."
        f" Process {pid} has 50.00 MiB memory in use. Of the allocated memory 120.00 MiB is allocated by PyTorch, and"
        " 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting"
        " PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
        "  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def test_the_text_names_the_segment_that_the_driver_refused() -> None:
    card = card_of(30)
    with card.run():
        held = mib(12)
        with pytest.raises(
            torch.OutOfMemoryError, match=r"Tried to allocate 20\.00 MiB\. .* of which 18\.00 MiB is free"
        ):
            mib(3)
    del held


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KiB"),
        (MIB, "1024.00 KiB"),
        (MIB + 1, "1.00 MiB"),
        (GIB, "1024.00 MiB"),
        (GIB + GIB // 2, "1.50 GiB"),
        (2048 * GIB, "2048.00 GiB"),
    ],
)
def test_sizes_read_as_torch_prints_them(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_a_failed_run_leaves_nothing_and_its_peak_is_known() -> None:
    card = card_of(100)
    held: list[torch.Tensor] = []

    def fail() -> None:
        held.extend(mib(count * 4) for count in range(1, 100))

    with pytest.raises(torch.OutOfMemoryError) as caught, card.run() as measured:
        fail()
    assert measured.peak_bytes == sum(t.untyped_storage().nbytes() for t in held) == 84 * MIB
    del caught
    held.clear()
    assert card.read().allocated_bytes == 0
    card.empty_cache()
    assert card.read().used_bytes == 0
    with card.run():
        mib(90)


def test_observers_see_the_card_as_it_was_before_the_error_unwinds() -> None:
    card, seen, readings = card_of(100), [], []

    def observe(event: OutOfMemory) -> None:
        seen.append(event)
        readings.append(card.read())

    card.watch_out_of_memory(observe)
    exhaust(card)
    (event,) = seen
    assert (event.gpu, event.requested_bytes, event.free_bytes) == (0, 20 * MIB, 0)
    assert event.reading.allocated_bytes == readings[0].allocated_bytes == 100 * MIB
    assert card.read().allocated_bytes == 0


def test_a_failing_observer_neither_replaces_the_error_nor_stops_the_others_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    card, told = card_of(100), []

    def broken(_: OutOfMemory) -> None:
        raise ValueError("observer")

    card.watch_out_of_memory(broken)
    card.watch_out_of_memory(lambda event: told.append(event.gpu))
    for _ in range(2):
        assert "CUDA out of memory" in exhaust(card)
    assert told == [0, 0]
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_neighbour_gets_what_is_free_and_no_more() -> None:
    card = card_of(100, context_mib=10)
    with card.run():
        held = mib(40)
    assert card.set_neighbour("a", 80 * MIB) == 50 * MIB
    assert card.set_neighbour("b", 1) == 0
    assert card.set_neighbour("a", 20 * MIB) == 20 * MIB
    assert card.set_neighbour("b", 99 * MIB) == 30 * MIB
    reading = card.read()
    assert reading.used_bytes == reading.total_bytes
    others = [process for process in reading.processes if not process.own]
    assert [(process.name, process.used_bytes) for process in others] == [
        ("a (scripted)", 20 * MIB),
        ("b (scripted)", 30 * MIB),
    ]
    assert len({process.pid for process in reading.processes}) == 3
    del held


def test_a_neighbour_makes_later_allocations_fail_until_it_leaves() -> None:
    card = card_of(100)
    card.set_neighbour("trainer", 90 * MIB)
    with card.run():
        with pytest.raises(torch.OutOfMemoryError, match=r"Process \d+ has 90\.00 MiB memory in use"):
            mib(20)
        assert card.set_neighbour("trainer", 0) == 0
        held = mib(20)
    assert [process.own for process in card.read().processes] == [True]
    del held


def test_cached_segments_are_given_up_before_it_fails_and_that_is_counted() -> None:
    card = card_of(100)
    with card.run():
        mib(60)
        held = mib(80)
    reading = card.read()
    assert (reading.alloc_retries, reading.reserved_bytes) == (1, 80 * MIB)
    del held


def test_threads_on_a_small_card_fail_with_out_of_memory_only_and_leave_the_weights() -> None:
    card = card_of(12)
    with card.loading():
        net = Net().eval()
    held = weights_bytes(net)
    failures: list[str] = []
    served: list[int] = []
    barrier = threading.Barrier(4)

    def serve(size: int) -> None:
        barrier.wait(timeout=60)
        for _ in range(6):
            try:
                with card.run():
                    served.append(len(net(torch.rand(1, 3, size, size)).tolist()))
            except torch.OutOfMemoryError as error:
                failures.append(str(error))

    threads = [threading.Thread(target=serve, args=(size,)) for size in (32, 64, 96, 256)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(served) + len(failures) == 24
    assert served
    assert failures, "the largest size cannot fit beside anything"
    assert all(re.match(r"CUDA out of memory\. Tried to allocate ", text) for text in failures)
    reading = card.read()
    assert reading.allocated_bytes == held
    assert reading.used_bytes <= reading.total_bytes


def test_utilisation_is_the_share_of_time_with_a_run_since_the_last_look() -> None:
    clock = Clock()
    card = card_of(100, clock=clock)
    assert card.read().util_pct is None
    assert card.read().util_pct is None, "no time has passed"
    clock.now_s += 2
    with card.run(), card.run():
        clock.now_s += 1
    clock.now_s += 1
    assert card.read().util_pct == 25.0
    with card.run():
        clock.now_s += 1
        assert card.read().util_pct == 100.0
        clock.now_s += 1
    clock.now_s += 3
    assert card.read().util_pct == 25.0


def test_a_reading_is_stamped_by_the_cards_clock() -> None:
    clock = Clock()
    assert card_of(100, clock=clock).read().at == clock.now_s


def test_a_closed_card_is_lost_and_lets_go_of_what_dies_later() -> None:
    card = card_of(100)
    with card.run():
        held = mib(20)
    card.close()
    with pytest.raises(DeviceLost):
        card.read()
    with pytest.raises(DeviceLost), card.run():
        pass
    del held
    card.empty_cache()


def test_the_first_use_sets_the_hosts_threads() -> None:
    before = torch.get_num_threads()
    try:
        card = SimulatedCard(0, 100 * MIB, host_threads=before + 1)
        assert torch.get_num_threads() == before
        with card.run():
            assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
