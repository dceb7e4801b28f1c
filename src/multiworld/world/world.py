"""One world as one process sees it: its members, its state, and the operations on it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..channel.base import ANY_RANK, ChannelStatistics, DataChannel, Payload, ReduceOp
from ..errors import PeerLeftError, WorldBrokenError, WorldClosedError, again
from ..wire.interrupts import has_interrupted_us
from ..wire.progress.operation import Operation, pass_on, settler
from ..wire.progress.thread import ProgressThread
from ..wire.progress.waiting import cancel_async, outcome, run_in_thread, wait_async, wait_blocking
from .operations.arguments import check_seconds
from .operations.blocking import BlockingWorld
from .operations.delivery import Delivery
from .operations.operations import WorldOperations
from .state import WorldChange, WorldState, advance, allows

logger = logging.getLogger(__name__)

T = TypeVar("T")
_ProcessGroup: Any = dist.ProcessGroup  # its stubs lack what subclasses may override
LEAVE_S = 5.0  # a graceful end may take so long
ABORT_S = 0.1  # far longer than it takes, unless it waits for what a signal handler has interrupted
YIELD_EVERY_S = 0.005  # a task whose operations all finish at once still lets the others run


@dataclass(frozen=True, kw_only=True)
class WorldStatistics:
    """Counts of one world; see ``ChannelStatistics`` for the channel's."""

    operations_started: int
    operations_pending: int
    operations_timed_out: int
    age_s: float
    channel: ChannelStatistics


class WorldOwner(Protocol):
    """What a world tells its manager."""

    def world_breaks(self, world: World, error: WorldBrokenError) -> None:
        """It is broken from now on; nothing has been aborted yet."""

    def world_broke(self, world: World, error: WorldBrokenError) -> None:
        """What was pending has failed. Not called for a world that never was active."""

    async def leave_worlds(self, worlds: Sequence[World], timeout_s: float | None) -> None:
        """Leave them at the same time."""

    def leave_worlds_blocking(self, worlds: Sequence[World], timeout_s: float | None) -> None: ...

    def start_beside(self, world: World, name: str, rank: int, world_size: int, timeout_s: float) -> Operation[World]:
        """Join another world at the same store, over the same channel and device."""

    def world_aborted(self, world: World) -> None: ...

    def form_process_group(self, world: World, timeout_s: float) -> GroupOfWorld:
        """Agree with the other ranks on a group. Blocks; all ranks must call it."""

    def mesh_of_group(
        self, group: GroupOfWorld, dim_name: str | Sequence[str] | None, shape: Sequence[int] | None, until: float
    ) -> DeviceMesh:
        """Return its ranks as a mesh. Blocks, until ``until`` (monotonic) at most."""


class GroupOfWorld(_ProcessGroup):  # type: ignore[misc]
    """What a world asks of its process group."""

    def introduce(self) -> None:
        """Make c10d know the group, unless it does or the world is over."""
        raise NotImplementedError

    def take_worlds_of_meshes(self) -> list[World]:
        """Return the worlds that ``World.device_mesh`` has made of its ranks, once: the caller ends them."""
        raise NotImplementedError

    def close(self) -> None:
        """The world is over here. Any thread, idempotent, never blocks."""
        raise NotImplementedError


class World(WorldOperations):
    """A process group that breaks, and is formed again, on its own.

    Made by ``WorldManager.join``. Operations may run concurrently, from any task and, through ``blocking``, from any
    thread. Each one ends in right data or in an error: WorldBrokenError once a member is lost, OperationTimeoutError
    after ``timeout_s`` (seconds; None: no deadline), WorldClosedError after ``leave`` or ``abort`` here, ValueError or
    TypeError for bad arguments.
    """

    def __init__(
        self,
        owner: WorldOwner,
        loop: ProgressThread,
        *,
        name: str,
        rank: int,
        world_size: int,
        generation: int,
        backend: str,
        device: torch.device,
        is_inner: bool = False,
    ) -> None:
        super().__init__(loop, name=name, rank=rank, world_size=world_size, generation=generation, device=device)
        self.backend, self.device = backend, device
        self.is_inner = is_inner
        self._owner = owner
        self._broken: Operation[WorldBrokenError] = Operation()
        self.peer_ids: tuple[str, ...] = ()
        """The members' processes in the order of ranks, once they have met."""
        self.losses: tuple[WorldBrokenError, ...] = ()
        """Of all members that this process has lost, also once the world is broken, until it is closed here."""
        self.parted: Operation[None] = Operation()
        """Once the world is broken: done when what was sent before has arrived, or cannot arrive any more."""
        self._formed_at = time.monotonic()
        self._yielded_at = 0.0
        self._group: GroupOfWorld | None = None
        self._forming_group = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"<World {self.name!r} generation {self.generation} rank {self.rank} of {self.world_size} "
            f"on {self.backend}: {self.state.value}>"
        )

    @property
    def blocking(self) -> BlockingWorld:
        """The same operations for programs without an event loop, and for any thread."""
        return BlockingWorld(self)  # not kept: each would refer to the other

    @property
    def state(self) -> WorldState:
        return self._state

    @property
    def error(self) -> WorldBrokenError | None:
        """What broke this world, if anything did."""
        return self._error

    # ---- point to point

    async def send(self, tensor: Tensor, dst: int, tag: int = 0, timeout_s: float | None = None) -> None:
        """Send a tensor of any dtype and shape; returns when its memory may be changed again."""
        await self._wait(self.start_send(tensor, dst, tag, timeout_s), dst)

    async def recv(self, tensor: Tensor, src: int, tag: int = 0, timeout_s: float | None = None) -> None:
        """Receive into ``tensor``, which must have the dtype and shape that was sent (else TensorMismatchError, and the
        message stays).
        """
        await self._wait(self.start_recv(tensor, src, tag, timeout_s), src)

    async def recv_any(self, tensor: Tensor, tag: int = 0, timeout_s: float | None = None) -> int:
        """Receive into ``tensor`` from whichever rank has a message, and return that rank.

        Receives that name the rank come first. What one rank sent is received in its order, and ranks take turns. A
        message that does not fit raises TensorMismatchError and stays; ``recv_tensors`` takes it.
        """
        return await self._wait(self.start_recv_any(tensor, tag, timeout_s), ANY_RANK)

    async def send_tensors(self, payload: Payload, dst: int, tag: int = 0, timeout_s: float | None = None) -> None:
        """Send a tensor, a list or a ``dict[str, Tensor]``; the receiver need not know dtypes and shapes."""
        await self._wait(self.start_send_tensors(payload, dst, tag, timeout_s), dst)

    async def recv_tensors(self, src: int, tag: int = 0, timeout_s: float | None = None) -> Payload:
        """Receive what ``send_tensors`` (or ``send``) sent, in new tensors."""
        return await self._wait(self.start_recv_tensors(src, tag, timeout_s), src)

    def deliver(
        self,
        src: int,
        deliver: Callable[[Any], None],
        ended: Callable[[Exception], None],
        tag: int = 0,
        *,
        as_bytes: bool = False,
    ) -> Delivery:
        """Hand each payload that ``src`` sends with that tag to ``deliver``, in order, on the running event loop.

        It is quicker than ``recv_tensors`` in a task. ``as_bytes``: a small tensor ``[n]`` uint8 may come as a
        ``SmallMessage`` with the memory that it would have, which is quicker still. ``ended`` is called once, with the
        error that ended it: the world's, or what ``deliver`` raised; not after ``stop`` of what is returned. Nobody
        else may receive there meanwhile.
        """
        delivery = Delivery(self, src, tag, deliver, ended, as_bytes)
        delivery.start()
        return delivery

    # ---- collectives: torch.distributed's semantics, all ranks in the same order

    async def broadcast(self, tensor: Tensor, src: int, timeout_s: float | None = None) -> None:
        """Copy the tensor of rank ``src`` into that of every rank."""
        await self._wait(self.start_broadcast(tensor, src, timeout_s))

    async def all_reduce(self, tensor: Tensor, op: Any = ReduceOp.SUM, timeout_s: float | None = None) -> None:
        """Reduce over all ranks, in place; every rank gets the same bits."""
        await self._wait(self.start_all_reduce(tensor, op, timeout_s))

    async def reduce(self, tensor: Tensor, dst: int, op: Any = ReduceOp.SUM, timeout_s: float | None = None) -> None:
        """Reduce into the tensor of rank ``dst``; the others' stay as they are."""
        await self._wait(self.start_reduce(tensor, dst, op, timeout_s))

    async def all_gather(self, tensor_list: list[Tensor], tensor: Tensor, timeout_s: float | None = None) -> None:
        """Gather every rank's tensor into ``tensor_list`` (``[world_size]``, in rank order)."""
        await self._wait(self.start_all_gather(tensor_list, tensor, timeout_s))

    async def gather(
        self, tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0, timeout_s: float | None = None
    ) -> None:
        """Gather every rank's tensor into ``gather_list`` on rank ``dst`` (None elsewhere)."""
        await self._wait(self.start_gather(tensor, gather_list, dst, timeout_s))

    async def scatter(
        self, tensor: Tensor, scatter_list: list[Tensor] | None = None, src: int = 0, timeout_s: float | None = None
    ) -> None:
        """Fill each rank's tensor with its part of ``scatter_list`` on rank ``src`` (None elsewhere)."""
        await self._wait(self.start_scatter(tensor, scatter_list, src, timeout_s))

    async def reduce_scatter(
        self, output: Tensor, input_list: list[Tensor], op: Any = ReduceOp.SUM, timeout_s: float | None = None
    ) -> None:
        """Reduce the lists element by element over all ranks; rank i gets element i."""
        await self._wait(self.start_reduce_scatter(output, input_list, op, timeout_s))

    async def all_to_all(
        self, output_list: list[Tensor], input_list: list[Tensor], timeout_s: float | None = None
    ) -> None:
        """Send element i of ``input_list`` to rank i, and receive from it into element i of ``output_list``."""
        await self._wait(self.start_all_to_all(output_list, input_list, timeout_s))

    async def barrier(self, timeout_s: float | None = None) -> None:
        """Wait until every rank has come here."""
        await self._wait(self.start_barrier(timeout_s))

    # ---- PyTorch's own distributed features on a world

    def process_group(self, timeout_s: float = 30.0) -> GroupOfWorld:
        """Return the world as a c10d process group, which DDP, FSDP, DTensor, pipelining and checkpoints take.

        The first call is a collective one, and blocks, for at most ``timeout_s``; later ones return the same group.
        There need not be a default group; if there is one, form it before. The group ends with the world.
        """
        with self._forming_group:
            group = self._group
            if group is None:
                group = self._owner.form_process_group(self, timeout_s)
                self.use_process_group(group)
            group.introduce()  # again, where destroy_process_group() of the default group has destroyed all
        return group

    def use_process_group(self, group: GroupOfWorld) -> None:
        """From now on ``process_group`` returns this one. It is closed at once if the world is."""
        with self._lock:
            closed = self._state is WorldState.CLOSED
            self._group = None if closed else group
        if closed:
            group.close()
        group.introduce()

    def start_beside(self, name: str, rank: int, world_size: int, timeout_s: float) -> Operation[World]:
        """Start to join another world with some of the members, at the store of this one."""
        return self._owner.start_beside(self, name, rank, world_size, timeout_s)

    def device_mesh(
        self,
        dim_name: str | Sequence[str] | None = None,
        timeout_s: float = 30.0,
        *,
        shape: Sequence[int] | None = None,
    ) -> DeviceMesh:
        """Return the ranks as a DeviceMesh over ``process_group``, with or without a default group.

        It has one dimension, or those of ``shape``, with a name for each. Each row of such a mesh is a world of its
        own, formed by the first call for that shape. Each call with a ``shape`` is a collective one, as the ranks agree
        on whether a row's world from before still serves all of them. It blocks, for at most ``timeout_s``.
        """
        check_seconds(timeout_s, "timeout_s")
        until = time.monotonic() + timeout_s
        return self._owner.mesh_of_group(self.process_group(timeout_s), dim_name, shape, until)

    # ---- life

    async def leave(self, timeout_s: float | None = None) -> None:
        """Leave gracefully: what was sent before is delivered, and the peers get PeerLeftError.

        At most ``timeout_s`` (default 5). The worlds that ``device_mesh`` has made of its ranks are left with it.
        """
        await self._owner.leave_worlds(self._with_meshes(), timeout_s)

    def abort(self) -> None:
        """Leave at once: every operation here raises WorldClosedError, the peers' world breaks. Never blocks.

        A signal handler may call it. If it has interrupted an operation of this world, that goes on first.
        """
        if not has_interrupted_us():
            self._owner.world_aborted(self)
            return
        # This thread may hold any lock, and cannot give it back before we return.
        aborted = run_in_thread(partial(self._owner.world_aborted, self), "multiworld-abort")
        over = threading.Event()
        aborted.add_callback(lambda _: over.set())
        if over.wait(ABORT_S):
            aborted.result()

    async def wait_broken(self) -> WorldBrokenError:
        """Wait until the world breaks, and return an error to raise that says why.

        WorldClosedError if it is left here instead.
        """
        waiter: Operation[WorldBrokenError] = Operation()
        pass_on(self._broken, waiter)
        return again(await wait_async(waiter))

    def statistics(self) -> WorldStatistics:
        return WorldStatistics(
            operations_started=self._num_started,
            operations_pending=self._num_pending,
            operations_timed_out=self._num_timed_out,
            age_s=time.monotonic() - self._formed_at,
            channel=ChannelStatistics() if self._channel is None else self._channel.statistics(),
        )

    def leave_blocking(self, timeout_s: float | None) -> None:
        self._owner.leave_worlds_blocking(self._with_meshes(), timeout_s)

    def _with_meshes(self) -> list[World]:
        """Return the worlds that ``device_mesh`` has made of this one's ranks, which end with it, and then itself."""
        group = self._group
        return [self] if group is None else [*group.take_worlds_of_meshes(), self]

    def wait_broken_blocking(self) -> WorldBrokenError:
        waiter: Operation[WorldBrokenError] = Operation()  # of this caller alone, who may be interrupted
        pass_on(self._broken, waiter)
        return again(wait_blocking(waiter))

    def keep_reading(self, loop: asyncio.AbstractEventLoop, peer: int) -> None:
        """On that loop's thread: have it read what comes from the peer itself, for as long as something comes."""
        channel = self._channel
        if channel is not None:
            channel.keep_reading(loop, peer)

    def prepare(self, peer: int) -> None:
        """Get ready for a small message of bytes like the last ones of a peer, while nobody waits."""
        channel = self._channel
        if channel is not None:
            channel.prepare(peer)

    async def wait_async(self, operation: Operation[T], peer: int | None = None) -> T:
        """Await an operation that is done by what comes from a peer, or from any: the loop reads that itself."""
        return await self._wait(operation, peer)

    async def _wait(self, operation: Operation[T], peer: int | None = None) -> T:
        channel = self._channel
        if operation.done:
            now = time.monotonic()
            if now - self._yielded_at > YIELD_EVERY_S:
                self._yielded_at = now
                if channel is not None:
                    channel.help_loop(asyncio.get_running_loop(), peer)
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    await cancel_async(operation)
                    raise
            return outcome(operation)
        if channel is None:
            return await wait_async(operation)
        quick_waits = channel.help_loop(asyncio.get_running_loop(), peer)
        return outcome(operation) if operation.done else await wait_async(operation, quick_waits)

    # ---- how the manager drives it

    def abandon_after_fork(self) -> None:
        """In a forked child, where nothing moves any more: operations raise. No lock is safe to take here."""
        self._abandoned, self._state = True, WorldState.CLOSED

    @property
    def channel(self) -> DataChannel | None:
        return self._channel

    def use_channel(self, channel: DataChannel) -> None:
        """From now on breaking the world aborts this channel."""
        with self._lock:
            self._channel = channel
            error = self._error
        if error is not None:
            channel.abort(error)

    def on_broken(self, call: Callable[[], None]) -> None:
        """Call back once the world is broken or closed here."""
        self._broken.add_callback(lambda _: call())

    def activate(self) -> bool:
        """All members are connected. False if the world broke meanwhile."""
        with self._lock:
            if not allows(self._state, WorldChange.FORMED):
                return False
            self._state = advance(self._state, WorldChange.FORMED)
        return True

    def break_with(self, error: WorldBrokenError) -> bool:
        """Go to *broken*, once: abort the channel, fail what is pending, tell the owner. Any thread."""
        with self._lock:
            if not allows(self._state, WorldChange.BROKE):
                return False
            forming = self._state is WorldState.FORMING
            self._error = error
            self._state = advance(self._state, WorldChange.BROKE)
        self._owner.world_breaks(self, error)
        try:
            self._end_channel(error)
        finally:
            if not forming:
                self._owner.world_broke(self, error)
            self._broken.succeed(error)
        return True

    def note_loss(self, error: WorldBrokenError) -> None:
        """A member is lost, whether the world is broken by then or not. Progress thread only."""
        self.losses += (error,)

    def _end_channel(self, error: WorldBrokenError) -> None:
        channel, parted = self._channel, Operation.succeeded(None)
        try:
            if channel is not None and isinstance(error, PeerLeftError):
                parted = channel.end_after_leave(error, LEAVE_S)
            elif channel is not None:
                channel.abort(error)
        finally:
            parted.add_callback(settler(self.parted))

    def change(self, change: WorldChange) -> bool:
        """Go to *left* or *closed*; False if that is not possible any more."""
        with self._lock:
            if not allows(self._state, change):
                return False
            self._state = advance(self._state, change)
        if change is WorldChange.CLOSED or self._state is WorldState.CLOSED:
            closed = WorldClosedError(self.name, self.generation)
            if self._channel is not None:
                self._channel.abort(closed)
            self._broken.fail(closed)
            with self._lock:
                group, self._group = self._group, None
            if group is not None:
                group.close()
        return True
