"""Control links between two ends of one process: calls, parts, notes, refusals, losses and redial."""

from __future__ import annotations

import logging
import pickle
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest

from multiworld.errors import HandshakeError, MessageError, MultiworldError, TokenError
from multiworld.process.link import Call, CallRefusedError, ControlHello, ControlLink, LinkLostError, RedialedLink
from multiworld.process.link.envelope import pack_asked
from multiworld.wire.backoff import BackOff
from multiworld.wire.connection.frames import Kind, pack_frame
from multiworld.wire.endpoints.dialer import DialError, dial
from multiworld.wire.endpoints.handshake import DialerHello
from multiworld.wire.endpoints.listener import Listener, Pending
from multiworld.wire.messages import MessageSet, message
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking

pytestmark = pytest.mark.usefixtures("no_leaks")

TOKEN = "0123456789abcdef"


@message("count")
@dataclass(frozen=True, kw_only=True)
class Count:
    to: int


@message("never")
@dataclass(frozen=True, kw_only=True)
class Never:
    """Of a question that is not answered."""


@message("remark")
@dataclass(frozen=True, kw_only=True)
class Remark:
    text: str


@dataclass(frozen=True, kw_only=True)
class Counted:
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Text:
    text: str


ASKS: MessageSet[Count | Never | Remark] = MessageSet("test link asks", Count | Never | Remark, tag="ask")
TELLS: MessageSet[Remark] = MessageSet("test link tells", Remark, tag="say")

Dialed = ControlLink[Count | Never | Remark, Remark]
Accepted = ControlLink[Remark, Count | Never | Remark]


class Acceptor:
    """Counts for those who ask, and keeps what it is told."""

    def __init__(self, loop: ProgressThread, port: int = 0) -> None:
        self.loop = loop
        self.links: list[Accepted] = []
        self.generations: list[int] = []
        self.calls: list[Call] = []
        self.told: queue.SimpleQueue[Remark] = queue.SimpleQueue()
        self.lost: queue.SimpleQueue[LinkLostError] = queue.SimpleQueue()
        self.listener = Listener(loop, "127.0.0.1", port, TOKEN.encode(), {"test": self._admit})

    def close(self) -> None:
        def close() -> None:
            self.listener.close()
            for link in self.links:
                link.abort()

        self.on_loop(close)

    def on_loop(self, call: Callable[[], None]) -> None:
        done = threading.Event()
        self.loop.call_soon(call)
        self.loop.call_soon(done.set)
        assert done.wait(5)

    def _admit(self, pending: Pending) -> None:
        link: Accepted = ControlLink(TELLS, ASKS, on_message=self._take, on_lost=self.lost.put)
        self.links.append(link)
        self.generations.append(pending.hello(ControlHello).generation)
        pending.accept(link)

    def _take(self, message: Count | Never | Remark, call: Call) -> None:
        if isinstance(message, Remark):
            self.told.put(message)
        elif isinstance(message, Count):
            if message.to < 0:
                call.refuse("cannot count down", "ValueError")
            if message.to > 100:
                raise RuntimeError("too much")
            for number in range(message.to):
                call.part(Counted(number=number))
            call.answer(Counted(number=message.to))
        else:
            self.calls.append(call)


@pytest.fixture
def loop() -> Iterator[ProgressThread]:
    loop = ProgressThread("test-link")
    yield loop
    loop.stop()


@pytest.fixture
def acceptor(loop: ProgressThread) -> Iterator[Acceptor]:
    acceptor = Acceptor(loop)
    yield acceptor
    acceptor.close()


def connect(acceptor: Acceptor, *, token: str = TOKEN, purpose: str = "test") -> tuple[Dialed, queue.SimpleQueue[str]]:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    link: Dialed = ControlLink(ASKS, TELLS, on_message=lambda message, _: heard.put(message.text))
    wait_blocking(
        dial(
            acceptor.loop,
            "127.0.0.1",
            acceptor.listener.port,
            DialerHello(purpose=purpose),
            token.encode(),
            link,
            timeout_s=5.0,
        )
    )
    return link, heard


def error_of(operation: Operation[Counted]) -> MultiworldError:
    with pytest.raises(MultiworldError) as caught:
        wait_blocking(operation)
    return caught.value


def test_calls_are_answered_each_to_its_own_number(acceptor: Acceptor) -> None:
    link, _ = connect(acceptor)
    answers = [link.ask(Count(to=number), Counted) for number in range(5)]
    assert [wait_blocking(answer).number for answer in answers] == [0, 1, 2, 3, 4]
    link.abort()


def test_parts_come_before_the_answer(acceptor: Acceptor) -> None:
    link, _ = connect(acceptor)
    parts: list[int] = []
    answer = link.ask(Count(to=3), Counted, lambda part: parts.append(part.number))
    assert wait_blocking(answer).number == 3
    assert parts == [0, 1, 2]
    link.abort()


def test_notes_go_both_ways(acceptor: Acceptor) -> None:
    link, heard = connect(acceptor)
    assert link.tell(Remark(text="there"))
    assert acceptor.told.get(timeout=5) == Remark(text="there")
    assert acceptor.links[0].tell(Remark(text="and back"))
    assert heard.get(timeout=5) == "and back"
    link.abort()


def test_a_refusal_and_a_defect_are_told_and_the_link_goes_on(
    acceptor: Acceptor, caplog: pytest.LogCaptureFixture
) -> None:
    link, _ = connect(acceptor)
    refused = error_of(link.ask(Count(to=-1), Counted))
    assert isinstance(refused, CallRefusedError)
    assert (refused.reason, refused.kind) == ("cannot count down", "ValueError")
    failed = error_of(link.ask(Count(to=101), Counted))
    assert isinstance(failed, CallRefusedError)
    assert failed.kind == "RuntimeError"
    assert wait_blocking(link.ask(Count(to=1), Counted)).number == 1
    assert "could not be dealt with" in caplog.text
    link.abort()


def test_a_call_that_does_not_decode_is_refused_with_its_kind_and_field(acceptor: Acceptor) -> None:
    link, _ = connect(acceptor)
    answer = link.ask(Never(), Counted)
    link.send(pack_asked(1, {"ask": "count", "to": "many"}))
    refused = error_of(answer)
    assert isinstance(refused, CallRefusedError)
    assert refused.kind == "MessageError"
    assert "'count' is refused: to:" in refused.reason
    assert wait_blocking(link.ask(Count(to=1), Counted)).number == 1
    link.abort()


def test_a_note_that_does_not_decode_is_dropped_with_a_warning(
    acceptor: Acceptor, caplog: pytest.LogCaptureFixture
) -> None:
    link, _ = connect(acceptor)
    link.send(pack_asked(0, {"ask": "remark", "text": 7}))
    link.send(pack_asked(0, {"ask": "riddle"}))
    assert wait_blocking(link.ask(Count(to=1), Counted)).number == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "'remark' is refused: text:" in caplog.messages[0]
    link.abort()


def test_an_answer_of_another_type_is_an_error_of_that_call_only(acceptor: Acceptor) -> None:
    link, _ = connect(acceptor)
    with pytest.raises(MessageError):
        wait_blocking(link.ask(Count(to=1), Text))
    assert wait_blocking(link.ask(Count(to=1), Counted)).number == 1
    link.abort()


def test_calls_end_when_the_link_is_lost(acceptor: Acceptor) -> None:
    link, _ = connect(acceptor)
    answer = link.ask(Never(), Counted)
    assert wait_blocking(link.ask(Count(to=0), Counted)).number == 0
    acceptor.links[0].abort()
    lost = error_of(answer)
    assert isinstance(lost, LinkLostError)
    assert isinstance(error_of(link.ask(Count(to=1), Counted)), LinkLostError)
    assert not link.tell(Remark(text="nobody"))
    assert not acceptor.calls[0].answer(Counted()), "nobody waits any more"
    assert pickle.loads(pickle.dumps(lost)).reason == lost.reason


def test_frames_of_another_protocol_end_the_link_alone(acceptor: Acceptor) -> None:
    link, _ = connect(acceptor)
    other, _ = connect(acceptor)
    link.connection.send(pack_frame(Kind.CONTROL, b"garbage"))
    assert "is not JSON" in acceptor.lost.get(timeout=5).reason
    assert wait_blocking(other.ask(Count(to=1), Counted)).number == 1
    other.abort()


def test_strangers_get_no_link(acceptor: Acceptor) -> None:
    with pytest.raises(TokenError):
        connect(acceptor, token="another token")
    with pytest.raises(HandshakeError, match="nobody here serves 'tea'"):
        connect(acceptor, purpose="tea")
    with socket.create_connection(("127.0.0.1", acceptor.listener.port), 5) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 4)
        stranger.settimeout(5)
        with suppress(ConnectionError):
            while stranger.recv(4096):
                pass
    assert acceptor.links == []


class Keeper:
    """A link that is dialed again, and what becomes of it."""

    def __init__(self, loop: ProgressThread, port: int) -> None:
        self.up: queue.SimpleQueue[Dialed] = queue.SimpleQueue()
        self.down: queue.SimpleQueue[MultiworldError] = queue.SimpleQueue()
        self.redialed: RedialedLink[Count | Never | Remark, Remark] = RedialedLink(
            loop,
            ("127.0.0.1", port),
            TOKEN,
            "test",
            ASKS,
            TELLS,
            BackOff(0.01, 0.05),
            on_up=self.up.put,
            on_message=lambda message, _: None,
            on_down=self.down.put,
        )
        loop.call_soon(self.redialed.dial)


def test_a_lost_link_is_dialed_again_in_the_next_generation(acceptor: Acceptor) -> None:
    keeper = Keeper(acceptor.loop, acceptor.listener.port)
    first = keeper.up.get(timeout=5)
    late = first.ask(Never(), Counted)
    wait_blocking(first.ask(Count(to=0), Counted))
    acceptor.links[0].abort()
    assert isinstance(keeper.down.get(timeout=5), LinkLostError)
    second = keeper.up.get(timeout=5)
    again = second.ask(Never(), Counted)
    assert wait_blocking(second.ask(Count(to=1), Counted)).number == 1
    assert not acceptor.calls[0].answer(Counted(number=7)), "it was asked over an earlier connection"
    assert isinstance(error_of(late), LinkLostError)
    assert not again.done
    first_generation, second_generation = acceptor.generations
    assert second_generation > first_generation
    acceptor.on_loop(keeper.redialed.close)


def test_it_is_dialed_until_somebody_listens(loop: ProgressThread) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        keeper = Keeper(loop, port)
        for _ in range(3):
            error = keeper.down.get(timeout=5)
            assert isinstance(error, DialError)
            assert error.is_refused
    acceptor = Acceptor(loop, port)
    assert wait_blocking(keeper.up.get(timeout=5).ask(Count(to=2), Counted)).number == 2
    acceptor.on_loop(keeper.redialed.close)
    acceptor.close()
