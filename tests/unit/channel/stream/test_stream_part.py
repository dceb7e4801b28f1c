"""A rank left: what fails here then, what still goes on to those who stay, and what can still be received."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from multiworld.channel.payload.tensors import describe, memory_of
from multiworld.channel.stream.message import SIZE, USER
from multiworld.channel.stream.message_stream import MessageStream
from multiworld.channel.stream.moving import FLAG_MOVED, MovingStream, OnOver
from multiworld.channel.stream.owner import StreamOwner
from multiworld.testing import scaled, wait_until
from multiworld.wire.connection.connection import Connection
from multiworld.wire.connection.frames import Kind, pack_header
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking
from tests.unit.channel.stream.shared_pair import Pair

SMALL, LARGE = 4_000, 4_000_000  # float32: one that is written whole, and one that is announced
MAX_MESSAGES = 400


class LeftError(Exception):
    """What a test ends streams with."""


class PlainPair(Pair):
    """As ``Pair``, without shared memory."""

    def __init__(self) -> None:
        super().__init__()
        for stream in self.streams:
            stream.connection.abort()
        self.here, self.there = (MessageStream(StreamOwner("w", 1), rank) for rank in (1, 0))  # type: ignore[assignment]
        self.streams = self.here, self.there
        for stream, loop, sock in zip(self.streams, self.loops, socket.socketpair(), strict=True):
            Connection(loop, sock, stream).hand_over(stream)

    def lend(self) -> None:
        pass


@pytest.fixture(params=[PlainPair, Pair])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    pair: Pair = request.param()
    pair.lend()
    yield pair
    pair.close()


def numbered(number: int, size: int = SMALL) -> torch.Tensor:
    return torch.full((size,), float(number))


def parts(stream: MessageStream) -> bool:
    """Do with one stream what a channel does; false if it has to be aborted."""
    for operation in stream.withdraw(LeftError()):
        operation.on_cancel = None
        operation.fail(LeftError())
    return not stream.is_moving


def error_of(operation: Operation[Any]) -> BaseException | None:
    assert wait_until(lambda: operation.done, timeout_s=5)
    return operation.error


def half_received(pair: Pair) -> Operation[Any]:
    """Return a receive into whose tensor one half of a message has begun to come."""
    tensor = torch.zeros(LARGE)
    receive = pair.recv(tensor)
    meta = describe(tensor)
    header = pack_header(Kind.MESSAGE, meta_bytes=len(meta), payload_bytes=tensor.nbytes, seq=1)
    pair.here.connection.send(header + meta + bytes(tensor.nbytes // 2))
    assert wait_until(lambda: pair.there._inbox.has_moving, timeout_s=5)
    return receive


def test_what_was_sent_goes_on_and_arrives_in_order(pair: Pair) -> None:
    resume = pair.stop_reading()
    num_sent = 0
    while num_sent < MAX_MESSAGES and not pair.here.connection.num_queued:  # until a part of one waits here
        assert pair.send(numbered(num_sent)).done
        num_sent += 1
    assert parts(pair.here)
    ended = pair.here.finish()
    assert not ended.done
    resume()
    wait_blocking(ended)
    received = torch.empty(SMALL)
    for number in range(num_sent):
        wait_blocking(pair.recv(received))
        assert bool((received == number).all())


def test_what_waits_fails_and_takes_nothing_with_it(pair: Pair) -> None:
    tensor = torch.zeros(SMALL)
    receive = pair.here.recv(USER, 0, describe(tensor), tensor)
    announced = pair.send(numbered(1, LARGE))
    assert parts(pair.here)
    assert isinstance(error_of(receive), LeftError)
    assert isinstance(error_of(announced), LeftError)
    assert isinstance(error_of(pair.send(numbered(2))), LeftError)
    late = numbered(3)
    wait_blocking(pair.there.send(USER, 0, describe(late), [memory_of(late)], [late]))
    assert wait_until(lambda: pair.here.queue_depths()[1] == 1, timeout_s=5)
    assert not tensor.any()
    assert pair.there.queue_depths()[1] == 0, "the announcement was not taken back"


def _no_memory(*_: object, **__: object) -> Tensor:
    raise RuntimeError("no memory")


def first_of_two(pair: Pair) -> Operation[Any]:
    """Receive one of two messages that come, straight into a tensor."""
    receiving = pair.recv(torch.zeros(SMALL))
    for number in range(2):
        wait_blocking(pair.send(numbered(number)))
    assert wait_until(lambda: receiving.done, timeout_s=5)
    return receiving


def lose(receiving: Operation[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a message back that there is no memory for."""
    monkeypatch.setattr(torch, "empty", _no_memory)
    receiving.cancel_or_undo(LeftError())
    monkeypatch.undo()


def test_nobody_gets_the_message_behind_one_that_there_is_no_memory_to_give_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(first_of_two(pair), monkeypatch)
    assert pair.there.connection.closed
    tensor = torch.zeros(SMALL)
    receiving = pair.recv(tensor)
    pair.there.abort(LeftError())  # as the channel does that is told
    assert isinstance(error_of(receiving), LeftError)
    assert not tensor.any()


def test_nor_does_anybody_when_its_sender_has_left(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    receiving = first_of_two(pair)
    pair.answer()  # the second one has been seen
    pair.there.abort(LeftError(), keep_arrived=True)
    lose(receiving, monkeypatch)
    assert isinstance(error_of(pair.recv(torch.zeros(SMALL))), LeftError)


def test_receives_that_wait_for_what_was_announced_meet_nothing_else(pair: Pair) -> None:
    """The message of the one must not be offered to the next, which it does not fit."""
    sends = [pair.send(numbered(size, size)) for size in (LARGE, LARGE + 1, LARGE + 2)]
    resume = pair.stop_reading(pair.here)  # which sends no payload
    receives = [pair.recv(torch.empty(size)) for size in (LARGE, LARGE + 1, LARGE + 2)]
    assert wait_until(lambda: not pair.there._inbox.has_posted, timeout_s=5), "all have met an announcement"
    assert parts(pair.there)
    assert [type(error_of(receive)) for receive in receives] == [LeftError] * 3
    resume()
    del sends


def test_what_has_arrived_can_still_be_received_and_nothing_else(pair: Pair) -> None:
    sent = numbered(7)
    wait_blocking(pair.there.send(USER, 0, describe(sent), [memory_of(sent)], [sent]))
    assert wait_until(lambda: pair.here.queue_depths()[1] == 1, timeout_s=5)
    assert parts(pair.here)
    received = torch.empty(SMALL)
    wait_blocking(pair.here.recv(USER, 0, describe(received), received))
    assert bool((received == 7).all())
    assert isinstance(error_of(pair.here.recv(USER, 0, describe(received), received)), LeftError)


def test_it_cannot_part_while_what_fails_is_moving_out(pair: Pair) -> None:
    resume = pair.stop_reading()
    sending = [pair.send(numbered(number, 100_000)) for number in range(16)]  # more than socket or ring take
    assert not all(operation.done for operation in sending)
    assert not parts(pair.here)
    pair.here.abort(LeftError(), keep_arrived=True)
    assert isinstance(error_of(sending[-1]), LeftError)
    resume()


def test_it_cannot_part_while_what_fails_is_moving_in(pair: Pair) -> None:
    receive = half_received(pair)
    assert not parts(pair.there)
    pair.there.abort(LeftError(), keep_arrived=True)
    assert isinstance(error_of(receive), LeftError)


def test_what_was_moving_from_a_peer_that_is_gone_is_left_to_an_abort(pair: Pair) -> None:
    receive = half_received(pair)
    pair.here.connection.abort()
    assert wait_until(lambda: pair.there.connection.closed, timeout_s=5)
    assert not parts(pair.there)
    assert not receive.done, "its memory may still be in use"
    pair.there.abort(LeftError(), keep_arrived=True)
    assert isinstance(error_of(receive), LeftError)


def test_a_peer_that_is_gone_is_waited_for_by_nobody(pair: Pair) -> None:
    pair.there.connection.abort()
    assert wait_until(lambda: pair.here.connection.closed, timeout_s=scaled(5))
    sending = pair.send(numbered(1, LARGE))
    assert parts(pair.here)
    assert isinstance(error_of(sending), LeftError)
    assert pair.here.finish().done


class Mover:
    """Takes memory and never lets it go."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def prepare(self) -> bool:
        return True

    def send(self, number: int, tensors: list[Tensor], size_bytes: int, on_over: OnOver) -> bool:
        self.taken.append(number)
        return True

    def recv(self, number: int, tensor: Tensor, on_over: OnOver) -> bool:
        self.taken.append(number)
        return True

    def sent(self, number: int) -> None: ...

    def copy_unsent(self, number: int) -> bool:
        return False

    def divert(self, number: int, tensor: Tensor) -> bool:
        return False

    def wait_closed(self, timeout_s: float) -> bool:
        return True


@pytest.fixture
def beside() -> Iterator[tuple[MovingStream, socket.socket, Mover]]:
    """A stream whose large payloads a mover takes, the other end of its connection, and the mover."""
    loop, mover = ProgressThread("test-part"), Mover()
    here, there = socket.socketpair()
    stream = MovingStream(StreamOwner("w", 1), 1, mover, inline_bytes=1000)
    Connection(loop, here, stream).hand_over(stream)
    yield stream, there, mover
    stream.abort(LeftError())
    there.close()
    loop.stop()


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_what_a_mover_has_does_not_fail_before_it_is_closed(
    beside: tuple[MovingStream, socket.socket, Mover], direction: str, ends: bool
) -> None:
    stream, there, mover = beside
    tensor = numbered(1)
    meta = describe(tensor)
    if direction == "in":
        operation: Operation[Any] = stream.recv(USER, 0, meta, tensor)
        size = SIZE.pack(tensor.nbytes) + meta
        there.sendall(pack_header(Kind.MESSAGE, flags=FLAG_MOVED, meta_bytes=len(size), seq=1) + size)
    else:
        operation = stream.send(USER, 0, meta, [memory_of(tensor)], [tensor])
        there.sendall(pack_header(Kind.CREDIT))
    assert wait_until(lambda: bool(mover.taken), timeout_s=5)
    if ends:
        there.close()
        assert wait_until(lambda: stream.connection.closed, timeout_s=5)
    assert not parts(stream)
    assert stream.moves_beside
    assert not operation.done
