"""Children of this process that are nodes: none is left when all have ended."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from multiworld.remote import local
from multiworld.remote.master.local import LocalNodes


class PlayedStarter:
    """Starts one child, which is itself.

    ``begin``: when it may be there. ``is_waited``: whether somebody waited for its end.
    """

    def __init__(self) -> None:
        self.asked, self.begin = threading.Event(), threading.Event()
        self.is_waited = self.is_closed = False

    def start(self, arguments: Sequence[str]) -> PlayedStarter:
        self.asked.set()
        assert self.begin.wait(10)
        return self

    def wait(self, timeout_s: float | None = None) -> bool:
        self.is_waited = True
        return True

    def kill(self) -> None:
        raise AssertionError("it has ended")

    def close(self) -> None:
        self.is_closed = True


def test_a_node_that_is_started_while_all_end_is_waited_for() -> None:
    starter = PlayedStarter()
    nodes = LocalNodes("tcp://127.0.0.1:1", "token", "auto", starter=starter)
    starting = threading.Thread(target=nodes.start, args=(1,))
    starting.start()
    assert starter.asked.wait(10)
    ending = threading.Thread(target=nodes.close)
    ending.start()
    ending.join(0.05)  # without a lock it is done now, and knows of no child
    starter.begin.set()
    starting.join()
    ending.join()
    assert starter.is_waited
    assert starter.is_closed


def test_no_node_is_started_after_the_end() -> None:
    starter = PlayedStarter()
    nodes = LocalNodes("tcp://127.0.0.1:1", "token", "auto", starter=starter)
    nodes.close()
    nodes.start(1)
    assert not starter.asked.is_set()


def test_bad_arguments_start_nothing() -> None:
    with pytest.raises(ValueError, match="unknown backend 'nope': expected one of auto"):
        local(1, backend="nope")
    with pytest.raises(ValueError, match=r"'nothing\.here:f': there is no module nothing\.here"):
        local(1, calls=["nothing.here:f"])
    with pytest.raises(ValueError, match="other processes can't import the program itself: move it to a module"):
        local(1, calls=["__main__:f"])
    with pytest.raises(ValueError, match="num_nodes=0: expected a number from 1"):
        local(0)
