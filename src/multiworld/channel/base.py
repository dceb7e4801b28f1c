"""The interface of a data channel: what moves tensors between the ranks of one world, and what it is given to do so."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from ..store.base import Store
from ..wire.connection.connection import Connection
from ..wire.connection.sink import ConnectionSink
from ..wire.progress.operation import Operation
from ..wire.progress.spinning import QuickWaits
from ..wire.progress.thread import ProgressThread
from .payload.small_message import Received
from .payload.tensors import Payload
from .torch_errors import derive_from_torch

__all__ = ["ANY_RANK", "ChannelContext", "ChannelStatistics", "ChannelSupport", "Connector", "DataChannel", "Payload"]

ANY_RANK = -1  # stands for the peer of a receive that takes a message from whichever rank has one
ReduceOp = torch.distributed.ReduceOp

derive_from_torch()  # here, because all that has a world imports this


@dataclass(frozen=True)
class ChannelSupport:
    """Whether a channel can work on this machine, and if not, why; else what it needs besides, if anything."""

    name: str
    works: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ChannelStatistics:
    """Counts since the channel was made; depths at this moment."""

    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    collectives: int = 0
    receives_waiting: int = 0
    messages_waiting: int = 0
    sends_waiting: int = 0


class Connector(Protocol):
    """Opens authenticated connections between the members of one world and generation."""

    def shares_host(self, rank: int) -> bool:
        """Whether it is worth trying to reach a rank by ``dial(..., local=True)``: it runs on this host."""

    def dial(self, rank: int, sink: ConnectionSink, *, timeout_s: float, local: bool = False) -> Operation[Connection]:
        """Connect to a rank, which must ``expect`` us. ``local``: over a Unix socket, which can carry descriptors."""

    def expect(self, rank: int, sink: ConnectionSink) -> Operation[Connection]:
        """Wait for that rank to dial us, either way."""


@dataclass(frozen=True, kw_only=True)
class ChannelContext:
    """What a channel of one world and generation gets to work with."""

    world: str
    generation: int
    rank: int
    world_size: int
    device: torch.device
    hosts: Sequence[str]
    """Each rank's numeric address."""
    loop: ProgressThread
    connector: Connector
    store: Store
    store_prefix: str
    """Keys under it belong to this world and generation; the channel deletes its own when it is connected."""
    compute: Callable[[Callable[[], None]], Operation[None]]
    """Run arithmetic on the manager's worker thread."""
    report_lost: Callable[[int, str], None]
    """Tell the world that the data path to a rank failed, with the reason. Any thread.

    With this rank's own number: that the channel cannot go on because of what happened here; the world breaks at once.
    """


class DataChannel(ABC):
    """Moves tensors between the ranks of one world. One instance serves one world and generation.

    Every method returns at once with an Operation. The world checks arguments, deadlines and devices before it calls,
    and fails all operations when it breaks; the channel must make ``Operation.cancel`` safe: when it returns, the
    caller's tensors are no longer read or written. ``Operation.on_undo`` of a receive that has succeeded puts its
    message back, for a task that was cancelled before it heard of it.

    Point-to-point operations match per (peer, tag, direction) in the order of the calls, collectives in the order of
    theirs. Tensors are contiguous and on the world's device. Outputs of a collective do not overlap, but one may be the
    caller's own input, as in ``all_gather(tensors, tensors[rank])``.

    ``multiworld.testing.channel_conformance`` checks all of this for any channel.
    """

    name: ClassVar[str]
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})
    authenticates: ClassVar[bool] = False
    """Whether what goes over its connections is authenticated, payloads too; a world needs a job token then."""
    cancel_costs_world: ClassVar[bool] = False
    """Whether an operation whose data is moving already can be stopped only by breaking the world."""

    def __init__(self, context: ChannelContext) -> None:
        self.context = context

    @classmethod
    def support(cls) -> ChannelSupport:
        """Say whether the channel can work here, without side effects."""
        return ChannelSupport(cls.name, True)

    @classmethod
    def can_move(cls, dtype: torch.dtype) -> bool:
        """Say whether tensors of that type can be sent. Those that cannot raise TypeError, before anything is sent."""
        return True

    @classmethod
    def can_reduce(cls, op: str, dtype: torch.dtype) -> bool:
        """Say whether it has that ``torch.distributed.ReduceOp`` (``"SUM"``, ``"AVG"`` …) for elements of that type.

        What it has not raises TypeError before anything is sent. The world refuses by itself what makes no sense at
        all, such as the bits of a float.
        """
        return True

    @classmethod
    def refusal(cls, elsewhere: Sequence[int]) -> str:
        """Say why it cannot serve a world with these ranks on other hosts than ours; empty if it can, as by default."""
        return ""

    @abstractmethod
    def connect(self, timeout_s: float) -> Operation[None]:
        """Connect to all ranks; called once, on any thread.

        OSError: a rank could not be reached. The join goes on with the next generation then, until its time is over.
        """

    @abstractmethod
    def send(self, tensor: Tensor, dst: int, tag: int) -> Operation[None]:
        """Done when the tensor's memory may be changed again."""

    @abstractmethod
    def recv(self, tensor: Tensor, src: int, tag: int) -> Operation[None]:
        """Receive into a contiguous tensor.

        Fails with TensorMismatchError when dtype or shape differ from what was sent.
        """

    def recv_any(self, tensor: Tensor, tag: int) -> Operation[int]:
        """As ``recv``, from whichever rank has a message that no other receive gets; done with its rank.

        Optional. No rank that has sent may wait for ever while others go on sending.
        """
        raise NotImplementedError(
            f"backend {self.name!r} cannot receive from any rank: name the rank, or use 'tcp' or 'gloo'"
        )

    @abstractmethod
    def send_tensors(self, payload: Payload, dst: int, tag: int) -> Operation[None]: ...

    @abstractmethod
    def recv_tensors(self, src: int, tag: int) -> Operation[Payload]: ...

    def send_bytes(self, packed: bytearray, dst: int, tag: int) -> bool:
        """Send a few bytes at once, as if they were a tensor ``[n]`` uint8. False: they have to be sent as one.

        Optional, as is ``recv_bytes``: making a tensor takes longer than sending it.
        """
        return False

    def recv_bytes(self, src: int, tag: int) -> Operation[Received]:
        """As ``recv_tensors``; a small tensor ``[n]`` uint8 may come as ``SmallMessage``, its memory."""
        return self.recv_tensors(src, tag)  # type: ignore[return-value]

    def prepare(self, src: int) -> None:
        """Get ready for what ``recv_bytes`` will probably receive, while nobody waits. Default: nothing."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, src: int) -> Operation[None]: ...

    @abstractmethod
    def all_reduce(self, tensor: Tensor, op: Any) -> Operation[None]: ...

    @abstractmethod
    def reduce(self, tensor: Tensor, dst: int, op: Any) -> Operation[None]: ...

    @abstractmethod
    def all_gather(self, tensors: list[Tensor], tensor: Tensor) -> Operation[None]: ...

    @abstractmethod
    def gather(self, tensor: Tensor, gather_list: list[Tensor] | None, dst: int) -> Operation[None]: ...

    @abstractmethod
    def scatter(self, tensor: Tensor, scatter_list: list[Tensor] | None, src: int) -> Operation[None]: ...

    @abstractmethod
    def reduce_scatter(self, output: Tensor, input_list: list[Tensor], op: Any) -> Operation[None]: ...

    @abstractmethod
    def all_to_all(self, output_list: list[Tensor], input_list: list[Tensor]) -> Operation[None]: ...

    @abstractmethod
    def barrier(self) -> Operation[None]: ...

    def help(self, operation: Operation[Any], peer: int | None, timeout_s: float | None) -> None:
        """A thread is about to block on ``operation``: it may do the channel's work meanwhile. Default: nothing.

        ``peer``: the only one that it depends on; None or ANY_RANK: it may be any.
        """

    def help_loop(self, loop: asyncio.AbstractEventLoop, peer: int | None) -> QuickWaits | None:
        """A task of ``loop`` is about to await something of ``peer``, or of all: the loop may do the channel's reading.

        Return how the waits for that peer went, if the channel counts them. Default: nothing.
        """
        return None

    def keep_reading(self, loop: asyncio.AbstractEventLoop, peer: int) -> None:
        """On that loop's thread, which always listens to the peer: let it read what comes itself, if that is possible.

        Default: nothing.
        """

    @abstractmethod
    def flush(self, timeout_s: float) -> Operation[None]:
        """Finish what was sent and tell the peers that no more comes (a graceful leave)."""

    @abstractmethod
    def drained(self, rank: int) -> Operation[None]:
        """Done when all that a rank sent before it left has arrived here."""

    def deliver_left(self, src: int | None, tag: int) -> bool:
        """Whether a message from ``src`` (None: any rank) is here and complete, so that a receive may still have it
        after a rank has left.
        """
        return False

    def end_after_leave(self, error: Exception, timeout_s: float) -> Operation[None]:
        """A rank left: fail what is pending, but keep what has arrived completely for ``deliver_left``.

        The others may not be as far as we are: what was sent to them goes on. Done when they have it, or cannot have it
        any more; after ``timeout_s`` seconds at most. Returns at once. Default: abort.
        """
        self.abort(error)
        return Operation.succeeded(None)

    @abstractmethod
    def abort(self, error: Exception) -> None:
        """Fail every operation with ``error``, now, and give everything back. Any thread, idempotent, never blocks."""

    @abstractmethod
    def statistics(self) -> ChannelStatistics: ...
