"""What is asked of a member that is being started: it has no process yet, and its name is taken all the same."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from queue import Queue
from typing import TypeVar, cast

import pytest

from multiworld.process.spawn.entrypoint import EntrypointKind
from multiworld.process.spawn.fork_server import ForkServer, Launch, Started
from multiworld.serving.hosts.logs.output import Outputs
from multiworld.serving.hosts.members import Members
from multiworld.serving.hosts.order import Order
from multiworld.testing import scaled
from multiworld.wire.progress.thread import ProgressThread

WAIT_S = 5.0
T = TypeVar("T")


class FakeServer:
    """Answers when it is told to. What it starts is a process that sleeps."""

    def __init__(self) -> None:
        self.pid, self.is_useless = os.getpid(), False
        self.asked: Queue[tuple[Launch, Started]] = Queue()

    def attach(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def spawn(
        self, launch: Launch, stdout_fd: int, stderr_fd: int, on_started: Started, *, passed: tuple[int, ...]
    ) -> None:
        assert all(map(os.fstat, (stdout_fd, stderr_fd, *passed)))
        self.asked.put((launch, on_started))


class Scene:
    def __init__(self) -> None:
        self.loop = ProgressThread("test-members")
        self.server = FakeServer()
        self.told: Queue[tuple[object, ...]] = Queue()
        self.members = self.call(self._members)

    def _members(self) -> Members:
        return Members(
            self.loop,
            Outputs(self.loop, None),
            cast(ForkServer, self.server),
            lambda: cast(ForkServer, self.server),
            on_started=lambda name, pid: self.told.put(("again", name, pid)),
            on_exit=lambda name, pid, ending: self.told.put(("ended", pid, ending.returncode)),
        )

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Call it on the loop's thread."""
        future: Future[T] = Future()

        def call() -> None:
            try:
                future.set_result(function(*arguments))
            except Exception as error:
                future.set_exception(error)

        self.loop.call_soon(call)
        return future.result(scaled(WAIT_S))

    def start(self, *, keep: bool = False) -> None:
        order = Order(member="a-1", program="package:main", arguments={"job": "j"}, threads=3, keep=keep)
        self.call(
            self.members.start, order, lambda pid: self.told.put(("up", pid)), lambda error: self.told.put((error,))
        )

    def answer(self, answer: int | OSError | None = None) -> int:
        """Return the pid of a new process, unless something else is answered."""
        _, on_started = self.server.asked.get(timeout=scaled(WAIT_S))
        if answer is None:
            answer = os.posix_spawnp("sleep", ["sleep", "1000"], os.environ, setsid=True)
        self.call(on_started, answer)
        return answer if isinstance(answer, int) else 0

    def next(self) -> tuple[object, ...]:
        return self.told.get(timeout=scaled(WAIT_S))


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    try:
        yield scene
    finally:
        scene.call(scene.members.close)
        scene.loop.stop()


def test_what_a_member_is_told_is_in_its_launch(scene: Scene) -> None:
    scene.start()
    launch, _ = scene.server.asked.get(timeout=scaled(WAIT_S))
    assert (launch.entrypoint.kind, launch.entrypoint.target) == (EntrypointKind.FUNCTION, "package:main")
    assert (launch.entrypoint.named, launch.arguments) == ("a-1", ('{"job": "j"}',))
    assert launch.env == {**os.environ, "OMP_NUM_THREADS": "3"}
    assert (scene.members.jobs, scene.members.pids) == ({"j"}, {})


def test_a_name_is_taken_while_its_member_is_started(scene: Scene) -> None:
    scene.start()
    with pytest.raises(ValueError, match="a-1 is being started already"):
        scene.start()
    pid = scene.answer()
    with pytest.raises(ValueError, match=f"a-1 runs already, as process {pid}"):
        scene.start()
    assert scene.members.pids == {"a-1": pid}


def test_a_member_that_is_killed_before_it_runs_ends_as_soon_as_it_does(scene: Scene) -> None:
    scene.start(keep=True)
    scene.call(scene.members.kill, "a-1")
    pid = scene.answer()
    assert [scene.next(), scene.next()] == [("up", pid), ("ended", pid, -signal.SIGKILL)]
    assert scene.call(lambda: scene.members.jobs) == set()


def test_a_member_that_was_to_end_before_it_ran_is_not_started_again(scene: Scene) -> None:
    scene.start(keep=True)
    scene.call(scene.members.signal, "a-1", signal.SIGTERM)
    pid = scene.answer()
    assert [scene.next(), scene.next()] == [("up", pid), ("ended", pid, -signal.SIGTERM)]
    assert scene.call(lambda: scene.members.jobs) == set()


def test_what_is_being_started_when_the_host_ends_is_killed(scene: Scene) -> None:
    scene.start()
    scene.call(scene.members.end)
    pid = scene.answer()
    assert [scene.next(), scene.next()] == [("up", pid), ("ended", pid, -signal.SIGKILL)]


def test_a_start_for_which_something_was_short_is_tried_again(scene: Scene) -> None:
    scene.start()
    scene.answer(OSError(errno.EAGAIN, "no more processes"))
    pid = scene.answer()
    assert scene.next() == ("up", pid)


def test_a_member_that_was_killed_is_not_tried_again(scene: Scene) -> None:
    scene.start()
    scene.call(scene.members.kill, "a-1")
    short = OSError(errno.EAGAIN, "no more processes")
    scene.answer(short)
    assert scene.next() == (short,)
    scene.start()


def test_a_kept_member_is_back_whatever_prevents_it_at_first(scene: Scene) -> None:
    scene.start(keep=True)
    pid = scene.answer()
    os.kill(pid, signal.SIGKILL)
    assert [scene.next(), scene.next()] == [("up", pid), ("ended", pid, -signal.SIGKILL)]
    scene.answer(OSError("it cannot be mapped"))
    pid = scene.answer()
    assert scene.next() == ("again", "a-1", pid)


def test_nothing_is_settled_while_a_start_is_under_way(scene: Scene) -> None:
    scene.call(scene.members.when_settled, lambda: scene.told.put(("at once",)))
    assert scene.next() == ("at once",)
    scene.start()
    scene.call(scene.members.when_settled, lambda: scene.told.put(("settled",)))
    assert scene.told.empty()
    scene.answer(OSError(errno.EAGAIN, "no more processes"))  # this may take long: it is no more under way
    assert scene.next() == ("settled",)
