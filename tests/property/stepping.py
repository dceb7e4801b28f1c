"""Threads that go on in turns: one look at a word that they share, or one change of it, after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from multiworld.channel.shared_memory.pipe import PythonEnd


class Over(BaseException):
    """The test is over; ends the threads that wait."""


class Actor:
    """A thread that stops before every access to a word of its ends until it is let on, and sleeps until it is rung."""

    def __init__(self, *ends: PythonEnd) -> None:
        for end in ends:
            words = (end._count, end._their_count, end._rest, end._their_rest)
            end._count, end._their_count, end._rest, end._their_rest = (Stepped(word, self) for word in words)  # type: ignore[assignment]
        self.may_go, self.stands = threading.Semaphore(0), threading.Semaphore(0)
        self.is_over = self.is_done = self.sleeps = False
        self.bells = 0
        self.error: BaseException | None = None

    @property
    def can_go_on(self) -> bool:
        return not self.is_done and (not self.sleeps or self.bells > 0)

    def start(self, work: Callable[[], None]) -> None:
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.thread.start()
        self.stands.acquire()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            self.stop()
            work()
        except Over:
            pass
        except BaseException as error:
            self.error = error
        self.is_done = True
        self.stands.release()

    def stop(self) -> None:
        """Wait for the next turn."""
        self.stands.release()
        self.may_go.acquire()
        if self.is_over:
            raise Over

    def go_on(self) -> None:
        self.may_go.release()
        self.stands.acquire()

    def sleep(self) -> None:
        """Wait for a bell."""
        self.sleeps = True
        self.stop()
        self.sleeps = False
        self.bells -= 1

    def leave(self) -> None:
        self.is_over = True
        self.may_go.release()
        self.thread.join()


class Stepped:
    """A word that is looked at and changed in turns."""

    def __init__(self, word: Any, actor: Actor) -> None:
        self._word, self._actor = word, actor

    @property
    def value(self) -> int:
        self._actor.stop()
        return int(self._word.value)

    @value.setter
    def value(self, value: int) -> None:
        self._actor.stop()
        self._word.value = value


def flags(number: int) -> Iterator[bool]:
    """Return its bits, and no more then."""
    while True:
        yield bool(number & 1)
        number >>= 1


def play_in_turns(
    writer: Actor, write: Callable[[], None], reader: Actor, read: Callable[[], None], schedule: int
) -> None:
    """Let both work until the reader is done; the bits of ``schedule`` say who goes on. They must not both sleep."""
    writer.start(write)
    reader.start(read)
    actors = (writer, reader)
    try:
        for turn in flags(schedule):
            runnable = [actor for actor in actors if actor.can_go_on]
            if not runnable:
                assert reader.is_done, "both sleep, and nobody is told"
                break
            (runnable[-1] if turn else runnable[0]).go_on()
    finally:
        for actor in actors:
            actor.leave()
    assert (writer.error, reader.error) == (None, None)
