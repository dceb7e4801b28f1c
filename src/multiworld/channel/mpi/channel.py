"""The mpi channel: large payloads over MPI, for clusters whose fast network only MPI reaches.

A ``StreamMesh`` (one connection of ours to each peer) carries the header of every message, small payloads with it, and
all control. A payload of more than ``INLINE_BYTES`` goes through MPI, in chunks, when a receive has asked for it. The
collectives are ours, over the same streams.

Every member must be a process of one MPI job. That is not taken on trust: ``join`` fails unless each pair of ranks
has heard each other over MPI. Worlds need no communicator of their own, as MPI makes one only with the help of all its
members, and waits for them for ever: each chunk says what it belongs to.
"""

from __future__ import annotations

import struct
import time
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch

from ...errors import (
    ChannelUnavailableError,
    PeerDiedError,
    PeerSilentError,
    PeerStoppedError,
    PeerUnreachableError,
    ProtocolError,
)
from ...wire.progress.operation import Operation, drive
from ..base import ChannelContext, ChannelSupport
from ..payload.tensors import memory_of, payload_segments
from ..stream.mesh import StreamMesh
from ..stream.message import USER
from ..stream.message_stream import MessageStream
from ..stream.moving import MovingStream
from ..stream.owner import StreamOwner
from ..stream_channel.channel import StreamChannel
from .chunks import KEY_BYTES
from .job import JobError, MpiJob, open_job, why_not
from .mover import MpiMover
from .pump import MpiError

T = TypeVar("T")
INLINE_BYTES = 128 * 1024
SHARE = 0.7  # of the time left for a join: it gives up a little sooner, as it can say more
INTRODUCTION_TAG = -1  # users' tags are not negative
LOST = (PeerDiedError, PeerSilentError, PeerStoppedError, PeerUnreachableError)
_NUMBERS = struct.Struct(f"<{KEY_BYTES}sII")


class Introduction(NamedTuple):
    """What a rank says of itself: the key for what is sent to it, its place in its MPI job, and the job's name."""

    key: bytes
    rank: int
    size: int
    job: str

    def pack(self) -> bytes:
        return _NUMBERS.pack(self.key, self.rank, self.size) + self.job.encode()


class MpiChannel(StreamChannel):
    """Headers and small payloads over our own connections, large payloads over MPI."""

    name: ClassVar[str] = "mpi"
    device_types: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def __init__(self, context: ChannelContext) -> None:
        self._movers: dict[int, MpiMover] = {}
        self._job: MpiJob | None = None
        self._defer = context.loop.call_soon
        super().__init__(context, StreamMesh(context, self._make_stream))

    @classmethod
    def support(cls) -> ChannelSupport:
        reason = why_not()
        return ChannelSupport(cls.name, not reason, reason or "for processes that mpiexec or srun has started")

    def connect(self, timeout_s: float) -> Operation[None]:
        return drive(self._connect(timeout_s))

    def _end_streams(self, error: Exception, *, keep_arrived: bool) -> None:
        self._close_movers(error)  # first: what fails in the streams must not touch its tensor any more
        super()._end_streams(error, keep_arrived=keep_arrived)
        self._release_movers(error)

    def _make_stream(self, owner: StreamOwner, rank: int) -> MessageStream:
        mover = self._movers[rank] = MpiMover(self._defer)
        return MovingStream(owner, rank, mover, inline_bytes=INLINE_BYTES)

    def _close_movers(self, error: Exception) -> None:
        if self._job is not None and isinstance(error, LOST):
            self._job.lost_peer = True
        for mover in self._movers.values():
            mover.close(error)

    def _release_movers(self, error: Exception) -> None:
        for mover in self._movers.values():
            mover.release(error)

    async def _connect(self, timeout_s: float) -> None:
        until = time.monotonic() + SHARE * timeout_s
        try:
            job = self._job = await self._before(until, open_job(), "MPI_Init waits for all processes of the MPI job")
        except JobError as error:
            raise self._unavailable(str(error)) from error
        await self._mesh.connect(timeout_s)
        for mover in self._movers.values():
            mover.open(job.pump)
        self._introduce(job)
        for rank, mover in self._movers.items():
            said = await self._hear(rank, until)
            self._check(rank, said, job)
            mover.meet(said.rank, said.key)
        for rank, mover in self._movers.items():
            late = f"rank {rank} was not heard over MPI: start all members with one mpiexec or srun"
            try:
                await self._before(until, mover.proved, late)
            except MpiError as error:
                raise self._unavailable(str(error)) from error

    def _introduce(self, job: MpiJob) -> None:
        for rank, mover in self._movers.items():
            said = Introduction(mover.key, job.rank, job.size, job.name).pack()
            meta, segments, tensors = payload_segments(torch.frombuffer(bytearray(said), dtype=torch.uint8))
            self._mesh.stream(rank).send(USER, INTRODUCTION_TAG, meta, segments, tensors)

    async def _hear(self, rank: int, until: float) -> Introduction:
        receive = self._mesh.stream(rank).recv(USER, INTRODUCTION_TAG, None, None)
        payload = await self._before(until, receive, f"rank {rank} has not said which process of the MPI job it is")
        data = bytes(memory_of(payload)) if isinstance(payload, torch.Tensor) else b""
        try:
            key, mpi_rank, mpi_size = _NUMBERS.unpack_from(data)
            return Introduction(key, mpi_rank, mpi_size, data[_NUMBERS.size :].decode())
        except (struct.error, UnicodeDecodeError) as error:
            raise ProtocolError(f"rank {rank} did not introduce itself: {error}") from error

    def _check(self, rank: int, said: Introduction, job: MpiJob) -> None:
        if (said.job, said.size) != (job.name, job.size) or said.rank >= job.size:
            raise self._unavailable(
                f"rank {rank} is process {said.rank} of {said.size} of the MPI job {said.job!r}, and this is process "
                f"{job.rank} of {job.size} of {job.name!r}: start all members with one mpiexec or srun"
            )

    def _before(self, until: float, operation: Operation[T], late: str) -> Operation[T]:
        """Let an operation fail when its time is over."""
        error = self._unavailable(f"{late}; that took too long")
        timer = self.context.loop.call_later(max(0.0, until - time.monotonic()), partial(_cancel, operation, error))
        operation.add_callback(lambda _: timer.cancel())
        return operation

    def _unavailable(self, reason: str) -> ChannelUnavailableError:
        return ChannelUnavailableError(self.context.world, reason)


def _cancel(operation: Operation[Any], error: Exception) -> None:
    operation.cancel(error)
