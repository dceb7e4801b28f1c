"""The nccl channel in real worlds, over a stand-in for NCCL and CUDA: all of it but the device.

The stand-in moves data between the ranks of this process when both sides have launched, in the order of the launches of
each group. Its tensors lie on the CPU, but the views of their memory that the streams hold show something else: reading
or writing through one of them, as on a device, would give wrong data here.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import multiworld as mw
from multiworld.channel import registry
from multiworld.channel.base import ChannelSupport
from multiworld.channel.nccl.channel import NcclChannel
from multiworld.channel.nccl.cuda_order import StreamOrder
from multiworld.channel.nccl.group import NcclGroup
from multiworld.channel.payload import tensors
from multiworld.testing import scaled, wait_until
from tests.unit.channel.nccl.fake_cuda import FakeCuda, FakeLaunchStream, FakeWork

pytestmark = pytest.mark.usefixtures("no_leaks", "no_views")

WAIT_S = 10.0


class Fabric:
    """What connects the stand-ins of all ranks: who has launched what as the n-th operation of which group."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.launched: defaultdict[tuple[str, int], dict[int, tuple[Any, ...]]] = defaultdict(dict)
        self.held = False  # nothing is carried out
        self.slow_rank = -1  # its kernels end when the test says so
        self.slow: list[FakeWork] = []
        self.num_groups = 0

    def arrive(self, label: str, number: int, rank: int, size: int, operation: tuple[Any, ...]) -> None:
        with self.lock:
            present = self.launched[label, number]
            present[rank] = operation
            if len(present) == size and not self.held:
                self._carry_out([present[rank] for rank in range(size)])
                del self.launched[label, number]

    def _carry_out(self, operations: list[tuple[Any, ...]]) -> None:
        kind, inputs, outputs = operations[0][0], [op[1] for op in operations], [op[2] for op in operations]
        if kind == "move":
            ((source,), _), (_, (target,)) = (inputs[0], outputs[0]), (inputs[1], outputs[1])
            target.copy_(source)
        elif kind == "allreduce":
            total = torch.stack([part[0] for part in inputs]).sum(0)
            for (output,) in outputs:
                output.copy_(total)
        elif kind == "allgather":
            for gathered in outputs:
                for rank, output in enumerate(gathered):
                    output.copy_(inputs[rank][0])
        else:
            for rank, received in enumerate(outputs):
                for src, output in enumerate(received):
                    output.copy_(inputs[src][rank])
        for rank, operation in enumerate(operations):
            operation[3].complete = rank != self.slow_rank
            if rank == self.slow_rank:
                self.slow.append(operation[3])


class FakeProcessGroup:
    """The methods of ProcessGroupNCCL that these tests use. A kernel that an abort ends looks complete."""

    def __init__(self, fabric: Fabric, store: Any, rank: int, size: int, label: str) -> None:
        self._fabric, self._store, self._rank, self._size, self._label = fabric, store, rank, size, label
        self._number = 0
        self._works: list[FakeWork] = []

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Exchange an identifier as NCCL does."""
        if self._rank == 0:
            self._store.set("0", bytes(range(128)))
        else:
            assert self._store.get("0") == bytes(range(128))
        with self._fabric.lock:
            self._fabric.num_groups += 1

    def abort(self) -> None:
        for work in self._works:
            work.complete = True

    def size(self) -> int:
        return self._size

    def send(self, tensors: list[Tensor], peer: int, tag: int) -> FakeWork:
        assert (self._rank, peer) == (0, 1)
        return self._issue("move", tensors, [])

    def recv(self, tensors: list[Tensor], peer: int, tag: int) -> FakeWork:
        assert (self._rank, peer) == (1, 0)
        return self._issue("move", [], tensors)

    def allreduce(self, tensors: list[Tensor], options: Any) -> FakeWork:
        return self._issue("allreduce", tensors, tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any) -> FakeWork:
        return self._issue("allgather", inputs, outputs[0])

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], options: Any) -> FakeWork:
        return self._issue("alltoall", inputs, outputs)

    def _issue(self, kind: str, inputs: list[Tensor], outputs: list[Tensor]) -> FakeWork:
        work = FakeWork()
        self._works.append(work)
        self._number += 1
        self._fabric.arrive(self._label, self._number, self._rank, self._size, (kind, inputs, outputs, work))
        return work


class FakeNcclChannel(NcclChannel):
    """The channel over the stand-ins."""

    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})
    fabric: ClassVar[Fabric]

    @classmethod
    def support(cls) -> ChannelSupport:
        return ChannelSupport(cls.name, True)

    def _new_order(self) -> StreamOrder:
        order = StreamOrder(self._device, FakeCuda())
        order.keep_for = lambda stream, payload: None  # type: ignore[method-assign]  # only device memory needs it
        return order

    def _new_group(self, label: str, rank: int, size: int) -> NcclGroup:
        def make(store: Any, rank: int, size: int, label: str) -> FakeProcessGroup:
            return FakeProcessGroup(self.fabric, store, rank, size, label)

        return NcclGroup(label, rank, size, self._device, self._queue, make=make, make_stream=FakeLaunchStream)


@pytest.fixture(autouse=True)
def fabric(monkeypatch: pytest.MonkeyPatch) -> Fabric:
    FakeNcclChannel.fabric = Fabric()
    monkeypatch.setitem(registry.OURS, "nccl", FakeNcclChannel)
    return FakeNcclChannel.fabric


@pytest.fixture
def no_views(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views of memory have its length and nothing else, and cannot be written."""
    monkeypatch.setattr(tensors, "memory_at", lambda pointer, size: memoryview(bytes(size)))


@asynccontextmanager
async def worlds(size: int = 2) -> AsyncIterator[list[mw.World]]:
    async with AsyncExitStack() as stack:
        managers = [await stack.enter_async_context(mw.WorldManager()) for _ in range(size)]
        url = managers[0].serve_store("tcp://127.0.0.1:0")
        joins = [
            manager.join("w", rank, size, url, backend="nccl", device="cpu") for rank, manager in enumerate(managers)
        ]
        yield list(await asyncio.gather(*joins))


async def test_tensors_arrive_whatever_their_size_in_both_directions_at_once(fabric: Fabric) -> None:
    async with worlds() as (here, there):
        for numel in (0, 1, 1000, 1_000_000):
            sent = [torch.arange(float(numel)), -torch.arange(float(numel))]
            received = [torch.full((numel,), 7.0) for _ in range(2)]
            await asyncio.gather(
                here.send(sent[0], 1), there.send(sent[1], 0), here.recv(received[0], 1), there.recv(received[1], 0)
            )
            assert torch.equal(received[1], sent[0])
            assert torch.equal(received[0], sent[1])
        assert fabric.num_groups == 2 + 4  # one of the world and one of each direction, on each side


async def test_payloads_of_several_tensors_arrive() -> None:
    async with worlds() as (here, there):
        payload = {"a": torch.arange(5.0), "none": torch.empty(0, 3), "b": torch.arange(7, dtype=torch.int16)}
        _, received = await asyncio.gather(here.send_tensors(payload, 1), there.recv_tensors(0))
        assert isinstance(received, dict)
        assert all(torch.equal(received[name], tensor) for name, tensor in payload.items())
        _, empty = await asyncio.gather(here.send_tensors([torch.empty(0)], 1), there.recv_tensors(0))
        assert isinstance(empty, list)
        assert [tensor.numel() for tensor in empty] == [0]
        _, nothing = await asyncio.gather(here.send_tensors([], 1), there.recv_tensors(0))
        assert nothing == []


async def test_many_messages_on_several_tags_keep_their_order() -> None:
    async with worlds() as (here, there):
        targets = [torch.zeros(10) for _ in range(60)]
        sends = [here.send(torch.full((10,), float(number)), 1, tag=number % 3) for number in range(60)]
        receives = [there.recv(target, 0, tag=number % 3) for number, target in enumerate(targets)]
        await asyncio.wait_for(asyncio.gather(*sends, *receives), scaled(WAIT_S))
        assert [target[0].item() for target in targets] == list(map(float, range(60)))


async def test_a_receive_from_any_rank_gets_what_one_of_them_sends_and_can_be_given_up(fabric: Fabric) -> None:
    async with worlds(3) as (here, *others):
        targets = [torch.zeros(1000) for _ in range(4)]
        receives = [asyncio.create_task(here.recv_any(target)) for target in targets]
        sends = [world.send(torch.full((1000,), float(world.rank)), 0) for world in others for _ in range(2)]
        await asyncio.wait_for(asyncio.gather(*receives, *sends), scaled(WAIT_S))
        sources = [receive.result() for receive in receives]
        assert sorted(sources) == [1, 1, 2, 2]
        assert all(bool((target == source).all()) for target, source in zip(targets, sources, strict=True))
        target = torch.full((1000,), 7.0)
        with pytest.raises(mw.OperationTimeoutError):
            await here.recv_any(target, timeout_s=0.05)  # nobody has sent: it costs nothing
        assert here.state is mw.WorldState.ACTIVE
        fabric.held = True
        results = await asyncio.gather(
            others[0].send(torch.ones(1000), 0), here.recv_any(target, timeout_s=0.1), return_exceptions=True
        )
        assert isinstance(results[1], mw.OperationTimeoutError)
        assert isinstance(results[0], mw.WorldBrokenError)
        assert bool((target == 7.0).all())


async def test_a_receive_that_does_not_fit_fails_alone_and_the_message_waits() -> None:
    async with worlds() as (here, there):
        sending = asyncio.create_task(here.send(torch.arange(4.0), 1))
        with pytest.raises(mw.TensorMismatchError, match="float32"):
            await there.recv(torch.zeros(5), 0)
        target = torch.zeros(4)
        await there.recv(target, 0)
        await sending
        assert torch.equal(target, torch.arange(4.0))


async def test_a_receive_that_is_cancelled_leaves_its_message_to_the_next() -> None:
    async with worlds() as (here, there):
        given_up = torch.full((1000,), 7.0)
        with pytest.raises(mw.OperationTimeoutError):
            await there.recv(given_up, 0, timeout_s=0.05)
        await here.send(torch.arange(1000.0), 1)  # on the credit of the receive that is gone: into a buffer
        target = torch.zeros(1000)
        await there.recv(target, 0)
        assert torch.equal(target, torch.arange(1000.0))
        assert bool((given_up == 7.0).all())


async def test_a_send_that_nobody_asked_for_can_be_cancelled_and_costs_nothing() -> None:
    async with worlds() as (here, there):
        with pytest.raises(mw.OperationTimeoutError):
            await here.send(torch.zeros(1000), 1, timeout_s=0.05)
        target = torch.zeros(1000)  # as large: that the first was taken back may still be on its way
        await asyncio.gather(here.send(torch.ones(1000), 1), there.recv(target, 0))
        assert torch.equal(target, torch.ones(1000))


async def test_giving_up_a_payload_that_is_moving_costs_the_world_and_leaves_the_tensor_alone(fabric: Fabric) -> None:
    async with worlds() as (here, there):
        await asyncio.gather(here.send(torch.ones(10), 1), there.recv(torch.zeros(10), 0))
        fabric.held = True
        target = torch.full((10,), 7.0)
        results = await asyncio.gather(
            here.send(torch.ones(10), 1), there.recv(target, 0, timeout_s=0.1), return_exceptions=True
        )
        assert isinstance(results[1], mw.OperationTimeoutError)
        assert isinstance(results[0], mw.WorldBrokenError)  # though its kernel looks complete after the abort
        assert bool((target == 7.0).all())


async def test_collectives_are_carried_out_by_the_group() -> None:
    async with worlds(3) as members:
        ranks = range(3)
        tensors = [torch.full((4,), float(rank + 1)) for rank in ranks]
        await asyncio.gather(*(world.all_reduce(tensors[world.rank]) for world in members))
        assert all(bool((tensor == 6.0).all()) for tensor in tensors)
        gathered = [[torch.zeros(2, dtype=torch.int16) for _ in ranks] for _ in ranks]
        await asyncio.gather(
            *(w.all_gather(gathered[w.rank], torch.full((2,), w.rank, dtype=torch.int16)) for w in members)
        )
        assert all([part[0].item() for part in parts] == [0, 1, 2] for parts in gathered)
        inputs = [[torch.full((rank + dst + 1,), float(10 * rank + dst)) for dst in ranks] for rank in ranks]
        outputs = [[torch.zeros(rank + src + 1) for src in ranks] for rank in ranks]
        await asyncio.gather(*(w.all_to_all(outputs[w.rank], inputs[w.rank]) for w in members))
        assert all(torch.equal(outputs[dst][src], inputs[src][dst]) for src in ranks for dst in ranks)
        await asyncio.gather(*(world.barrier() for world in members))


async def test_ranks_that_disagree_on_a_collective_fail_and_the_world_stays() -> None:
    async with worlds() as (here, there):
        results = await asyncio.gather(
            here.all_reduce(torch.zeros(4)), there.all_reduce(torch.zeros(5)), return_exceptions=True
        )
        assert all(isinstance(result, mw.CollectiveMismatchError) for result in results), results
        parts = [[torch.zeros(1), torch.zeros(2)], [torch.zeros(3), torch.zeros(1)]]
        uneven = await asyncio.gather(
            *(w.all_to_all([torch.zeros_like(p) for p in parts[w.rank]], parts[w.rank]) for w in (here, there)),
            return_exceptions=True,
        )
        assert all(isinstance(result, mw.CollectiveMismatchError) for result in uneven), uneven
        await asyncio.gather(here.barrier(), there.barrier())


async def test_what_nccl_cannot_reduce_is_refused_before_anything_is_sent() -> None:
    async with worlds() as (here, there):
        with pytest.raises(TypeError, match="int16"):
            await here.all_reduce(torch.zeros(4, dtype=torch.int16))
        with pytest.raises(TypeError, match="BXOR"):
            await here.all_reduce(torch.zeros(4, dtype=torch.int32), dist.ReduceOp.BXOR)
        await asyncio.gather(here.barrier(), there.barrier())


async def test_a_collective_that_is_given_up_before_all_came_goes_on_with_copies() -> None:
    async with worlds() as (here, there):
        given_up = torch.ones(4)
        with pytest.raises(mw.OperationTimeoutError):
            await here.all_reduce(given_up, timeout_s=0.05)
        given_up.fill_(7.0)
        other = torch.ones(4)
        await there.all_reduce(other)
        assert torch.equal(other, torch.full((4,), 2.0))
        assert bool((given_up == 7.0).all())
        await asyncio.gather(here.barrier(), there.barrier())


async def test_a_world_that_breaks_in_a_collective_never_reports_success(fabric: Fabric) -> None:
    async with worlds() as (here, there):
        fabric.held = True
        calls = [asyncio.create_task(world.all_reduce(torch.ones(4))) for world in (here, there)]
        assert await asyncio.to_thread(wait_until, lambda: bool(fabric.launched), WAIT_S)
        there.abort()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results[0], mw.WorldBrokenError)
        assert isinstance(results[1], mw.WorldClosedError)


async def test_a_collective_that_nccl_fails_breaks_the_world(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiworld.channel.nccl.channel.BLAME_S", 0.05)
    async with worlds() as (here, there):
        fabric.held = True
        calls = [asyncio.create_task(world.all_reduce(torch.ones(4))) for world in (here, there)]
        assert await asyncio.to_thread(
            wait_until, lambda: len(fabric.launched.get(("nccl-w-1-all", 1), ())) == 2, WAIT_S
        )
        fabric.launched["nccl-w-1-all", 1][0][3].failure = "NCCL error: unhandled system error"
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, mw.WorldBrokenError) for result in results), results
        assert "unhandled system error" in str(results[0])


async def test_what_was_sent_before_a_leave_is_delivered() -> None:
    async with worlds() as (here, there):
        targets = [torch.zeros(1000) for _ in range(3)]
        sends = [here.send(torch.full((1000,), float(number)), 1) for number in range(3)]
        sending = asyncio.gather(*sends)
        await asyncio.sleep(0)
        leaving = asyncio.create_task(here.leave())
        for number, target in enumerate(targets):
            await there.recv(target, 0)
            assert bool((target == number).all())
        await sending
        await leaving
        with pytest.raises(mw.PeerLeftError):
            await there.recv(targets[0], 0)


async def test_a_leave_waits_for_the_kernels_of_a_collective_that_the_others_are_still_in(fabric: Fabric) -> None:
    """The communicator that is aborted then may hold what they still read."""
    async with worlds() as (here, there):
        fabric.slow_rank = 1
        late = asyncio.create_task(there.all_reduce(torch.ones(4)))
        await here.all_reduce(torch.ones(4))
        leaving = asyncio.create_task(here.leave())
        await asyncio.sleep(0.1)
        assert not leaving.done()
        assert not late.done()
        fabric.slow[0].complete = True
        await asyncio.wait_for(asyncio.gather(late, leaving), scaled(WAIT_S))


async def test_a_leave_waits_until_the_peer_has_what_was_sent(fabric: Fabric) -> None:
    async with worlds() as (here, there):
        fabric.slow_rank = 1
        target = torch.zeros(4)
        late = asyncio.create_task(there.recv(target, 0))
        await here.send(torch.ones(4), 1)  # done: the memory is free again
        leaving = asyncio.create_task(here.leave())
        await asyncio.sleep(0.1)
        assert not leaving.done()
        assert not late.done()
        fabric.slow[0].complete = True
        await asyncio.wait_for(asyncio.gather(late, leaving), scaled(WAIT_S))
        assert torch.equal(target, torch.ones(4))


async def test_ranks_that_leave_at_once_do_not_wait_for_each_other() -> None:
    async with worlds(3) as members:
        await asyncio.gather(*(world.barrier() for world in members))
        await asyncio.wait_for(asyncio.gather(*(world.leave() for world in members)), scaled(2.5))


async def test_a_world_can_be_formed_again_and_again() -> None:
    for _ in range(3):
        async with worlds() as (here, there):
            target = torch.zeros(3)
            await asyncio.gather(here.send(torch.ones(3), 1), there.recv(target, 0), here.barrier(), there.barrier())
            assert torch.equal(target, torch.ones(3))
