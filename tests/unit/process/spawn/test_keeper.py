"""A fork server that is lost, stopped, or cannot be started: what was wanted of it is had from the next, or fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import pytest

from multiworld.process.spawn.fork_server import ForkServer, Started
from multiworld.process.spawn.keeper import MAX_LOST, ForkServerKeeper
from multiworld.wire.progress.thread import ProgressThread

LOST = ConnectionResetError("the fork server was killed by SIGKILL")


class FakeServer:
    def __init__(self, pid: int = 1) -> None:
        self.pid, self.is_useless, self.closed = pid, False, False
        self.watched: list[int] = []
        self._asked: list[Started] = []

    def attach(self, loop: object, on_lost: Callable[[str], None], on_forked: Callable[[int], None]) -> None:
        self._on_lost = on_lost

    def watch(self, pids: list[int]) -> None:
        self.watched = pids

    def spawn(self, on_started: Started) -> None:
        self._asked.append(on_started)

    def close(self) -> None:
        self.closed = True

    def answer(self, pid: int) -> None:
        self._asked.pop(0)(pid)

    def lose(self) -> None:
        self._on_lost("it was killed by SIGKILL")
        asked, self._asked = self._asked, []
        for on_started in asked:
            on_started(LOST)


@dataclass
class Scene:
    """The keeper; what it starts, in this order, or fails to; and the calls that are due later."""

    nexts: list[FakeServer | OSError]
    later: list[Callable[[], None]] = field(default_factory=list)
    answers: list[int | OSError] = field(default_factory=list)

    def __post_init__(self) -> None:
        first = self.start()
        self.keeper = ForkServerKeeper(
            cast(ProgressThread, self), first, self.start, running=lambda: [7, 8], on_forked=lambda pid: None
        )

    def start(self) -> ForkServer:
        made = self.nexts.pop(0)
        if isinstance(made, OSError):
            raise made
        return cast(ForkServer, made)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.later.append(call)

    def spawn(self) -> None:
        self.keeper.spawn(lambda server, told: cast(FakeServer, server).spawn(told), partial(list.append, self.answers))

    def go_on(self) -> None:
        self.later.pop(0)()


def test_the_next_server_starts_what_the_lost_one_owed_and_watches_what_runs() -> None:
    first, second = FakeServer(), FakeServer()
    scene = Scene([first, second])
    scene.spawn()
    first.lose()
    assert scene.answers == []
    assert second.watched == [7, 8]
    second.answer(42)
    assert scene.answers == [42]
    scene.keeper.close()
    assert first.closed
    assert second.closed


def test_one_that_cannot_import_what_it_should_is_not_replaced() -> None:
    first = FakeServer()
    scene = Scene([first])
    scene.spawn()
    first.is_useless = True
    first.lose()
    assert scene.answers == [LOST]
    assert scene.later == []


def test_what_is_wanted_meanwhile_waits_for_the_next_server() -> None:
    first, second = FakeServer(), FakeServer()
    scene = Scene([first, OSError(errno.EAGAIN, "no more processes"), second])
    first.lose()
    scene.spawn()
    scene.go_on()
    second.answer(42)
    assert scene.answers == [42]


def test_a_process_is_given_up_when_server_after_server_is_lost() -> None:
    servers = [FakeServer() for _ in range(MAX_LOST + 2)]
    scene = Scene([*servers])
    scene.spawn()
    for server in servers[:-1]:
        server.lose()
        while scene.later:
            scene.go_on()
    assert scene.answers == [LOST]


def test_a_process_is_given_up_when_no_server_can_be_started() -> None:
    first, error = FakeServer(), OSError(errno.EAGAIN, "no more processes")
    scene = Scene([first, *[error] * (MAX_LOST + 2)])
    scene.spawn()
    first.lose()
    while not scene.answers:
        scene.go_on()
    assert scene.answers == [error]


def test_one_that_is_stopped_for_too_long_is_killed() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        scene = Scene([FakeServer(process.pid)])
        scene.keeper.look(0.0, 2.0)
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        for now in (1.0, 2.9):
            scene.keeper.look(now, 2.0)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        scene.keeper.look(3.0, 2.0)
        assert process.wait(10) == -signal.SIGKILL
