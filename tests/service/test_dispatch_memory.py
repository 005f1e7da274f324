"""An out-of-memory is refused with its snapshot, and nothing is kept of a victim whatever becomes of it."""

import asyncio

import pytest
import torch
from service_fakes import MIB, Held, until
from service_rigs import bench, the_refusal

from gpuwatch.service.dispatch import is_out_of_memory
from gpuwatch.service.errors import Refused
from gpuwatch.service.models.base import BadInput
from gpuwatch.storage.records import Outcome, Trigger


@pytest.mark.anyio
async def test_an_out_of_memory_has_its_snapshot_with_the_victim_in_flight() -> None:
    rig = bench()
    others = Held()
    companion = asyncio.ensure_future(rig.dispatcher.run(rig.entry(request_id="companion"), others))
    await others.has_begun()
    victim = rig.entry(request_id="victim")
    with pytest.raises(Refused) as refused:
        await rig.dispatcher.run(victim, lambda _gpu: rig.device.run_out(64 * MIB, 3 * MIB))
    (snapshot,) = rig.taken
    assert (refused.value.reason, refused.value.status) == (Outcome.OUT_OF_MEMORY, 503)
    assert refused.value.retry_after_header is None
    assert refused.value.figures["snapshot"] == snapshot.id
    assert (snapshot.trigger, snapshot.request_id) == (Trigger.OUT_OF_MEMORY, "victim")
    assert snapshot.requested_bytes == 64 * MIB
    assert snapshot.payload["victim"]["id"] == victim.seq
    assert [run["request_id"] for run in snapshot.payload["in_flight"]] == ["companion", "victim"]
    assert snapshot.payload["error"] == {
        "type": "OutOfMemoryError",
        "requested_bytes": 64 * MIB,
        "free_bytes": 3 * MIB,
    }
    record = rig.final[victim.seq]
    assert record.outcome is Outcome.OUT_OF_MEMORY
    assert record.error == f"OutOfMemoryError asked={64 * MIB} free={3 * MIB}"
    await until(lambda: rig.device.cache_emptied == 1)
    others.go.set()
    await companion
    await rig.at_rest()


@pytest.mark.anyio
async def test_a_snapshot_that_is_never_stored_holds_up_no_refusal() -> None:
    rig = bench(commits=False)
    refusal, _ = await the_refusal(rig, lambda _gpu: rig.device.run_out())
    assert refusal.figures["snapshot"] == rig.taken[0].id
    assert not rig.stored.done()


@pytest.mark.anyio
async def test_a_client_that_leaves_while_its_snapshot_is_stored_still_has_one_outcome() -> None:
    rig = bench(commits=False, commit_wait_s=1000.0)
    entry = rig.entry()
    run = asyncio.ensure_future(rig.dispatcher.run(entry, lambda _gpu: rig.device.run_out()))
    await until(lambda: rig.device.cache_emptied == 1)  # before it waits for the disk
    assert not run.done()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await rig.at_rest()
    assert rig.final[entry.seq].outcome is Outcome.CLIENT_GONE


@pytest.mark.anyio
async def test_an_out_of_memory_that_the_driver_alone_saw_is_one_without_a_snapshot() -> None:
    def raises(_gpu: int) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    refusal, record = await the_refusal(bench(), raises)
    assert refusal.reason is Outcome.OUT_OF_MEMORY
    assert "snapshot" not in refusal.figures
    assert record.error == "OutOfMemoryError"


@pytest.mark.anyio
async def test_nothing_is_kept_of_an_out_of_memory_that_the_model_survived_or_turned_into_something_else() -> None:
    rig = bench()

    def survives(_gpu: int) -> str:
        try:
            rig.device.run_out()
        except torch.OutOfMemoryError:
            return "a smaller answer"
        return "never"

    def turns(_gpu: int) -> None:
        try:
            rig.device.run_out()
        except torch.OutOfMemoryError:
            raise RuntimeError("a wrapper's own") from None

    def refuses(_gpu: int) -> None:
        try:
            rig.device.run_out()
        except torch.OutOfMemoryError:
            raise BadInput("too many pixels") from None

    assert await rig.dispatcher.run(rig.entry(), survives) == "a smaller answer"
    assert (await the_refusal(rig, turns))[0].reason is Outcome.MODEL_ERROR
    assert (await the_refusal(rig, refuses))[0].reason is Outcome.BAD_INPUT
    assert len(rig.taken) == 3
    assert rig.snapshots.kept == 0


@pytest.mark.anyio
async def test_nothing_is_kept_of_a_victim_whose_client_had_left() -> None:
    rig = bench()
    held = Held()

    def work(_gpu: int) -> None:
        held()
        rig.device.run_out()

    entry = rig.entry()
    run = asyncio.ensure_future(rig.dispatcher.run(entry, work))
    await held.has_begun()
    run.cancel()
    await asyncio.wait([run])
    held.go.set()
    await rig.at_rest()
    assert rig.taken[0].payload["victim"]["id"] == entry.seq
    assert rig.snapshots.kept == 0
    assert rig.final[entry.seq].outcome is Outcome.CLIENT_GONE


@pytest.mark.anyio
async def test_nothing_is_kept_of_a_victim_whose_client_leaves_in_the_tick_of_its_end() -> None:
    rig = bench()
    entry = rig.entry()
    run = asyncio.ensure_future(rig.dispatcher.run(entry, lambda _gpu: rig.device.run_out()))
    while rig.admission.in_flight or not rig.taken:  # noqa: ASYNC110 - the very tick in which it ends is meant
        await asyncio.sleep(0)
    run.cancel()
    await asyncio.wait([run])
    await rig.at_rest()
    assert rig.snapshots.kept == 0


def test_only_an_out_of_memory_of_the_card_is_one() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_out_of_memory(torch.AcceleratorError("CUDA error: out of memory"))
    assert not is_out_of_memory(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
    assert not is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("out of memory"))
