"""What all channels over message streams share: point-to-point operations, and what each collective is."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor

from ...wire.progress.operation import Operation, drive
from ...wire.progress.spinning import QuickWaits
from .. import collectives
from ..base import ChannelContext, ChannelStatistics, DataChannel, Payload
from ..collectives.reduction import reduce_op_name
from ..payload.small_message import Received
from ..payload.tensors import describe, describe_text, payload_segments
from ..shared_memory.shared_area import SharedArea, Turn
from ..stream.mesh import StreamMesh
from ..stream.message import USER
from ..stream.sending import SLOW_CANCEL_BYTES
from .disagreement import OpenCollectives
from .port import Gates, StreamPort

logger = logging.getLogger(__name__)

Steps = Callable[[StreamPort, list[Tensor]], Coroutine[Operation[Any], None, None]]


@dataclass(frozen=True)
class Collective:
    """One collective call: all its tensors in one list, and the steps that carry it out over send and receive.

    ``signature`` says what all ranks must agree on; it begins with the name of the method.
    """

    kind: str
    signature: str
    tensors: list[Tensor]
    steps: Steps
    op: Any = None
    root: int = 0

    def signatures(self, size: int) -> tuple[list[str], list[str]]:
        """Return what this rank tells each rank about the call, and what it expects each to tell it.

        The same for all but all_to_all, where each pair of ranks has a number of elements of its own to agree on; as
        in c10d, they may have another shape there.
        """
        if self.kind != "all_to_all":
            return [self.signature] * size, [self.signature] * size
        outputs, inputs = self.tensors[:size], self.tensors[size:]
        return [_exchange_of(part) for part in inputs], [_exchange_of(part) for part in outputs]


class StreamChannel(DataChannel):
    """A channel whose messages go over a ``StreamMesh``."""

    def __init__(self, context: ChannelContext, mesh: StreamMesh, area: SharedArea | None = None) -> None:
        """``area``: what the ranks share, if they do, for collectives."""
        super().__init__(context)
        self._mesh, self._area = mesh, area
        self._gates = Gates()
        self._numbering = threading.Lock()
        self._next_seq = 1
        self._num_collectives = 0
        self._open = OpenCollectives(context.loop, mesh)
        mesh.on_asked = self._open.asked

    def _collective(self, call: Collective) -> Operation[None]:
        """Carry out a collective by its steps; those of one world do not mix."""
        self._num_collectives += 1
        signature, pairs, port = call.signature.encode(), self._pairs(call), None
        turn = Turn(self._next_seq)
        try:
            with self._numbering:  # the turns are in the order of the numbers, whichever threads call
                seq = turn.seq = self._next_seq
                if self._area is not None:
                    self._area.reserve(turn)
                port = StreamPort(self.context, self._mesh, seq, signature, self._area, turn, self._gates, pairs)
                self._next_seq = seq + 1
            operation = drive(call.steps(port, call.tensors))
        except BaseException as error:  # an interrupt: the peers wait for us, and later calls for this one's turn
            if port is not None and self._next_seq > turn.seq:
                port.end(error)
            elif self._area is not None:
                self._area.leave(turn, failed=False)
            raise
        port.operation = operation
        if not port.shares and self._area is not None:
            self._area.leave(turn, failed=False)
        operation.slow_cancel = port.shares or sum(tensor.nbytes for tensor in call.tensors) > SLOW_CANCEL_BYTES
        operation.add_callback(port.close)
        self._open.begin(seq, signature, operation)
        return operation

    def _pairs(self, call: Collective) -> tuple[list[bytes], list[bytes]] | None:
        """Return what is agreed with each rank alone, if there is anything."""
        if call.kind != "all_to_all":
            return None
        said, expected = call.signatures(self.context.world_size)
        return [text.encode() for text in said], [text.encode() for text in expected]

    def connect(self, timeout_s: float) -> Operation[None]:
        return self._mesh.connect(timeout_s)

    def send(self, tensor: Tensor, dst: int, tag: int) -> Operation[None]:
        return self._mesh.stream(dst).send_tensor(USER, tag, describe(tensor), tensor)

    def recv(self, tensor: Tensor, src: int, tag: int) -> Operation[None]:
        return self._mesh.stream(src).recv(USER, tag, describe(tensor), tensor)  # type: ignore[return-value]

    def recv_any(self, tensor: Tensor, tag: int) -> Operation[int]:
        return self._mesh.any_receives.recv(tag, describe(tensor), tensor)

    def send_tensors(self, payload: Payload, dst: int, tag: int) -> Operation[None]:
        meta, segments, tensors = payload_segments(payload)
        return self._mesh.stream(dst).send(USER, tag, meta, segments, tensors)

    def recv_tensors(self, src: int, tag: int) -> Operation[Payload]:
        return self._mesh.stream(src).recv(USER, tag, None, None)

    def send_bytes(self, packed: bytearray, dst: int, tag: int) -> bool:
        return self._mesh.stream(dst).send_bytes(USER, tag, packed)

    def recv_bytes(self, src: int, tag: int) -> Operation[Received]:
        return self._mesh.stream(src).recv_bytes(USER, tag)

    def prepare(self, src: int) -> None:
        self._mesh.stream(src).prepare()

    def broadcast(self, tensor: Tensor, src: int) -> Operation[None]:
        signature = f"broadcast from {src} of {_text(tensor)}"
        steps: Steps = lambda port, tensors: collectives.broadcast(port, tensors[0], src)  # noqa: E731
        return self._collective(Collective("broadcast", signature, [tensor], steps, root=src))

    def all_reduce(self, tensor: Tensor, op: Any) -> Operation[None]:
        signature = f"all_reduce({reduce_op_name(op)}) of {_text(tensor)}"
        steps: Steps = lambda port, tensors: collectives.all_reduce(port, tensors[0], op)  # noqa: E731
        return self._collective(Collective("all_reduce", signature, [tensor], steps, op=op))

    def reduce(self, tensor: Tensor, dst: int, op: Any) -> Operation[None]:
        signature = f"reduce({reduce_op_name(op)}) to {dst} of {_text(tensor)}"
        steps: Steps = lambda port, tensors: collectives.reduce(port, tensors[0], dst, op)  # noqa: E731
        return self._collective(Collective("reduce", signature, [tensor], steps, op=op, root=dst))

    def all_gather(self, tensors: list[Tensor], tensor: Tensor) -> Operation[None]:
        """``[tensor, *tensors]``."""
        signature = f"all_gather of {_text(tensor)}"
        steps: Steps = lambda port, tensors: collectives.all_gather(port, tensors[1:], tensors[0])  # noqa: E731
        return self._collective(Collective("all_gather", signature, [tensor, *tensors], steps))

    def gather(self, tensor: Tensor, gather_list: list[Tensor] | None, dst: int) -> Operation[None]:
        """``[tensor, *gather_list]``."""
        signature = f"gather to {dst} of {_text(tensor)}"
        steps: Steps = lambda port, tensors: collectives.gather(port, tensors[0], tensors[1:] or None, dst)  # noqa: E731
        return self._collective(Collective("gather", signature, [tensor, *(gather_list or ())], steps, root=dst))

    def scatter(self, tensor: Tensor, scatter_list: list[Tensor] | None, src: int) -> Operation[None]:
        """``[tensor, *scatter_list]``."""
        signature = f"scatter from {src} of {_text(tensor)}"
        steps: Steps = lambda port, tensors: collectives.scatter(port, tensors[0], tensors[1:] or None, src)  # noqa: E731
        return self._collective(Collective("scatter", signature, [tensor, *(scatter_list or ())], steps, root=src))

    def reduce_scatter(self, output: Tensor, input_list: list[Tensor], op: Any) -> Operation[None]:
        """``[output, *input_list]``."""
        signature = f"reduce_scatter({reduce_op_name(op)}) of {_text(output)}"
        steps: Steps = lambda port, tensors: collectives.reduce_scatter(port, tensors[0], tensors[1:], op)  # noqa: E731
        return self._collective(Collective("reduce_scatter", signature, [output, *input_list], steps, op=op))

    def all_to_all(self, output_list: list[Tensor], input_list: list[Tensor]) -> Operation[None]:
        """``[*output_list, *input_list]``."""
        size = self.context.world_size
        steps: Steps = lambda port, tensors: collectives.all_to_all(port, tensors[:size], tensors[size:])  # noqa: E731
        return self._collective(Collective("all_to_all", "all_to_all", [*output_list, *input_list], steps))

    def barrier(self) -> Operation[None]:
        steps: Steps = lambda port, _: collectives.barrier(port)  # noqa: E731
        return self._collective(Collective("barrier", "barrier", [], steps))

    def help(self, operation: Operation[Any], peer: int | None, timeout_s: float | None) -> None:
        self._gates.open_here()
        if not operation.done:
            self._mesh.help(operation, peer, timeout_s)

    def help_loop(self, loop: asyncio.AbstractEventLoop, peer: int | None) -> QuickWaits | None:
        try:
            return self._mesh.help_loop(self.context.loop.reader_for(loop), peer)
        except OSError as error:  # there is no descriptor for it
            logger.debug("the progress thread goes on reading for an asyncio loop: %s", error)
            return None

    def keep_reading(self, loop: asyncio.AbstractEventLoop, peer: int) -> None:
        self._mesh.stream(peer).connection.keep_with(self.context.loop.reader_for(loop))

    def flush(self, timeout_s: float) -> Operation[None]:
        return self._mesh.finish(timeout_s)

    def drained(self, rank: int) -> Operation[None]:
        return self._mesh.stream(rank).drained

    def deliver_left(self, src: int | None, tag: int) -> bool:
        return any(self._mesh.stream(rank).has_complete(tag) for rank in (self._mesh.peers if src is None else [src]))

    def end_after_leave(self, error: Exception, timeout_s: float) -> Operation[None]:
        ended: Operation[None] = Operation()

        def end(_: Operation[None]) -> None:
            self._end_streams(error, keep_arrived=True)
            ended.succeed(None)

        # What fails may make others fail, which are cancelled then: so nothing does before all that is known.
        withdrawn = self._mesh.withdraw(error)
        if self._mesh.moves_beside:
            self._end_streams(error, keep_arrived=True)
        else:
            self._mesh.abort_moving(error)
            if self._area is not None:
                self._area.close(error)
        for operation in withdrawn:
            operation.on_cancel = None
            operation.fail(error)
        self._mesh.finish(timeout_s).add_callback(end)
        return ended

    def abort(self, error: Exception) -> None:
        self._end_streams(error, keep_arrived=False)

    def _end_streams(self, error: Exception, *, keep_arrived: bool) -> None:
        """Give everything back, or all but what has arrived. Any thread, idempotent, never blocks."""
        self._mesh.abort(error, keep_arrived=keep_arrived)
        if self._area is not None:
            self._area.close(error)

    def statistics(self) -> ChannelStatistics:
        return self._mesh.statistics(self._num_collectives)


def _exchange_of(part: Tensor) -> str:
    return f"all_to_all of {part.numel()} elements of {str(part.dtype).removeprefix('torch.')}"


def _text(tensor: Tensor) -> str:
    return _text_of(describe(tensor))


_text_of = lru_cache(maxsize=1024)(describe_text)
