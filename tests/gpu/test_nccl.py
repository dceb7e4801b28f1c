"""The nccl channel over NCCL itself. Two ranks need two devices: NCCL refuses two on one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import multiworld as mw
from multiworld.channel.nccl.channel import NcclChannel
from multiworld.testing import WorkerGroup, scaled
from tests.gpu.gpu_programs import receive_for_ever, reduce_for_ever

NUM_DEVICES = torch.cuda.device_count() if NcclChannel.support().works else 0
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(NUM_DEVICES == 0, reason=f"needs a CUDA device: {NcclChannel.support().reason}"),
]
two_devices = pytest.mark.skipif(NUM_DEVICES < 2, reason=f"needs two CUDA devices, found {NUM_DEVICES}")
LARGE = 1 << 22


@asynccontextmanager
async def worlds(size: int = 2) -> AsyncIterator[list[mw.World]]:
    """All ranks in this process, each on a device of its own."""
    async with AsyncExitStack() as stack:
        managers = [await stack.enter_async_context(mw.WorldManager()) for _ in range(size)]
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        joins = [
            manager.join("w", rank, size, url, backend="nccl", device=f"cuda:{rank}", timeout_s=scaled(120))
            for rank, manager in enumerate(managers)
        ]
        yield list(await asyncio.gather(*joins))


def full(world: mw.World, value: float, numel: int = LARGE, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((numel,), value, dtype=dtype, device=world.device)


async def test_a_world_of_one_rank_carries_out_collectives() -> None:
    before = dict(os.environ)
    async with worlds(1) as (world,):
        tensor = full(world, 3.0)
        await world.all_reduce(tensor)
        assert bool((tensor == 3.0).all())
        gathered = [torch.zeros_like(tensor)]
        await world.all_gather(gathered, tensor)
        assert torch.equal(gathered[0], tensor)
        await world.barrier()
        with pytest.raises(TypeError, match="int16"):
            await world.all_reduce(full(world, 1, dtype=torch.int16))
    assert "TORCH_NCCL_BLOCKING_WAIT" not in set(os.environ) - set(before)
    assert not dist.is_initialized()


async def test_a_result_may_be_used_on_any_stream_and_an_input_may_still_be_computed() -> None:
    async with worlds(1) as (world,):
        stream = torch.cuda.Stream(world.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            tensor = full(world, 1.0)
            torch.cuda._sleep(200_000_000)  # type: ignore[no-untyped-call]
            tensor.add_(1.0)
            reducing = asyncio.ensure_future(world.all_reduce(tensor))
            await asyncio.sleep(0)
        await reducing
        assert bool((tensor == 2.0).all())


@two_devices
async def test_tensors_arrive_in_both_directions_at_once() -> None:
    async with worlds() as (here, there):
        for numel in (0, 1, LARGE):
            received = [full(here, -1.0, numel), full(there, -1.0, numel)]
            await asyncio.gather(
                here.send(full(here, 1.0, numel), 1),
                there.send(full(there, 2.0, numel), 0),
                here.recv(received[0], 1),
                there.recv(received[1], 0),
            )
            assert bool((received[0] == 2.0).all())
            assert bool((received[1] == 1.0).all())


@two_devices
async def test_payloads_of_several_tensors_arrive() -> None:
    async with worlds() as (here, there):
        payload = {"a": full(here, 5.0, 7), "b": full(here, 3, 5, torch.int16), "none": full(here, 0.0, 0)}
        _, received = await asyncio.gather(here.send_tensors(payload, 1), there.recv_tensors(0))
        assert isinstance(received, dict)
        assert all(torch.equal(received[name].cpu(), tensor.cpu()) for name, tensor in payload.items())
        assert {tensor.device for tensor in received.values()} == {there.device}


@two_devices
async def test_tensors_that_are_not_contiguous_arrive() -> None:
    async with worlds() as (here, there):
        source = torch.arange(24.0, device=here.device).reshape(4, 6).t()
        target = torch.zeros(8, 6, device=there.device).t()[:, ::2]
        await asyncio.gather(here.send(source, 1), there.recv(target, 0))
        assert torch.equal(source.cpu(), target.cpu())


@two_devices
async def test_a_receive_that_does_not_fit_fails_alone_and_one_that_is_cancelled_costs_nothing() -> None:
    async with worlds() as (here, there):
        sending = asyncio.create_task(here.send(full(here, 1.0, 4), 1))
        with pytest.raises(mw.TensorMismatchError):
            await there.recv(full(there, 0.0, 5), 0)
        target = full(there, 0.0, 4)
        await asyncio.gather(sending, there.recv(target, 0))
        given_up = full(there, 7.0, 4)
        with pytest.raises(mw.OperationTimeoutError):
            await there.recv(given_up, 0, timeout_s=0.1)
        await here.send(full(here, 2.0, 4), 1)
        await there.recv(target, 0)
        assert target.tolist() == [2.0] * 4
        assert given_up.tolist() == [7.0] * 4


@two_devices
async def test_every_collective_gives_what_torch_distributed_gives() -> None:
    async with worlds() as members:
        tensors = [full(world, float(world.rank + 1)) for world in members]
        await asyncio.gather(*(world.all_reduce(tensors[world.rank]) for world in members))
        assert [tensor[-1].item() for tensor in tensors] == [3.0, 3.0]
        tensors = [full(world, float(world.rank + 1)) for world in members]
        await asyncio.gather(*(world.reduce(tensors[world.rank], 1, dist.ReduceOp.MAX) for world in members))
        assert [tensor[-1].item() for tensor in tensors] == [1.0, 2.0]
        await asyncio.gather(*(world.broadcast(tensors[world.rank], 0) for world in members))
        assert [tensor[-1].item() for tensor in tensors] == [1.0, 1.0]
        gathered = [[full(world, -1.0, 3) for _ in range(2)] for world in members]
        sources = [full(world, float(world.rank), 3) for world in members]
        await asyncio.gather(*(world.all_gather(gathered[world.rank], sources[world.rank]) for world in members))
        assert [[part[0].item() for part in parts] for parts in gathered] == [[0.0, 1.0]] * 2
        at_root = [full(members[1], -1.0, 3) for _ in range(2)]
        await asyncio.gather(members[0].gather(sources[0], None, dst=1), members[1].gather(sources[1], at_root, dst=1))
        assert [part[0].item() for part in at_root] == [0.0, 1.0]
        targets = [full(world, -1.0, 3) for world in members]
        parts = [full(members[0], 5.0, 3), full(members[0], 6.0, 3)]
        await asyncio.gather(members[0].scatter(targets[0], parts, src=0), members[1].scatter(targets[1], None, src=0))
        assert [target[0].item() for target in targets] == [5.0, 6.0]
        lists = [[full(world, float(10 * world.rank + part), 3) for part in range(2)] for world in members]
        await asyncio.gather(*(world.reduce_scatter(targets[world.rank], lists[world.rank]) for world in members))
        assert [target[0].item() for target in targets] == [10.0, 12.0]
        outputs = [[full(world, -1.0, world.rank + src + 1) for src in range(2)] for world in members]
        inputs = [[full(world, float(world.rank), world.rank + dst + 1) for dst in range(2)] for world in members]
        await asyncio.gather(*(world.all_to_all(outputs[world.rank], inputs[world.rank]) for world in members))
        assert [[part[0].item() for part in parts] for parts in outputs] == [[0.0, 1.0]] * 2
        await asyncio.gather(*(world.barrier() for world in members))


@two_devices
async def test_ranks_that_disagree_on_a_collective_fail_and_the_world_stays() -> None:
    async with worlds() as (here, there):
        results = await asyncio.gather(
            here.all_reduce(full(here, 0.0, 4)), there.all_reduce(full(there, 0.0, 5)), return_exceptions=True
        )
        assert all(isinstance(result, mw.CollectiveMismatchError) for result in results), results
        await asyncio.gather(here.barrier(), there.barrier())


@two_devices
async def test_what_was_sent_before_a_leave_is_delivered() -> None:
    async with worlds() as (here, there):
        target = full(there, 0.0)
        sending = asyncio.create_task(here.send(full(here, 4.0), 1))
        await asyncio.sleep(0.1)
        leaving = asyncio.create_task(here.leave())
        await there.recv(target, 0)
        await asyncio.gather(sending, leaving)
        assert bool((target == 4.0).all())
        with pytest.raises(mw.PeerLeftError):
            await there.recv(target, 0)


@two_devices
@pytest.mark.parametrize("program", [receive_for_ever, reduce_for_ever])
def test_a_killed_peer_breaks_the_world_and_not_the_process(program: object) -> None:
    with WorkerGroup() as workers, mw.WorldManager() as manager:
        url = manager.serve_store("tcp://127.0.0.1:0")
        ranks = [workers.start(program, url, rank, 2) for rank in range(2)]  # type: ignore[arg-type]
        workers.await_all("ready", scaled(120))
        ranks[1].kill()
        assert ranks[0].await_event("broken", scaled(30))["error"] == "PeerDiedError"
        ranks[0].command("end")
        assert ranks[0].wait(scaled(30)) == 0
