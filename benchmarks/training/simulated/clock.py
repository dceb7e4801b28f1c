"""What stands in for ``time`` and ``threading`` in modules that block, so that their threads take turns."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar
from unittest import mock

from multiworld.training.engine import ending, progress
from multiworld.training.pipeline import growing, opened, owners, pipelined, planner, prefetching
from multiworld.training.recovery import membership, store_link, team, transfer
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.waiting import outcome

from .turns import Process, Turns

T = TypeVar("T")
MODULES: Sequence[ModuleType] = (
    ending,
    progress,
    growing,
    opened,
    owners,
    pipelined,
    planner,
    prefetching,
    membership,
    store_link,
    team,
    transfer,
)
"""Those that read a clock, sleep, wait or start threads."""


class Clock:
    """In place of the module ``time``."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def monotonic(self) -> float:
        return self._turns.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self._turns.block(seconds)


class Event:
    def __init__(self, turns: Turns) -> None:
        self._turns, self._is_set = turns, False
        self._waiting: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def wait(self, timeout: float | None = None) -> bool:
        if self._is_set:
            return True
        self._waiting.append(self._turns.waker())
        self._turns.block(timeout)
        return self._is_set


class Condition:
    """Nothing guards it: one thread runs at a time, and none gives its turn away while it holds this."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: list[Callable[[], None]] = []

    def __enter__(self) -> Condition:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def wait(self, timeout: float | None = None) -> bool:
        self._waiting.append(self._turns.waker())
        return self._turns.block(timeout)


class StartedThread:
    """In place of ``threading.Thread``."""

    def __init__(self, turns: Turns, target: Callable[[], None], name: str) -> None:
        self._turns, self._target, self._name = turns, target, name
        self._over = Event(turns)

    def start(self) -> None:
        process = self._turns.process
        assert process is not None
        self._turns.spawn(process, self._target, self._name).on_over.append(self._over.set)

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)


class Threading:
    """In place of the module ``threading``."""

    Lock = threading.Lock

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def Event(self) -> Event:  # noqa: N802 - the name of what it stands in for
        return Event(self._turns)

    def Condition(self) -> Condition:  # noqa: N802
        return Condition(self._turns)

    def Thread(self, *, target: Callable[[], None], name: str, daemon: bool = True) -> StartedThread:  # noqa: N802
        return StartedThread(self._turns, target, name)


def waited(turns: Turns, operation: Operation[T]) -> T:
    """Wait for an operation. Raises its error."""
    if not operation.done:
        done = Event(turns)
        operation.add_callback(lambda _: done.set())
        done.wait()
    return outcome(operation)


def worked(turns: Turns, work: Callable[[], T], name: str) -> Operation[T]:
    """Do some work in a thread of its own."""
    operation: Operation[T] = Operation()

    def run() -> None:
        try:
            value = work()
        except Exception as error:
            operation.fail(error)
        else:
            operation.succeed(value)

    StartedThread(turns, run, name).start()
    return operation


class OfProcesses:
    """In place of a dictionary of a module: each process has its own."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._values: dict[tuple[Process | None, str], int] = {}

    def get(self, key: str, default: int) -> int:
        return self._values.get((self._turns.process, key), default)

    def __setitem__(self, key: str, value: int) -> None:
        self._values[self._turns.process, key] = value


@contextlib.contextmanager
def taking_turns(turns: Turns, **more: Any) -> Iterator[None]:
    """Have the modules above wait by these turns. ``more``: further names in them, and what stands there meanwhile."""
    instead = {
        "time": Clock(turns),
        "threading": Threading(turns),
        "wait_blocking": lambda operation: waited(turns, operation),
        "_ended_here": OfProcesses(turns),
        "run_in_thread": lambda work, name: worked(turns, work, name),
        **more,
    }
    with contextlib.ExitStack() as stack:
        for module in MODULES:
            for name, stand_in in instead.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, stand_in))
        yield
