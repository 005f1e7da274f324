"""A CUDA card through torch: figures of one moment, peaks of one run, and no torch or CUDA before it is opened."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from gpuwatch.service.gpu.base import Device, DeviceLost, OutOfMemory
from gpuwatch.service.gpu.torch_cuda import NoCuda, TorchCudaCard, cuda_cards
from gpuwatch.storage.records import Reading, Source

MIB, GIB = 1024**2, 1024**3
CONTEXT, TOTAL = 400 * MIB, 24 * GIB


class ScriptedCuda:
    """As much of ``torch.cuda`` as the card calls; what the card holds is set by the test.

    ``before_driver_look`` and ``before_outside_look`` are run one by one, each before one such look.
    """

    def __init__(self, *, neighbours_bytes: int = 0, devices: int = 1) -> None:
        self.neighbours_bytes = neighbours_bytes
        self.devices = devices
        self.reserved = self.allocated = self.peak = self.split = self.retries = self.segments = 0
        self.initialized = self.has_context = self.flushed = False
        self.nvml = True
        self.error: Exception | None = None
        self.calls: list[str] = []
        self.before_driver_look: list[Callable[[], None]] = []
        self.before_outside_look: list[Callable[[], None]] = []

    def reserve(self, size_bytes: int) -> None:
        self.reserved += size_bytes
        self.segments += 1

    def allocate(self, size_bytes: int) -> None:
        self.allocated += size_bytes
        self.peak = max(self.peak, self.allocated)

    def grow_neighbour(self, size_bytes: int) -> None:
        self.neighbours_bytes += size_bytes

    def _used(self) -> int:
        return self.neighbours_bytes + self.reserved + (CONTEXT if self.has_context else 0)

    def _answer(self) -> None:
        if self.error is not None:
            raise self.error

    def is_available(self) -> bool:
        return self.devices > 0

    def device_count(self) -> int:
        return self.devices

    def is_initialized(self) -> bool:
        return self.initialized

    def init(self) -> None:
        self._answer()
        self.initialized = True

    def get_device_properties(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(name=f"Scripted {device}", uuid="0f2c", total_memory=TOTAL)

    def device_memory_used(self, device: int) -> int:
        if not self.nvml:
            raise ModuleNotFoundError(f"no nvidia-ml-py to look at {device} with")
        if self.before_outside_look:
            self.before_outside_look.pop(0)()
        return self._used() + 600 * MIB  # this figure counts what the driver keeps for itself, the other one does not

    def mem_get_info(self, device: int) -> tuple[int, int]:
        self._answer()
        self.has_context = self.has_context or device >= 0
        if self.before_driver_look:
            self.before_driver_look.pop(0)()
        return TOTAL - self._used(), TOTAL

    def memory_stats(self, device: int) -> dict[str, int]:
        self.calls.append(f"stats {device}")
        return {
            "reserved_bytes.all.current": self.reserved,
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak,
            "inactive_split_bytes.all.current": self.split,
            "num_alloc_retries": self.retries,
            "num_device_alloc": self.segments,
            "num_device_free": 0,
        }

    def reset_peak_memory_stats(self, device: int) -> None:
        self.calls.append(f"reset {device}")
        self.peak = self.allocated

    def current_stream(self, device: int) -> SimpleNamespace:
        def synchronize() -> None:
            self.calls.append(f"synchronized {device}")
            self._answer()

        return SimpleNamespace(synchronize=synchronize)

    @contextlib.contextmanager
    def device(self, device: int) -> Iterator[None]:
        self.calls.append(f"on {device}")
        yield
        self.calls.append(f"off {device}")

    def empty_cache(self) -> None:
        self._answer()
        self.flushed = True


class Hook:
    """Torch's hook for out-of-memory observers: what is attached stays."""

    def __init__(self) -> None:
        self.attached: list[Callable[[int, int, int, int], None]] = []

    def __call__(self, observer: Callable[[int, int, int, int], None]) -> None:
        self.attached.append(observer)

    def fire(self, device: int, asked_bytes: int, free_bytes: int) -> None:
        for observer in self.attached:
            observer(device, asked_bytes, TOTAL // 2, free_bytes)  # the third figure is a limit of our own, if set


def accelerator_error(text: str, code: int) -> Exception:
    error = torch.AcceleratorError(text)
    vars(error)["error_code"] = code
    return error


def card_of(cuda: ScriptedCuda, index: int = 0, hook: Hook | None = None) -> TorchCudaCard:
    return TorchCudaCard(index, cuda=cuda, attach=hook, clock=lambda: 1000.0)


def test_the_script_has_no_function_that_torch_lacks() -> None:
    own = {"reserve", "allocate", "grow_neighbour"}
    functions = {name for name, value in vars(ScriptedCuda).items() if callable(value) and not name.startswith("_")}
    assert [name for name in functions - own if not callable(getattr(torch.cuda, name, None))] == []


def test_it_is_a_device_and_says_what_it_is() -> None:
    card: Device = card_of(ScriptedCuda(devices=2), 1)
    assert card.torch_device == "cuda:1"
    assert (card.info.index, card.info.name, card.info.uuid) == (1, "Scripted 1", "GPU-0f2c")
    assert (card.info.source, card.info.simulated, card.info.total_bytes) == (Source.TORCH, False, TOTAL)


def test_a_reading_is_the_drivers_figure_and_torchs() -> None:
    cuda = ScriptedCuda(neighbours_bytes=3 * GIB)
    card = card_of(cuda)
    cuda.reserve(2 * GIB)
    cuda.allocate(GIB)
    cuda.split, cuda.retries = 512 * MIB, 2
    reading = card.read()
    assert (reading.at, reading.gpu, reading.source, reading.total_bytes) == (1000.0, 0, Source.TORCH, TOTAL)
    assert reading.used_bytes == 5 * GIB + CONTEXT
    assert (reading.reserved_bytes, reading.allocated_bytes, reading.inactive_split_bytes) == (2 * GIB, GIB, 512 * MIB)
    assert (reading.alloc_retries, reading.fragmentation_ratio) == (2, 0.25)
    assert (reading.util_pct, reading.temperature_c, reading.power_w) == (None, None, None)
    assert reading.foreign_bytes == 3 * GIB


def test_nothing_reserved_has_no_fragmentation() -> None:
    assert card_of(ScriptedCuda()).read().fragmentation_ratio is None


def test_only_our_own_process_is_known() -> None:
    cuda = ScriptedCuda(neighbours_bytes=GIB)
    card = card_of(cuda)
    cuda.reserve(GIB)
    assert [(p.pid, p.own, p.used_bytes) for p in card.read().processes] == [(os.getpid(), True, GIB + CONTEXT)]


def test_a_straddled_reading_is_taken_again() -> None:
    cuda = ScriptedCuda()
    card = card_of(cuda)
    cuda.before_driver_look = [lambda: cuda.reserve(GIB)] * 2
    reading = card.read()
    assert (reading.reserved_bytes, reading.used_bytes) == (2 * GIB, 2 * GIB + CONTEXT)


def test_a_segment_that_came_for_one_that_went_is_noticed() -> None:
    cuda = ScriptedCuda()
    card = card_of(cuda)

    def swap() -> None:
        cuda.segments += 1

    cuda.before_driver_look = [swap] * 3
    with pytest.raises(RuntimeError, match="during each of 3 readings"):
        card.read()
    assert card.read().reserved_bytes == 0


def test_work_inside_its_cache_straddles_no_reading() -> None:
    cuda = ScriptedCuda()
    card = card_of(cuda)
    cuda.reserve(GIB)
    cuda.before_driver_look = [lambda: cuda.allocate(MIB)]
    assert card.read().allocated_bytes == MIB
    assert cuda.before_driver_look == []


def test_the_context_is_what_first_use_took_and_stays_so_when_a_neighbour_grows() -> None:
    cuda = ScriptedCuda(neighbours_bytes=3 * GIB)
    card = card_of(cuda)
    cuda.grow_neighbour(5 * GIB)
    reading = card.read()
    assert (reading.context_bytes, reading.foreign_bytes) == (CONTEXT, 8 * GIB)
    assert card.info.settings == {"context_bytes": CONTEXT}


def neighbour_moved(cuda: ScriptedCuda) -> None:
    cuda.before_outside_look = [lambda: None, lambda: cuda.grow_neighbour(MIB)]


def neighbour_grew_much(cuda: ScriptedCuda) -> None:
    cuda.before_driver_look = [lambda: cuda.grow_neighbour(2 * GIB)]


def neighbour_left(cuda: ScriptedCuda) -> None:
    cuda.before_driver_look = [lambda: cuda.grow_neighbour(-2 * GIB)]


def cuda_was_in_use(cuda: ScriptedCuda) -> None:
    cuda.init()
    cuda.mem_get_info(0)
    cuda.before_driver_look = [lambda: cuda.grow_neighbour(MIB)]


def no_nvml(cuda: ScriptedCuda) -> None:
    cuda.nvml = False


@pytest.mark.parametrize(
    "spoil", [neighbour_moved, neighbour_grew_much, neighbour_left, cuda_was_in_use, no_nvml], ids=lambda f: f.__name__
)
def test_a_context_that_cannot_be_told_is_unknown_and_counts_as_foreign(spoil: Callable[[ScriptedCuda], None]) -> None:
    cuda = ScriptedCuda(neighbours_bytes=3 * GIB)
    spoil(cuda)
    card = card_of(cuda)
    reading = card.read()
    assert (reading.context_bytes, reading.foreign_bytes) == (0, cuda.neighbours_bytes + CONTEXT)
    assert card.info.settings == {"context_bytes": None}
    assert [process.used_bytes for process in reading.processes] == [None]


@pytest.mark.parametrize(
    "error",
    [
        accelerator_error("CUDA error: whatever words", 100),
        accelerator_error("CUDA error: whatever words", 101),
        RuntimeError("CUDA error: no CUDA-capable device is detected\nCUDA kernel errors might be…"),
        RuntimeError("CUDA error: invalid device ordinal"),
    ],
)
def test_a_card_that_cuda_no_longer_sees_is_lost(error: Exception) -> None:
    cuda = ScriptedCuda()
    card = card_of(cuda)
    cuda.error = error
    with pytest.raises(DeviceLost, match=r"^cuda:0: CUDA error: [a-zA-Z -]+$"):
        card.read()
    with pytest.raises(DeviceLost):
        card.empty_cache()
    with pytest.raises(DeviceLost), card.run():
        pass
    cuda.error = None
    assert card.read().total_bytes == TOTAL


@pytest.mark.parametrize(
    "error",
    [
        accelerator_error("CUDA error: an illegal memory access was encountered", 700),
        accelerator_error("CUDA error: unspecified launch failure", 719),
        torch.OutOfMemoryError("CUDA out of memory."),
    ],
)
def test_a_broken_context_is_an_error_and_no_lost_card(error: Exception) -> None:
    cuda = ScriptedCuda()
    card = card_of(cuda)
    cuda.error = error
    with pytest.raises(type(error)) as raised:
        card.read()
    assert raised.value is error


def test_a_run_is_on_its_card_without_autograd_and_ends_when_its_work_has_ended() -> None:
    cuda = ScriptedCuda(devices=2)
    card = card_of(cuda, 1)
    cuda.calls.clear()
    with card.run():
        assert torch.is_inference_mode_enabled()
        cuda.calls.append("work")
    assert not torch.is_inference_mode_enabled()
    assert cuda.calls == ["reset 1", "stats 1", "on 1", "work", "synchronized 1", "off 1", "stats 1"]


def test_loading_keeps_autograd_possible() -> None:
    cuda = ScriptedCuda()
    with card_of(cuda).loading() as measured:
        assert not torch.is_inference_mode_enabled()
        cuda.allocate(7 * MIB)
    assert measured.peak_bytes == 7 * MIB


def test_a_run_alone_has_the_peak_above_what_stood_before_it() -> None:
    cuda = ScriptedCuda()
    card = card_of(cuda)
    cuda.allocate(GIB)
    cuda.peak = 9 * GIB
    with card.run() as measured:
        cuda.allocate(300 * MIB)
        cuda.allocate(-200 * MIB)
    assert (measured.peak_bytes, measured.peak_source) == (300 * MIB, "alone")


@pytest.mark.parametrize("other_kind", ["run", "loading"])
def test_runs_that_overlap_have_no_peak_however_little(other_kind: str) -> None:
    cuda = ScriptedCuda()
    card = card_of(cuda)
    with card.run() as first:
        with getattr(card, other_kind)() as inner:
            pass
        with card.run() as second:
            cuda.allocate(MIB)
    for measured in (first, inner, second):
        assert (measured.peak_bytes, measured.peak_source) == (None, None)
    assert cuda.calls.count("reset 0") == 1
    with card.run() as alone:
        cuda.allocate(MIB)
    assert (alone.peak_bytes, alone.peak_source) == (MIB, "alone")


def test_a_run_that_outlives_one_it_overlapped_has_no_peak() -> None:
    card = card_of(ScriptedCuda())
    entered, leave = threading.Event(), threading.Event()
    late = []

    def outlive() -> None:
        with card.run() as measured:
            entered.set()
            leave.wait(10)
        late.append(measured)

    with card.run() as first:
        thread = threading.Thread(target=outlive)
        thread.start()
        assert entered.wait(10)
    leave.set()
    thread.join(10)
    assert [measured.peak_bytes for measured in (first, *late)] == [None, None]


def test_what_the_work_raised_goes_up_after_its_end_even_when_the_context_is_broken() -> None:
    cuda = ScriptedCuda()
    card = card_of(cuda)
    broken = accelerator_error("CUDA error: an illegal memory access was encountered", 700)
    mine = ValueError("mine")

    def fail() -> None:
        with card.run():
            cuda.error = broken
            raise mine

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert "synchronized 0" in cuda.calls
    cuda.error = None
    with card.run() as measured:
        pass
    assert measured.peak_source == "alone"


def test_an_error_that_a_kernel_raises_late_is_the_runs() -> None:
    cuda = ScriptedCuda()
    card = card_of(cuda)
    with pytest.raises(torch.AcceleratorError, match="illegal"), card.run():
        cuda.error = accelerator_error("CUDA error: an illegal memory access was encountered", 700)


def test_an_observer_sees_the_figures_of_an_out_of_memory_on_its_own_card() -> None:
    cuda, hook = ScriptedCuda(neighbours_bytes=3 * GIB, devices=2), Hook()
    card = card_of(cuda, 0, hook)
    seen: list[OutOfMemory] = []
    card.watch_out_of_memory(seen.append)
    cuda.reserve(2 * GIB)
    hook.fire(1, GIB, 5 * MIB)
    assert seen == []
    hook.fire(0, GIB, 5 * MIB)
    reading: Reading = seen[0].reading
    assert (seen[0].gpu, seen[0].requested_bytes, seen[0].free_bytes) == (0, GIB, 5 * MIB)
    assert (reading.total_bytes, reading.used_bytes, reading.reserved_bytes) == (TOTAL, TOTAL - 5 * MIB, 2 * GIB)


def test_torch_is_attached_to_once_for_all_cards_and_observers() -> None:
    hook = Hook()
    seen: list[int] = []
    first, second = card_of(ScriptedCuda(), 0, hook), card_of(ScriptedCuda(), 1, hook)
    first.watch_out_of_memory(lambda _: seen.append(1))
    first.watch_out_of_memory(lambda _: seen.append(2))
    second.watch_out_of_memory(lambda _: seen.append(3))
    assert len(hook.attached) == 1
    hook.fire(0, GIB, 0)
    hook.fire(1, GIB, 0)
    assert seen == [1, 2, 3]


def test_an_observer_that_raises_replaces_no_out_of_memory_and_silences_no_other() -> None:
    hook = Hook()
    card = card_of(ScriptedCuda(), 0, hook)
    seen: list[OutOfMemory] = []

    def fail(_: OutOfMemory) -> None:
        raise SystemExit

    card.watch_out_of_memory(fail)
    card.watch_out_of_memory(seen.append)
    hook.fire(0, GIB, 0)
    assert len(seen) == 1


def test_a_build_without_the_hook_says_that_it_watches_nothing(caplog: pytest.LogCaptureFixture) -> None:
    card = card_of(ScriptedCuda())
    card.watch_out_of_memory(lambda _: None)
    assert "cuda:0: this torch shows no out-of-memory" in caplog.text
    card.close()


def test_emptying_the_cache_is_torchs() -> None:
    cuda = ScriptedCuda()
    card_of(cuda).empty_cache()
    assert cuda.flushed


def test_a_closed_card_is_lost_and_hears_of_nothing() -> None:
    hook = Hook()
    card = card_of(ScriptedCuda(), 0, hook)
    seen: list[OutOfMemory] = []
    card.watch_out_of_memory(seen.append)
    card.close()
    card.close()
    hook.fire(0, GIB, 0)
    assert seen == []
    with pytest.raises(DeviceLost, match="closed"):
        card.read()
    with pytest.raises(DeviceLost, match="closed"), card.run():
        pass


def test_closing_takes_nothing_from_a_run_in_progress() -> None:
    card = card_of(ScriptedCuda())
    with card.run() as measured:
        card.close()
    assert measured.peak_source == "alone"


@pytest.mark.parametrize(("spec", "devices", "index"), [("auto", 1, 0), ("cuda:0", 1, 0), ("cuda:1", 2, 1)])
def test_a_spec_opens_the_card_that_it_names(spec: str, devices: int, index: int) -> None:
    cards = cuda_cards(spec, cuda=ScriptedCuda(devices=devices))
    assert {key: (card.info.index, card.torch_device) for key, card in cards.items()} == {
        index: (index, f"cuda:{index}")
    }


def test_auto_takes_the_first_of_several_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert list(cuda_cards("auto", cuda=ScriptedCuda(devices=2))) == [0]
    assert "2 CUDA devices: only cuda:0 is served" in caplog.text


@pytest.mark.parametrize(
    ("spec", "devices", "why"),
    [
        ("auto", 0, "auto needs 1, torch finds 0"),
        ("cuda:2", 2, "cuda:2 needs 3, torch finds 2"),
        ("cuda:x", 1, "cuda:x names none"),
        ("cuda:-1", 1, "cuda:-1 names none"),
    ],
)
def test_a_card_that_is_not_there_is_refused_with_what_to_choose(spec: str, devices: int, why: str) -> None:
    with pytest.raises(NoCuda, match=f"^no CUDA device: {why}.*; choose --gpu sim:8GiB for a simulated card$"):
        cuda_cards(spec, cuda=ScriptedCuda(devices=devices))


@pytest.mark.parametrize(
    "error",
    [RuntimeError("CUDA error: out of memory\nmore"), AssertionError("broken build"), accelerator_error("gone", 100)],
)
def test_a_card_that_does_not_open_is_refused_with_the_reason(error: Exception) -> None:
    cuda = ScriptedCuda()
    cuda.error = error
    with pytest.raises(NoCuda, match=r"^no CUDA device: cuda:0 cannot be used \(.+\); choose --gpu sim:8GiB"):
        cuda_cards("auto", cuda=cuda)


@pytest.mark.skipif(torch.version.cuda is not None, reason="needs a torch built without CUDA")
def test_a_torch_without_cuda_is_named_as_the_reason() -> None:
    with pytest.raises(NoCuda, match="is built without CUDA; choose --gpu sim:8GiB"):
        cuda_cards("auto")


def test_the_module_imports_no_torch_and_says_when_there_is_none() -> None:
    script = (
        "import sys; from gpuwatch.service.gpu import torch_cuda; assert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None  # how Python marks a module that cannot be imported\n"
        "try: torch_cuda.cuda_cards('auto')\n"
        "except torch_cuda.NoCuda as none: print(none)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603 - ours
    assert said.stdout == "no CUDA device: torch is not installed; choose --gpu sim:8GiB for a simulated card\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA card")
def test_a_real_card_reads_measures_and_shows_its_out_of_memory() -> None:
    card = cuda_cards("auto")[0]
    seen: list[OutOfMemory] = []
    card.watch_out_of_memory(seen.append)
    with card.run() as measured:
        total = torch.ones(16 * MIB, device=card.torch_device).sum().item()
    assert total == 16 * MIB
    assert (measured.peak_bytes or 0) >= 64 * MIB
    assert measured.peak_source == "alone"
    with pytest.raises(torch.OutOfMemoryError), card.run():
        torch.empty(2 * card.info.total_bytes, dtype=torch.uint8, device=card.torch_device)
    assert seen[0].requested_bytes >= 2 * card.info.total_bytes
    card.empty_cache()
    reading = card.read()
    assert 0 < (reading.reserved_bytes or 0) + reading.context_bytes <= reading.used_bytes <= reading.total_bytes
    card.close()
