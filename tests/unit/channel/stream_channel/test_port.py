"""How one collective call ends: what the peers hear of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

import multiworld as mw
from multiworld.channel.base import ChannelContext
from multiworld.channel.stream.mesh import StreamMesh
from multiworld.channel.stream_channel.port import StreamPort
from multiworld.wire.progress.operation import Operation, drive

SEQ = 7


class FakeStream:
    """Moves nothing, and writes down which collectives the peer was told to have been given up."""

    def __init__(self) -> None:
        self.given_up: list[int] = []
        self.receive: Operation[None] = Operation()

    def recv(self, space: int, tag: int, meta: bytes, tensor: Tensor) -> Operation[None]:
        return self.receive

    def give_up(self, tag: int) -> None:
        self.given_up.append(tag)


class FakeMesh:
    """Of rank 0 of three."""

    def __init__(self) -> None:
        self.streams = {rank: FakeStream() for rank in (1, 2)}
        self.peers = list(self.streams)

    def stream(self, rank: int) -> FakeStream:
        return self.streams[rank]


def fail_one_of_two_receives(error: Exception) -> tuple[FakeMesh, BaseException | None]:
    """Run a collective that waits for rank 1, which ends in an error, then for rank 2."""
    mesh = FakeMesh()
    context = SimpleNamespace(rank=0, world_size=3)
    port = StreamPort(cast(ChannelContext, context), cast(StreamMesh, mesh), SEQ, b"all_reduce")

    async def steps() -> None:
        receives = [port.recv(torch.zeros(1), rank) for rank in mesh.peers]
        for receive in receives:
            await receive

    collective = drive(steps())
    collective.add_callback(port.close)
    mesh.streams[1].receive.fail(error)
    return mesh, collective.error


@pytest.mark.parametrize(
    "error",
    [
        mw.OperationTimeoutError("w", 1, "all_reduce", 1.0),
        mw.CollectiveMismatchError("w", 1, 1, "all_reduce", "barrier"),
        RuntimeError("the reduction failed"),
    ],
)
def test_peers_hear_of_a_collective_that_failed_here_alone(error: Exception) -> None:
    mesh, raised = fail_one_of_two_receives(error)
    assert raised is error
    assert [stream.given_up for stream in mesh.streams.values()] == [[SEQ], [SEQ]]
    assert mesh.streams[2].receive.done, "it must not write into the caller's tensor any more"


@pytest.mark.parametrize(
    "error",
    [
        mw.PeerDiedError("w", 1, 1, "its process has ended"),
        mw.PeerLeftError("w", 1, 1, "it left"),
        mw.WorldClosedError("w", 1),
    ],
)
def test_peers_are_left_to_find_out_by_themselves_that_the_world_has_ended(error: Exception) -> None:
    """Told that we gave up before they knew of it, they took it for a disagreement."""
    mesh, raised = fail_one_of_two_receives(error)
    assert raised is error
    assert [stream.given_up for stream in mesh.streams.values()] == [[], []]
    assert mesh.streams[2].receive.done
