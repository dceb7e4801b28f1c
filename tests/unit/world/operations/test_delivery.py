"""Who is handed what by a delivery, and when: over a world that hands out messages as soon as it is asked."""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections import deque
from functools import partial
from typing import Any

from multiworld.channel.base import Payload
from multiworld.errors import WorldClosedError
from multiworld.wire.progress.operation import Operation
from multiworld.world.operations.delivery import QUIET_S, Delivery


class Peer:
    """Stands in for a world: ``messages`` are there, each receive behind them waits for ``bring``."""

    def __init__(self, *messages: int) -> None:
        self.messages: deque[Any] = deque(messages)
        self.waiting: deque[Operation[Any]] = deque()
        self.is_closed = False
        self.has_descriptors = True
        self.num_prepared = 0

    def start_recv_tensors(self, src: int, tag: int, timeout_s: float | None) -> Operation[Any]:
        if self.is_closed:
            raise WorldClosedError("w", 1)
        if not self.messages:
            self.waiting.append(Operation())
            return self.waiting[-1]
        message = self.messages.popleft()
        return Operation.succeeded(message, partial(self.messages.appendleft, message))

    def start_recv_bytes(self, src: int, tag: int, timeout_s: float | None) -> Operation[Any]:
        return self.start_recv_tensors(src, tag, timeout_s)

    def prepare(self, peer: int) -> None:
        self.num_prepared += 1

    def keep_reading(self, loop: asyncio.AbstractEventLoop, peer: int) -> None:
        if not self.has_descriptors:
            raise OSError(errno.EMFILE, "too many open files")

    def bring(self, message: int) -> None:
        receive = self.waiting.popleft()
        receive.on_undo = partial(self.messages.appendleft, message)
        receive.succeed(message)


class Listener:
    def __init__(self, peer: Peer, *, until: int = 1 << 30, as_bytes: bool = False) -> None:
        self.came: list[Any] = []
        self.ended: list[Exception] = []
        self._until = until
        self.delivery = Delivery(peer, 0, 0, self._deliver, self.ended.append, as_bytes)  # type: ignore[arg-type]
        self.delivery.start()

    def _deliver(self, payload: Payload) -> None:
        self.came.append(payload)
        if len(self.came) == self._until:
            self.delivery.stop()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_what_is_there_already_comes_when_the_caller_can_stop_it() -> None:
    peer = Peer(1, 2, 3)
    listener = Listener(peer, until=2)
    assert listener.came == []
    await turns()
    assert listener.came == [1, 2]
    assert list(peer.messages) == [3]
    assert listener.ended == []


async def test_a_loop_that_cannot_read_itself_gets_the_messages_all_the_same() -> None:
    peer = Peer()
    peer.has_descriptors = False
    listener = Listener(peer)
    for number in range(3):
        peer.bring(number)
    assert listener.came == [0, 1, 2]


async def test_a_message_that_came_on_another_thread_waits_for_others_if_the_delivery_is_stopped_first() -> None:
    peer = Peer()
    listener = Listener(peer)
    bringing = threading.Thread(target=peer.bring, args=(7,))
    bringing.start()
    bringing.join()
    listener.delivery.stop()
    await turns()
    assert listener.came == []
    assert list(peer.messages) == [7]


async def test_a_peer_that_sends_without_end_leaves_the_loop_to_others() -> None:
    class Endless(Peer):
        num_sent = 0

        def start_recv_tensors(self, src: int, tag: int, timeout_s: float | None) -> Operation[Any]:
            if not self.messages:
                self.messages.append(self.num_sent)
                self.num_sent += 1
            return super().start_recv_tensors(src, tag, timeout_s)

    peer = Endless()
    listener = Listener(peer)
    await asyncio.sleep(0.02)
    listener.delivery.stop()
    num_came = len(listener.came)
    assert num_came > 1
    assert listener.came == list(range(num_came))
    assert list(peer.messages) == [num_came, num_came + 1], "what had not been delivered waits, in its order"
    await turns()
    assert len(listener.came) == num_came


async def test_a_world_that_is_closed_ends_it_in_the_next_turn() -> None:
    peer = Peer()
    peer.is_closed = True
    listener = Listener(peer)
    assert listener.ended == []
    await turns()
    (error,) = listener.ended
    assert isinstance(error, WorldClosedError)


def test_nothing_is_delivered_outside_the_loop_and_what_came_then_is_given_back() -> None:
    peer = Peer()

    async def listen() -> Listener:
        return Listener(peer)

    listener = asyncio.run(listen())
    peer.bring(1)
    assert listener.came == []
    listener.delivery.stop()
    assert list(peer.messages) == [1]


async def test_what_comes_seldom_is_prepared_for_when_it_has_been_delivered() -> None:
    peer = Peer()
    listener = Listener(peer, as_bytes=True)
    for number in range(3):
        await asyncio.sleep(2 * QUIET_S)
        peer.bring(number)
        assert (listener.came[-1], peer.num_prepared) == (number, number)
        await turns()
        assert peer.num_prepared == number + 1
    listener.delivery.stop()


async def test_the_next_message_is_prepared_for_however_long_the_last_one_took() -> None:
    peer = Peer()
    Delivery(peer, 0, 0, lambda _: time.sleep(2 * QUIET_S), print, True).start()
    for number in range(3):
        await asyncio.sleep(2 * QUIET_S)
        peer.bring(number)
        await turns()
        assert peer.num_prepared == number + 1


async def test_those_whom_a_message_wakes_come_before_what_is_prepared_for_the_next() -> None:
    peer, order = Peer(), list[str]()
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def wait() -> None:
        await answer
        order.append(f"woken, {peer.num_prepared} prepared")

    waiting = asyncio.ensure_future(wait())
    await turns()
    Delivery(peer, 0, 0, answer.set_result, order.append, True).start()  # type: ignore[arg-type]
    peer.bring(1)
    await waiting
    await turns()
    assert order == ["woken, 0 prepared"]
    assert peer.num_prepared == 1


async def test_nothing_is_prepared_for_what_comes_often_or_is_no_bytes_or_comes_no_more() -> None:
    often, tensors, stopped = Peer(), Peer(), Peer()
    listener = Listener(often, as_bytes=True)
    for number in range(50):
        often.bring(number)
    Listener(tensors)
    tensors.bring(0)
    last = Listener(stopped, as_bytes=True, until=1)
    stopped.bring(0)
    await turns()
    assert len(listener.came) == 50
    assert often.num_prepared < 20, "and the machine may have been elsewhere now and then"
    assert tensors.num_prepared == stopped.num_prepared == 0
    assert last.came == [0]
