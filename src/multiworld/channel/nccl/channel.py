"""The nccl channel: PyTorch's own NCCL process groups under a world, built without the default group.

A ``StreamMesh`` (one connection of ours to each peer) carries the header of every message and the agreement on every
collective, and nothing of the data. A kernel is launched only when the other side is known to launch its own: a payload
moves when a receive asks for it, a collective begins when all ranks have called the same. So no kernel waits for
somebody who is not there, and what does not fit fails before it costs anything.

An operation begins after what the caller's current stream of the device holds, and is done when the device has done it:
then every stream may use the result.

NCCL knows no deadline short of aborting a communicator. So cancelling an operation that is already launched, or letting
its deadline pass, waits a moment for its end, and if that does not come costs the world. One that still waits for its
peer costs nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from ...errors import ChannelUnavailableError
from ...wire.progress.operation import Operation, drive, settler
from ...wire.progress.waiting import run_in_thread
from .. import collectives
from ..base import ChannelContext, ChannelSupport, Payload
from ..payload.small_message import Received
from ..stream.mesh import StreamMesh
from ..stream.mesh_store import MeshStore
from ..stream.message_stream import MessageStream
from ..stream.owner import StreamOwner
from ..stream_channel.channel import Collective, Steps, StreamChannel
from ..threads import start_reaper
from .agreement import Agreement, GroupFailure
from .calls import check_reduction, launch_collective, why_not_reduced
from .cuda_order import StreamOrder
from .cuda_queue import acquire_queue, release_queue
from .group import NcclGroup, abort_all
from .leaving import LeaveHandshake
from .mover import NcclMover
from .stream import NcclStream

logger = logging.getLogger(__name__)

ABORT_S = 5.0
BLAME_S = 2.5  # by then the links have told which peer was lost, if that is why a collective failed


class NcclChannel(StreamChannel):
    """Headers and agreement over our own connections, all data over NCCL."""

    name: ClassVar[str] = "nccl"
    device_types: ClassVar[frozenset[str]] = frozenset({"cuda"})
    cancel_costs_world: ClassVar[bool] = True

    def __init__(self, context: ChannelContext) -> None:
        self._label = f"nccl-{context.world}-{context.generation}"
        self._device, self._rank = context.device, context.rank
        self._order = self._new_order()
        self._queue = acquire_queue(self._device)
        self._lock = threading.Lock()
        self._ended = False
        self._running: set[Operation[None]] = set()  # collectives that have been launched
        self._groups: list[NcclGroup] = []
        self._movers: list[NcclMover] = []
        self._store: MeshStore | None = None
        self._everyone = self._make_group("all", context.rank, context.world_size)
        super().__init__(context, StreamMesh(context, self._make_stream))
        self._agreement = Agreement(
            self._mesh, copy=self._order.copy, on_stuck=self._on_stuck, on_failed=self._on_failed
        )

        self._leave_handshake = LeaveHandshake(self._mesh, self._agreement.all_of)

    @classmethod
    def support(cls) -> ChannelSupport:
        return ChannelSupport(cls.name, not (reason := _why_not()), reason)

    @classmethod
    def can_reduce(cls, op: str, dtype: torch.dtype) -> bool:
        return why_not_reduced(op, dtype) == ""

    def connect(self, timeout_s: float) -> Operation[None]:
        return drive(self._connect(timeout_s))

    def send(self, tensor: Tensor, dst: int, tag: int) -> Operation[None]:
        return super().send(self._order.after_now([tensor])[0], dst, tag)

    def recv(self, tensor: Tensor, src: int, tag: int) -> Operation[None]:
        return super().recv(self._order.after_now([tensor])[0], src, tag)

    def recv_any(self, tensor: Tensor, tag: int) -> Operation[int]:
        return super().recv_any(self._order.after_now([tensor])[0], tag)

    def send_tensors(self, payload: Payload, dst: int, tag: int) -> Operation[None]:
        return super().send_tensors(self._order.payload_after_now(payload), dst, tag)

    def recv_tensors(self, src: int, tag: int) -> Operation[Payload]:
        stream = self._order.current_stream()

        def keep(received: Operation[Payload]) -> None:
            if received.error is None:
                self._order.keep_for(stream, received.result())

        receive = super().recv_tensors(src, tag)
        receive.add_callback(keep)
        return receive

    def recv_bytes(self, src: int, tag: int) -> Operation[Received]:
        return self.recv_tensors(src, tag)  # type: ignore[return-value]

    def barrier(self) -> Operation[None]:
        """As PyTorch's: all ranks have come here, and their devices have done what their streams held."""
        steps: Steps = lambda port, _: collectives.barrier(port)  # noqa: E731
        return self._collective(
            Collective("barrier", "barrier", [self._order.allocate(1)], steps, op=dist.ReduceOp.MAX)
        )

    def _collective(self, call: Collective) -> Operation[None]:
        """Launch a collective once all ranks agree on it; those of one world do not overtake each other."""
        if call.op is not None:
            check_reduction(call.op, call.tensors[0].dtype)
        said, expected = call.signatures(self.context.world_size)
        tensors = self._order.after_now(call.tensors)
        events = self._order.events([*tensors, *call.tensors])
        self._num_collectives += 1
        operation = self._agreement.start(call.kind, said, expected, tensors, partial(self._launch, call, events))
        operation.slow_cancel = True  # it may have to wait for NCCL
        return operation

    def _launch(self, call: Collective, events: list[Any], tensors: list[Tensor]) -> Operation[None]:
        running: Operation[None] = Operation()
        if not any(tensor.nbytes for tensor in tensors):
            running.succeed(None)
            return running
        with self._lock:
            if not self._ended:
                self._running.add(running)
        if self._ended:
            running.fail(GroupFailure("the process group was closed"))
            return running
        start = partial(launch_collective, call, tensors, self.context.rank)
        self._everyone.launch(events, start, partial(self._over, running))  # refused: ``_reap`` ends it
        return running

    def _on_stuck(self, name: str) -> None:
        rank = self.context.rank
        self.context.report_lost(rank, f"rank {rank} gave up a {name} that was already under way")

    def _on_failed(self, reason: str) -> None:
        """NCCL does not say which member failed; what it says counts if nobody else names one."""
        report = partial(self.context.report_lost, self.context.rank, reason)
        self.context.loop.call_later(BLAME_S, report)

    def _over(self, running: Operation[None], error: Exception | None) -> None:
        with self._lock:
            self._running.discard(running)
        if error is None:
            running.succeed(None)
        else:
            running.fail(GroupFailure(str(error)))

    async def _connect(self, timeout_s: float) -> None:
        await self._mesh.connect(timeout_s)
        context = self.context
        self._store = MeshStore(self._mesh, self._mesh.peers)
        self._leave_handshake.listen()
        if self._ended:
            self._store.close(RuntimeError("the world ended"))
        connecting = run_in_thread(self._connect_everyone, f"{self._label}-connect")
        late = ChannelUnavailableError(context.world, f"NCCL could not connect all ranks within {timeout_s:g} s")
        timer = context.loop.call_later(timeout_s, lambda: _cancel(connecting, late))
        connecting.add_callback(lambda _: timer.cancel())
        await connecting

    def _connect_everyone(self) -> None:
        try:
            self._everyone.connect(self._prefixed("all"))
        except RuntimeError as error:
            raise ChannelUnavailableError(self.context.world, f"NCCL could not connect: {error}") from error

    def _prefixed(self, name: str) -> Any:
        assert self._store is not None, "connected before the streams were"
        return PrefixStore(name, self._store)

    def _new_order(self) -> StreamOrder:
        return StreamOrder(self._device)

    def _new_group(self, label: str, rank: int, size: int) -> NcclGroup:
        return NcclGroup(label, rank, size, self._device, self._queue)

    def _make_group(self, name: str, rank: int, size: int) -> NcclGroup:
        group = self._new_group(f"{self._label}-{name}", rank, size)
        self._groups.append(group)
        return group

    def _make_stream(self, owner: StreamOwner, rank: int) -> MessageStream:
        me = self._rank
        outgoing, incoming = f"{me}-to-{rank}", f"{rank}-to-{me}"
        mover = NcclMover(
            self._make_group(outgoing, 0, 2),
            self._make_group(incoming, 1, 2),
            partial(self._prefixed, outgoing),
            partial(self._prefixed, incoming),
            self._order,
            f"{self._label}-{rank}",
        )
        self._movers.append(mover)
        return NcclStream(owner, rank, mover, self._order)

    def flush(self, timeout_s: float) -> Operation[None]:
        return drive(self._flush(timeout_s))

    async def _flush(self, timeout_s: float) -> None:
        at = time.monotonic() + timeout_s
        parted = self._leave_handshake.part()
        timer = self.context.loop.call_later(timeout_s, settler(parted))
        parted.add_callback(lambda _: timer.cancel())
        await parted
        await super().flush(max(0.1, at - time.monotonic()))

    def end_after_leave(self, error: Exception, timeout_s: float) -> Operation[None]:
        """At once: who left has asked all others whether they have got what they need (``leaving``)."""
        self._end_streams(error, keep_arrived=True)
        return Operation.succeeded(None)

    def _end_streams(self, error: Exception, *, keep_arrived: bool) -> None:
        self._end(error)  # first: what fails in the streams may have to wait until NCCL has let go
        super()._end_streams(error, keep_arrived=keep_arrived)

    def _end(self, error: Exception) -> None:
        """Let nothing end well any more, and give everything back soon. Any thread, idempotent, never blocks."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        for group in self._groups:
            group.close()
        for mover in self._movers:
            mover.close()
        if self._store is not None:
            self._store.close(error)
        self._agreement.abort(error)
        start_reaper(self._reap, f"{self._label}-reaper")

    def _reap(self) -> None:
        with self._lock:
            running = list(self._running)
        touched = [tensor for mover in self._movers for tensor in mover.tensors()]
        let_go = abort_all(self._groups, [touched, running], ABORT_S)
        if not let_go:
            logger.error(
                "%s: NCCL has not ended its kernels within %g s; they may still touch tensors", self._label, ABORT_S
            )
        for mover in self._movers if let_go else ():  # in two steps: what one transfer ends may wait for all
            mover.let_go()
        for mover in self._movers:
            mover.release(RuntimeError("the process group was closed"))
        for operation in running:
            operation.fail(GroupFailure("the process group was closed"))
        for group in self._groups if let_go else ():
            group.drop()
        release_queue(self._device)


def _why_not() -> str:
    """Return why NCCL does not work here; empty if it does."""
    if not dist.is_available():
        return "this PyTorch was built without torch.distributed"
    if torch.version.cuda is None:
        return "this PyTorch was built without CUDA"
    if not dist.is_nccl_available():
        return "this PyTorch was built without NCCL"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    return ""


def _cancel(operation: Operation[Any], error: Exception) -> None:
    operation.cancel(error)
