"""Worlds whose large payloads go over MPI, with MPI in memory: where it can be held up, and asked what it was given.

All ranks are in this process, which is the only one of its job. ``test_mpi_jobs`` has real jobs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import torch

import multiworld as mw
from multiworld.channel.mpi import channel as mpi
from multiworld.channel.mpi import pump as mpi_pump
from multiworld.channel.mpi.chunks import CHUNK_BYTES
from multiworld.channel.mpi.job import JobError
from multiworld.channel.mpi.pump import MpiPump
from multiworld.testing import scaled, wait_until
from multiworld.wire.progress.operation import Operation
from tests.bounds import CANCEL_S
from tests.unit.channel.mpi.fake_mpi import FakeNetwork

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("no_leaks")]

NUMEL = 5 * CHUNK_BYTES // 8  # two and a half chunks of float32
WAIT_S = 10.0


class FakeJob:
    """A job of one process."""

    def __init__(self) -> None:
        self.network = FakeNetwork()
        self.rank, self.size, self.name = 0, 1, "test"
        self.lost_peer = False
        self.pump = MpiPump(self.network.transports[0])

    def allow(self, num_chunks: int | None) -> None:
        self.network.allow(num_chunks)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeJob]:
    job = FakeJob()

    def open_job() -> Operation[FakeJob]:
        opened: Operation[FakeJob] = Operation()
        opened.succeed(job)
        return opened

    monkeypatch.setattr(mpi, "open_job", open_job)
    monkeypatch.setattr(mpi_pump, "LINGER_S", 0.05)
    yield job
    assert job.pump.join(WAIT_S)


@asynccontextmanager
async def worlds_of(size: int) -> AsyncIterator[list[mw.World]]:
    managers = [mw.WorldManager() for _ in range(size)]
    try:
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        yield await join_all(managers, url)
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))


async def join_all(managers: list[mw.WorldManager], url: str) -> list[mw.World]:
    joins = [
        manager.join("w", rank, len(managers), url, backend="mpi", timeout_s=scaled(10))
        for rank, manager in enumerate(managers)
    ]
    return list(await asyncio.gather(*joins))


async def moving(job: FakeJob, num_chunks: int = 1) -> None:
    """Wait until so many chunks have moved, no more being allowed."""
    assert await asyncio.to_thread(wait_until, lambda: job.network.allowed == 0, WAIT_S)
    found = job.network.num_found
    assert found >= num_chunks


async def exchange(source: mw.World, target: mw.World, value: float, tag: int = 0) -> None:
    received = torch.zeros(NUMEL)
    sending = source.send(torch.full((NUMEL,), value), target.rank, tag=tag)
    await asyncio.wait_for(asyncio.gather(sending, target.recv(received, source.rank, tag=tag)), scaled(WAIT_S))
    assert bool((received == value).all())


async def test_large_payloads_go_over_mpi_and_small_ones_do_not(job: FakeJob) -> None:
    async with worlds_of(2) as (here, there):
        found = job.network.num_found
        small = torch.zeros(100)
        await asyncio.gather(here.send(torch.ones(100), 1), there.recv(small, 0))
        assert job.network.num_found == found
        for tag in range(3):
            await exchange(here, there, float(tag), tag)
            await exchange(there, here, -float(tag), tag)
        assert job.network.num_found - found == 6 * 3


async def test_payloads_of_several_tensors_and_many_at_once_arrive_as_they_were(job: FakeJob) -> None:
    async with worlds_of(2) as (here, there):
        payloads = [
            {"a": torch.full((NUMEL,), float(index)), "b": torch.arange(index + 1), "none": torch.empty(0)}
            for index in range(8)
        ]
        sends = [here.send_tensors(payload, 1, tag=index % 3) for index, payload in enumerate(payloads)]
        receives = [there.recv_tensors(0, tag=index % 3) for index in range(len(payloads))]
        results = await asyncio.gather(*sends, *receives)
        for payload, received in zip(payloads, results[len(payloads) :], strict=True):
            assert isinstance(received, dict)
            assert all(torch.equal(received[name], tensor) for name, tensor in payload.items())


async def test_collectives_over_mpi_give_what_they_should(job: FakeJob) -> None:
    async with worlds_of(3) as worlds:
        tensors = [torch.arange(float(NUMEL)) * (world.rank + 1) for world in worlds]
        await asyncio.gather(*(world.all_reduce(tensor) for world, tensor in zip(worlds, tensors, strict=True)))
        assert all(torch.equal(tensor, torch.arange(float(NUMEL)) * 6) for tensor in tensors)
        assert job.network.num_found > 6, "besides the proofs"


async def test_cancelling_a_receive_while_chunks_come_costs_nothing_and_loses_nothing(job: FakeJob) -> None:
    async with worlds_of(2) as (here, there):
        job.allow(1)
        source, buffer = torch.ones(NUMEL), torch.full((NUMEL,), -1.0)
        sending = asyncio.create_task(there.send(source, 0))
        receiving = asyncio.create_task(here.recv(buffer, 1))
        await moving(job)
        begin = time.monotonic()
        receiving.cancel()
        await asyncio.wait([receiving])
        assert time.monotonic() - begin < CANCEL_S
        seen = buffer.clone()
        second = asyncio.create_task(here.recv(torch.zeros(NUMEL), 1))  # it meets the message that is coming
        await asyncio.sleep(0.01)
        second.cancel()
        await asyncio.wait([second])
        job.allow(None)
        received = torch.zeros(NUMEL)
        await asyncio.wait_for(here.recv(received, 1), scaled(WAIT_S))
        assert torch.equal(received, source)
        assert torch.equal(seen, buffer)
        await sending
        await exchange(here, there, 3.0)


async def test_cancelling_a_send_while_chunks_go_costs_nothing_and_the_message_comes_as_it_was(job: FakeJob) -> None:
    async with worlds_of(2) as (here, there):
        job.allow(0)
        source, received = torch.arange(4.0 * NUMEL), torch.zeros(4 * NUMEL)
        receiving = asyncio.create_task(there.recv(received, 0))
        sending = asyncio.create_task(here.send(source, 1))
        assert await asyncio.to_thread(wait_until, lambda: len(job.network.queues[0]) == mpi_pump.WINDOW, WAIT_S)
        assert not sending.done()
        begin = time.monotonic()
        sending.cancel()
        await asyncio.wait([sending])
        assert time.monotonic() - begin < CANCEL_S
        source.fill_(-1)
        job.allow(None)
        await asyncio.wait_for(receiving, scaled(WAIT_S))
        assert torch.equal(received, torch.arange(4.0 * NUMEL))
        assert here.state is there.state is mw.WorldState.ACTIVE


async def test_a_deadline_that_passes_while_chunks_move_costs_nothing(job: FakeJob) -> None:
    async with worlds_of(2) as (here, there):
        job.allow(1)
        sending = asyncio.create_task(there.send(torch.ones(NUMEL), 0))
        with pytest.raises(mw.OperationTimeoutError):
            await here.recv(torch.zeros(NUMEL), 1, timeout_s=0.1)
        job.allow(None)
        await sending
        received = torch.zeros(NUMEL)
        await here.recv(received, 1)
        assert bool((received == 1).all())


async def test_aborting_while_chunks_move_fails_both_sides_at_once_and_touches_nothing_later(job: FakeJob) -> None:
    async with worlds_of(2) as (here, there):
        job.allow(2)
        buffers = [torch.zeros(NUMEL) for _ in range(4)]
        tasks = [
            asyncio.create_task(operation)
            for index in (0, 2)
            for operation in (here.send(torch.ones(NUMEL), 1), there.recv(buffers[index], 0))
        ]
        await moving(job, 2)
        begin = time.monotonic()
        here.abort()
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), scaled(5))
        assert time.monotonic() - begin < scaled(1)
        assert all(isinstance(outcome, mw.MultiworldError) for outcome in outcomes if outcome is not None)
        assert any(isinstance(outcome, mw.MultiworldError) for outcome in outcomes)
        seen = [buffer.clone() for buffer in buffers]
        job.allow(None)
        await asyncio.sleep(0.05)
        assert all(torch.equal(*pair) for pair in zip(seen, buffers, strict=True))


async def test_chunks_of_an_old_generation_never_reach_the_new_one(job: FakeJob) -> None:
    managers = [mw.WorldManager() for _ in range(2)]
    try:
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        here, there = await join_all(managers, url)
        job.allow(1)
        old = [
            asyncio.create_task(here.send(torch.full((NUMEL,), -1.0), 1)),
            asyncio.create_task(there.recv(torch.zeros(NUMEL), 0)),
        ]
        await moving(job)
        here.abort()
        await asyncio.wait_for(asyncio.gather(*old, return_exceptions=True), scaled(5))
        assert len(job.network.queues[0]) == 2, "MPI keeps what it was given"
        joining = [asyncio.create_task(manager.rejoin("w", timeout_s=scaled(10))) for manager in managers]
        await asyncio.sleep(0.05)
        job.allow(None)
        here, there = await asyncio.gather(*joining)
        for value in (1.0, 2.0):
            await exchange(here, there, value)
        assert not job.network.queues[0]
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))


async def delivered(receiving: asyncio.Task[None], received: torch.Tensor, leaving: asyncio.Task[None]) -> None:
    await asyncio.wait_for(receiving, scaled(5))
    assert bool((received == 1).all())
    await asyncio.wait_for(leaving, scaled(5))


async def test_what_was_sent_before_a_leave_is_delivered(job: FakeJob) -> None:
    managers = [mw.WorldManager() for _ in range(2)]
    try:
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        here, there = await join_all(managers, url)
        job.allow(1)
        received = torch.zeros(NUMEL)
        receiving = asyncio.create_task(there.recv(received, 0))
        sending = asyncio.create_task(here.send(torch.ones(NUMEL), 1))
        await sending
        leaving = asyncio.create_task(here.leave())
        await moving(job)
        job.allow(None)
        await delivered(receiving, received, leaving)
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))


async def test_a_leave_waits_until_a_payload_is_there_that_a_receive_called_for_only_then(job: FakeJob) -> None:
    managers = [mw.WorldManager() for _ in range(2)]
    try:
        here, there = await join_all(managers, managers[0].serve_store("tcp://127.0.0.1:0"))
        sending = asyncio.create_task(here.send(torch.ones(NUMEL), 1))
        await asyncio.sleep(0)  # it is announced
        job.allow(0)
        leaving = asyncio.create_task(here.leave())
        await asyncio.sleep(0)
        received = torch.zeros(NUMEL)
        receiving = asyncio.create_task(there.recv(received, 0))
        await asyncio.wait_for(sending, scaled(5))  # MPI has it, and keeps it
        assert not (await asyncio.wait([leaving, receiving], timeout=0.1))[0]
        job.allow(None)
        await delivered(receiving, received, leaving)
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))


async def test_what_goes_over_mpi_is_counted(job: FakeJob) -> None:
    async with worlds_of(2) as (here, there):
        before = there.statistics().channel
        await exchange(here, there, 1.0)
        after = there.statistics().channel
        assert after.messages_received - before.messages_received == 1
        assert after.bytes_received - before.bytes_received == 4 * NUMEL


async def test_a_mismatch_fails_the_receive_alone(job: FakeJob) -> None:
    async with worlds_of(2) as (here, there):
        sending = asyncio.create_task(here.send(torch.ones(NUMEL), 1))
        with pytest.raises(mw.TensorMismatchError):
            await there.recv(torch.zeros(NUMEL + 1), 0)
        received = torch.zeros(NUMEL)
        await there.recv(received, 0)
        await sending
        assert bool((received == 1).all())


async def test_two_worlds_of_the_same_processes_do_not_mix(job: FakeJob) -> None:
    async with worlds_of(2) as first, worlds_of(2) as second:
        both = ((first, 1.0), (second, 2.0)) * 4
        await asyncio.gather(*(exchange(pair[0], pair[1], value) for pair, value in both))


async def test_what_mpi_reports_breaks_the_world_with_its_words(job: FakeJob) -> None:
    async with worlds_of(2) as (here, there):
        job.network.send_failure = RuntimeError("no route")
        receiving = asyncio.create_task(there.recv(torch.zeros(NUMEL), 0))
        with pytest.raises(mw.WorldBrokenError, match="MPI cannot send to its rank 0: no route"):
            await asyncio.wait_for(here.send(torch.ones(NUMEL), 1), scaled(5))
        with pytest.raises(mw.WorldBrokenError):
            await asyncio.wait_for(receiving, scaled(5))


async def test_ranks_that_do_not_hear_each_other_over_mpi_form_no_world(job: FakeJob) -> None:
    job.allow(0)
    managers = [mw.WorldManager() for _ in range(2)]
    try:
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        joins = [manager.join("w", rank, 2, url, backend="mpi", timeout_s=0.5) for rank, manager in enumerate(managers)]
        outcomes = await asyncio.gather(*joins, return_exceptions=True)
        assert all(isinstance(outcome, mw.JoinError) for outcome in outcomes)
        assert any("was not heard over MPI" in str(outcome) for outcome in outcomes)
    finally:
        await asyncio.gather(*(manager.aclose() for manager in managers))


async def test_processes_of_two_jobs_form_no_world(job: FakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter(["one", "two"] * 100)
    introduce = mpi.MpiChannel._introduce

    def introduce_as_another(channel: mpi.MpiChannel, own: FakeJob) -> None:
        own.name = next(names)
        introduce(channel, own)  # type: ignore[arg-type]

    monkeypatch.setattr(mpi.MpiChannel, "_introduce", introduce_as_another)
    with pytest.raises(mw.ChannelUnavailableError, match="start all members with one mpiexec"):
        async with worlds_of(2):
            pass


async def test_a_process_without_mpi_says_why_it_cannot_join(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_job() -> Operation[FakeJob]:
        opened: Operation[FakeJob] = Operation()
        opened.fail(JobError("there is no MPI"))
        return opened

    monkeypatch.setattr(mpi, "open_job", open_job)
    async with mw.WorldManager() as manager:
        with pytest.raises(mw.ChannelUnavailableError, match="there is no MPI"):
            await manager.join("w", 0, 1, manager.serve_store("tcp://127.0.0.1:0"), backend="mpi")


async def test_a_job_whose_other_processes_never_initialize_mpi_fails_the_join_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mpi, "open_job", Operation)  # MPI_Init waits for ever
    async with mw.WorldManager() as manager:
        url = manager.serve_store("tcp://127.0.0.1:0")
        with pytest.raises(mw.ChannelUnavailableError, match="MPI_Init waits for all processes"):
            await manager.join("w", 0, 1, url, backend="mpi", timeout_s=0.3)
