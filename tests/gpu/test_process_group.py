"""The group of an nccl world: CUDA tensors through c10d's functions and DDP."""

from __future__ import annotations

import asyncio

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import multiworld as mw
from multiworld.channel.nccl.channel import NcclChannel
from tests.gpu.test_nccl import NUM_DEVICES, worlds

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(NUM_DEVICES == 0, reason=f"needs a CUDA device: {NcclChannel.support().reason}"),
]


def use(world: mw.World) -> tuple[list[float], list[float], list[Tensor]]:
    """Reduce, gather and train one step; return what came out, and the gradients."""
    torch.cuda.set_device(world.device)
    group, size = world.process_group(), world.world_size
    reduced = torch.full((4,), world.rank + 1.0, device=world.device)
    gathered = torch.empty(size, device=world.device)
    work = dist.all_reduce(reduced, group=group, async_op=True)
    assert work is not None
    work.get_future().wait()
    dist.all_gather_into_tensor(gathered, torch.full((1,), float(world.rank), device=world.device), group=group)
    torch.manual_seed(0)
    model = nn.Linear(4, 4).to(world.device)
    wrapped = DistributedDataParallel(model, device_ids=[world.device.index], process_group=group)
    wrapped(torch.full((1, 4), world.rank + 1.0, device=world.device)).sum().backward()
    return reduced.tolist(), gathered.tolist(), [p.grad.cpu() for p in model.parameters() if p.grad is not None]


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("size", [1, 2])
async def test_operations_and_ddp_on_the_group_of_an_nccl_world(size: int) -> None:
    if size > NUM_DEVICES:
        pytest.skip(f"needs {size} CUDA devices, found {NUM_DEVICES}")
    async with worlds(size) as members:
        outcomes = await asyncio.gather(*(asyncio.to_thread(use, world) for world in members))
    for reduced, gathered, gradients in outcomes:
        assert reduced == [sum(range(1, size + 1))] * 4
        assert gathered == list(range(size))
        mean_input = sum(range(1, size + 1)) / size
        assert [gradient.flatten().tolist() for gradient in gradients] == [[mean_input] * 16, [1.0] * 4]
