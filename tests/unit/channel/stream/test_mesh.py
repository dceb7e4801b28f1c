"""What a mesh waits for before it says BYE."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from multiworld.channel.base import ChannelContext
from multiworld.channel.stream.mesh import StreamMesh
from multiworld.channel.stream.message_stream import MessageStream
from multiworld.wire.progress.operation import Operation


class FakeStream:
    """Says what a test lets it say of what is unsent."""

    slow_cancel_bytes = 0

    def __init__(self) -> None:
        self.sending: list[Operation[None]] = []
        self.is_finished = False

    def unsent(self) -> list[Operation[None]]:
        return list(self.sending)

    def finish(self) -> Operation[None]:
        self.is_finished = True
        ended: Operation[None] = Operation()
        ended.succeed(None)
        return ended


class FakeLoop:
    """Has timers that never fire."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
        return SimpleNamespace(cancel=lambda: None)


def mesh_of(stream: FakeStream) -> StreamMesh:
    context = SimpleNamespace(world="w", generation=0, rank=0, world_size=2, loop=FakeLoop())
    return StreamMesh(cast(ChannelContext, context), lambda *_: cast(MessageStream, stream))


def test_bye_is_said_when_all_was_sent() -> None:
    stream = FakeStream()
    first, second = Operation[None](), Operation[None]()
    stream.sending = [first]
    finished = mesh_of(stream).finish(1.0)
    stream.sending = [second]  # it was only announced
    first.succeed(None)
    assert not stream.is_finished
    stream.sending = []
    second.succeed(None)
    assert stream.is_finished
    assert finished.done


def test_a_send_that_has_ended_keeps_nobody_from_leaving() -> None:
    stream = FakeStream()
    ended: Operation[None] = Operation()
    ended.fail(RuntimeError("it could not be detached"))
    stream.sending = [ended]
    assert mesh_of(stream).finish(1.0).done
    assert stream.is_finished
