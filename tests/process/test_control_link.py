"""A control link to a process that is killed, stopped, or says what nobody understands."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

from multiworld.process.link import Call, ControlLink, LinkLostError, on_event_loop
from multiworld.process.link.blocking import BlockingLinks, wait_for
from multiworld.process.link.envelope import pack_asked
from multiworld.testing import scaled
from multiworld.wire.connection.frames import Kind, pack_frame
from multiworld.wire.endpoints.listener import Listener, Pending
from multiworld.wire.messages import MessageSet, message
from multiworld.wire.progress.thread import ProgressThread

pytestmark = pytest.mark.usefixtures("no_leaks")

TOKEN = "0123456789abcdef"


@message("double")
@dataclass(frozen=True, kw_only=True)
class Double:
    number: int


@dataclass(frozen=True, kw_only=True)
class Doubled:
    number: int


ASKS: MessageSet[Double] = MessageSet("process test asks", Double, tag="ask")


def serve() -> None:
    """Be the other process: double on an event loop, and print the port."""

    async def run() -> None:
        here = asyncio.get_running_loop()
        links = []

        def double(question: Double, call: Call) -> None:
            call.answer(Doubled(number=2 * question.number))

        def admit(pending: Pending) -> None:
            link: ControlLink[None, Double] = ControlLink(None, ASKS, on_message=double, deliver=on_event_loop(here))
            links.append(link)
            pending.accept(link)

        listener = Listener(ProgressThread("other"), "127.0.0.1", 0, TOKEN.encode(), {"test": admit})
        print(listener.port, flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def other_process() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    program = "from tests.process.test_control_link import serve; serve()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def connect(links: BlockingLinks, port: int) -> ControlLink[Double, None]:
    link: ControlLink[Double, None] = ControlLink(ASKS, None)
    return links.connect("127.0.0.1", port, TOKEN, "test", link)


def test_calls_end_with_the_process_that_should_answer_them() -> None:
    with other_process() as (process, port), BlockingLinks("test-links") as links:
        link = connect(links, port)
        assert wait_for(link.ask(Double(number=21), Doubled), scaled(5)).number == 42
        os.kill(process.pid, signal.SIGSTOP)  # so that it cannot answer before it is killed
        answer = link.ask(Double(number=1), Doubled)
        with pytest.raises(TimeoutError):
            wait_for(answer, 0.1)
        process.kill()
        with pytest.raises(LinkLostError):
            wait_for(answer, scaled(5))
        assert not link.is_open


def test_a_process_that_was_stopped_answers_when_it_goes_on() -> None:
    with other_process() as (process, port), BlockingLinks("test-links") as links:
        link = connect(links, port)
        os.kill(process.pid, signal.SIGSTOP)
        answers = [link.ask(Double(number=number), Doubled) for number in range(3)]
        os.kill(process.pid, signal.SIGCONT)
        assert [wait_for(answer, scaled(5)).number for answer in answers] == [0, 2, 4]


def test_garbage_ends_the_connection_that_brought_it_and_no_other() -> None:
    with other_process() as (_, port), BlockingLinks("test-links") as links:
        link, spoilt = connect(links, port), connect(links, port)
        spoilt.send(b"garbage")
        with pytest.raises(LinkLostError):
            wait_for(spoilt.ask(Double(number=1), Doubled), scaled(5))
        with socket.create_connection(("127.0.0.1", port), 5) as stranger:  # which knows no token
            stranger.sendall(pack_frame(Kind.CONTROL, pack_asked(1, ASKS.to_json(Double(number=1)))))
            stranger.settimeout(scaled(5))
            with suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
        assert wait_for(link.ask(Double(number=21), Doubled), scaled(5)).number == 42
