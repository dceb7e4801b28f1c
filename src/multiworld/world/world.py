"""One world as one process sees it: its members, its state, and the operations on it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from ..channel.base import ANY_RANK, ChannelStatistics, DataChannel, Payload, ReduceOp
from ..channel.collectives.validate import check_separate
from ..errors import OperationTimeoutError, PeerLeftError, WorldBrokenError, WorldClosedError
from ..wire.operation import Operation, pass_on, settler
from ..wire.progress import ProgressThread
from ..wire.waiting import cancel_async, outcome, run_in_thread, wait_async, wait_blocking, while_blocked
from .arguments import Arguments
from .blocking import BlockingWorld
from .rounds import CollectiveRounds
from .state import WorldChange, WorldState, advance, allows

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from .process_group import WorldProcessGroup

__all__ = ["World", "WorldOwner", "WorldStatistics"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
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

    async def leave_world(self, world: World, timeout_s: float | None) -> None: ...

    def leave_world_blocking(self, world: World, timeout_s: float | None) -> None: ...

    def world_aborted(self, world: World) -> None: ...


class World:
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
    ) -> None:
        self.name, self.rank, self.world_size, self.generation = name, rank, world_size, generation
        self.backend, self.device = backend, device
        self._owner, self._loop = owner, loop
        self._state = WorldState.FORMING
        self._lock = threading.Lock()
        self._error: WorldBrokenError | None = None
        self._channel: DataChannel | None = None
        self._arguments = Arguments(rank, world_size, device)
        self._broken: Operation[WorldBrokenError] = Operation()
        self.rounds = CollectiveRounds()
        self._num_started = self._num_pending = self._num_timed_out = 0
        self._formed_at = time.monotonic()
        self._yielded_at = 0.0
        self._abandoned = False
        self._group: WorldProcessGroup | None = None
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

    def process_group(self, timeout_s: float = 30.0) -> WorldProcessGroup:
        """Return the world as a c10d process group, which DDP, FSDP, DTensor, pipelining and checkpoints take.

        The first call is a collective one, and blocks, for at most ``timeout_s``; later ones return the same group.
        There need not be a default group; if there is one, form it before. The group ends with the world.
        """
        from .process_group import form_process_group

        with self._forming_group:
            group = self._group
            if group is None:
                group = form_process_group(self, timeout_s)
                with self._lock:
                    closed = self._state is WorldState.CLOSED
                    self._group = None if closed else group
                if closed:
                    group.close()
            group.introduce()  # again, where destroy_process_group() of the default group has destroyed all
        return group

    def device_mesh(self, dim_name: str | None = None, timeout_s: float = 30.0) -> DeviceMesh:
        """Return the ranks as a DeviceMesh of one dimension over ``process_group``, with or without a default group."""
        from .group_mesh import WorldMesh

        return WorldMesh(self.process_group(timeout_s), dim_name)

    # ---- life

    async def leave(self, timeout_s: float | None = None) -> None:
        """Leave gracefully: what was sent before is delivered, and the peers get PeerLeftError.

        At most ``timeout_s`` (default 5).
        """
        await self._owner.leave_world(self, timeout_s)

    def abort(self) -> None:
        """Leave at once: every operation here raises WorldClosedError, the peers' world breaks. Never blocks."""
        self._owner.world_aborted(self)

    async def wait_broken(self) -> WorldBrokenError:
        """Wait until the world breaks, and return the error that says why.

        WorldClosedError if it is left here instead.
        """
        waiter: Operation[WorldBrokenError] = Operation()
        pass_on(self._broken, waiter)
        return await wait_async(waiter)

    def statistics(self) -> WorldStatistics:
        return WorldStatistics(
            operations_started=self._num_started,
            operations_pending=self._num_pending,
            operations_timed_out=self._num_timed_out,
            age_s=time.monotonic() - self._formed_at,
            channel=ChannelStatistics() if self._channel is None else self._channel.statistics(),
        )

    # ---- how operations start (shared by the asyncio and the blocking API)

    def start_send(self, tensor: Tensor, dst: int, tag: int, timeout_s: float | None) -> Operation[None]:
        source = self._arguments.outgoing(tensor, "tensor")
        self._arguments.check_message(dst, "dst", tag)
        return self._start("send", lambda channel: channel.send(source, dst, tag), timeout_s)

    def start_recv(self, tensor: Tensor, src: int, tag: int, timeout_s: float | None) -> Operation[None]:
        target, finish = self._arguments.incoming(tensor, "tensor")
        self._arguments.check_message(src, "src", tag)
        return self._start("recv", lambda channel: channel.recv(target, src, tag), timeout_s, finish, left=(src, tag))

    def start_recv_any(self, tensor: Tensor, tag: int, timeout_s: float | None) -> Operation[int]:
        if self.world_size == 1:
            raise ValueError(f"world {self.name!r} has no other rank to receive from")
        target, finish = self._arguments.incoming(tensor, "tensor")
        self._arguments.check_tag(tag)
        return self._start(
            "recv_any", lambda channel: channel.recv_any(target, tag), timeout_s, finish, left=(None, tag)
        )

    def start_send_tensors(self, payload: Payload, dst: int, tag: int, timeout_s: float | None) -> Operation[None]:
        ready = self._arguments.payload(payload)
        self._arguments.check_message(dst, "dst", tag)
        return self._start("send_tensors", lambda channel: channel.send_tensors(ready, dst, tag), timeout_s)

    def start_recv_tensors(self, src: int, tag: int, timeout_s: float | None) -> Operation[Payload]:
        self._arguments.check_message(src, "src", tag)
        return self._start("recv_tensors", lambda channel: channel.recv_tensors(src, tag), timeout_s, left=(src, tag))

    def start_broadcast(self, tensor: Tensor, src: int, timeout_s: float | None) -> Operation[None]:
        self._arguments.check_rank(src, "src")
        target, finish = self._arguments.incoming(tensor, "tensor", keep=True)
        return self._start_collective("broadcast", lambda channel: channel.broadcast(target, src), timeout_s, finish)

    def start_all_reduce(self, tensor: Tensor, op: Any, timeout_s: float | None) -> Operation[None]:
        self._arguments.check_reduce(op, tensor)
        target, finish = self._arguments.incoming(tensor, "tensor", keep=True)
        return self._start_collective("all_reduce", lambda channel: channel.all_reduce(target, op), timeout_s, finish)

    def start_reduce(self, tensor: Tensor, dst: int, op: Any, timeout_s: float | None) -> Operation[None]:
        self._arguments.check_rank(dst, "dst")
        self._arguments.check_reduce(op, tensor)
        target, finish = self._arguments.incoming(tensor, "tensor", keep=True)
        return self._start_collective("reduce", lambda channel: channel.reduce(target, dst, op), timeout_s, finish)

    def start_all_gather(self, tensor_list: list[Tensor], tensor: Tensor, timeout_s: float | None) -> Operation[None]:
        source = self._arguments.outgoing(tensor, "tensor")
        targets, finish = self._arguments.incoming_list(tensor_list, "tensor_list", like=tensor)
        check_separate(tensor_list, "tensor_list")
        return self._start_collective(
            "all_gather", lambda channel: channel.all_gather(targets, source), timeout_s, finish
        )

    def start_gather(
        self, tensor: Tensor, gather_list: list[Tensor] | None, dst: int, timeout_s: float | None
    ) -> Operation[None]:
        self._arguments.check_rank(dst, "dst")
        source = self._arguments.outgoing(tensor, "tensor")
        targets, finish = self._arguments.incoming_at(gather_list, "gather_list", root=dst, like=tensor)
        check_separate(gather_list or (), "gather_list")
        return self._start_collective("gather", lambda channel: channel.gather(source, targets, dst), timeout_s, finish)

    def start_scatter(
        self, tensor: Tensor, scatter_list: list[Tensor] | None, src: int, timeout_s: float | None
    ) -> Operation[None]:
        self._arguments.check_rank(src, "src")
        target, finish = self._arguments.incoming(tensor, "tensor")
        sources = self._arguments.outgoing_at(scatter_list, "scatter_list", root=src, like=tensor)
        return self._start_collective(
            "scatter", lambda channel: channel.scatter(target, sources, src), timeout_s, finish
        )

    def start_reduce_scatter(
        self, output: Tensor, input_list: list[Tensor], op: Any, timeout_s: float | None
    ) -> Operation[None]:
        self._arguments.check_reduce(op, output)
        target, finish = self._arguments.incoming(output, "output")
        sources = self._arguments.outgoing_list(input_list, "input_list", like=output)
        return self._start_collective(
            "reduce_scatter", lambda channel: channel.reduce_scatter(target, sources, op), timeout_s, finish
        )

    def start_all_to_all(
        self, output_list: list[Tensor], input_list: list[Tensor], timeout_s: float | None
    ) -> Operation[None]:
        targets, finish = self._arguments.incoming_list(output_list, "output_list", like=None)
        sources = self._arguments.outgoing_list(input_list, "input_list", like=None)
        check_separate(output_list, "output_list", input_list, "input_list")
        return self._start_collective(
            "all_to_all", lambda channel: channel.all_to_all(targets, sources), timeout_s, finish
        )

    def start_barrier(self, timeout_s: float | None) -> Operation[None]:
        return self._start_collective("barrier", lambda channel: channel.barrier(), timeout_s)

    def wait_thread(self, operation: Operation[T], peer: int | None, timeout_s: float | None) -> T:
        """Block the calling thread until the operation is done; meanwhile it reads what comes from the peer, or all."""
        channel = self._channel
        if operation.done:
            return outcome(operation)
        if channel is None:
            return wait_blocking(operation)
        return wait_blocking(operation, help_with=partial(channel.help, operation, peer, timeout_s))

    def wait_for(self, operation: Operation[Any], peer: int | None, timeout_s: float | None) -> bool:
        """Block the calling thread until the operation is done or the time is over; False: it goes on.

        It goes on, too, when the thread is interrupted.
        """
        channel = self._channel
        if timeout_s is None and channel is not None:  # the quick way, which mostly is all
            while_blocked(partial(channel.help, operation, peer, None))
            if operation.done:
                return True
        waiter: Operation[None] = Operation()
        settle = settler(waiter)
        operation.add_callback(settle)
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, settle)
        try:
            self.wait_thread(waiter, peer, None)
        finally:
            operation.discard_callback(settle)
            if timer is not None:
                timer.cancel()
        return operation.done

    def soon(self, call: Callable[[], None]) -> None:
        """Have the progress thread call this: for those who must not take a lock, as a finalizer."""
        self._loop.call_soon(call)

    def leave_blocking(self, timeout_s: float | None) -> None:
        self._owner.leave_world_blocking(self, timeout_s)

    def wait_broken_blocking(self) -> WorldBrokenError:
        waiter: Operation[WorldBrokenError] = Operation()  # of this caller alone, who may be interrupted
        pass_on(self._broken, waiter)
        return wait_blocking(waiter)

    def _start(
        self,
        name: str,
        issue: Callable[[DataChannel], Operation[T]],
        timeout_s: float | None,
        finish: Callable[[], None] | None = None,
        left: tuple[int | None, int] | None = None,
    ) -> Operation[T]:
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s must be a positive number of seconds or None, got {timeout_s!r}")
        channel = self._check_open(left)
        operation = issue(channel)
        self._num_started += 1
        if finish is not None:
            operation = _then(operation, finish)
        if not operation.done:
            self._num_pending += 1
            operation.add_callback(self._ended)
            if self._error is not None and left is None:  # it broke between the look and the start
                operation.cancel(self._error)
            elif timeout_s is not None:
                self._set_deadline(name, operation, timeout_s)
        return operation

    def _start_collective(
        self,
        name: str,
        issue: Callable[[DataChannel], Operation[None]],
        timeout_s: float | None,
        finish: Callable[[], None] | None = None,
    ) -> Operation[None]:
        operation = self._start(name, issue, timeout_s, finish)
        number = self.rounds.start()
        operation.add_callback(lambda _: self.rounds.end(number))
        return operation

    def _check_open(self, left: tuple[int | None, int] | None) -> DataChannel:
        if self._state is WorldState.ACTIVE:
            assert self._channel is not None
            return self._channel
        error = self._error
        if self._state is WorldState.BROKEN and error is not None:
            if isinstance(error, PeerLeftError) and left is not None and self._channel is not None:
                src, tag = left
                if self._channel.deliver_left(src, tag):
                    return self._channel
            raise type(error)(*error.args)
        raise WorldClosedError(self.name, self.generation)

    def _ended(self, operation: Operation[Any]) -> None:
        self._num_pending -= 1

    def _set_deadline(self, name: str, operation: Operation[Any], timeout_s: float) -> None:
        error = OperationTimeoutError(self.name, self.generation, name, timeout_s)

        def cancel() -> None:
            if operation.cancel(error):
                with self._lock:
                    self._num_timed_out += 1

        def expire() -> None:
            if operation.slow_cancel:
                run_in_thread(cancel, "multiworld-expire")
            else:
                cancel()

        timer = self._loop.call_later(timeout_s, expire)
        operation.add_callback(lambda _: timer.cancel())

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

    @property
    def abandoned(self) -> bool:
        """Whether this is the copy of it in a forked child."""
        return self._abandoned

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
        if self._channel is not None and not isinstance(error, PeerLeftError):
            self._channel.abort(error)
        elif self._channel is not None:
            self._channel.end_after_leave(error)
        if not forming:
            self._owner.world_broke(self, error)
        self._broken.succeed(error)
        return True

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


def _then(operation: Operation[T], finish: Callable[[], None]) -> Operation[T]:
    """Return an operation that is done when ``finish`` (a copy into the caller's memory layout) has run.

    Cancelled, it does not run any more once the cancel has returned; but what had come by then is delivered.
    """
    finishing = threading.Lock()

    def detach() -> None:
        operation.cancel(_Detached())
        complete(operation)

    def complete(_: Operation[T]) -> None:
        with finishing:
            if outer.done:
                return
            error = operation.error
            if error is None:
                try:
                    finish()
                    outer.on_undo = operation.on_undo
                    outer.settle(operation.result())
                except Exception as raised:  # it belongs to the caller
                    error = raised
        if error is not None:
            outer.fail(error)
        else:
            outer.tell()

    outer: Operation[T] = Operation(detach)
    outer.slow_cancel = operation.slow_cancel
    operation.add_callback(complete)
    return outer


class _Detached(Exception):
    """Never seen by users."""
