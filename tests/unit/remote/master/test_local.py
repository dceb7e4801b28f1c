"""Children of this process that are nodes: none is left when all have ended."""

from __future__ import annotations

import subprocess
import threading
from typing import Any

import pytest

from multiworld.remote import local
from multiworld.remote.master.local import LocalNodes


class PlayedChild:
    """``begin`` is when it may be there, and ``is_waited`` whether somebody waited for its end."""

    def __init__(self) -> None:
        self.asked, self.begin = threading.Event(), threading.Event()
        self.is_waited = False

    def __call__(self, *_: Any, **__: Any) -> PlayedChild:
        self.asked.set()
        assert self.begin.wait(10)
        return self

    def wait(self, timeout: float | None = None) -> int:
        self.is_waited = True
        return 0


def test_a_node_that_is_started_while_all_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    child = PlayedChild()
    monkeypatch.setattr(subprocess, "Popen", child)
    nodes = LocalNodes("tcp://127.0.0.1:1", "token", "auto")
    starting = threading.Thread(target=nodes.start, args=(1,))
    starting.start()
    assert child.asked.wait(10)
    ending = threading.Thread(target=nodes.close)
    ending.start()
    ending.join(0.05)  # without a lock it is done now, and knows of no child
    child.begin.set()
    starting.join()
    ending.join()
    assert child.is_waited


def test_no_node_is_started_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    child = PlayedChild()
    monkeypatch.setattr(subprocess, "Popen", child)
    nodes = LocalNodes("tcp://127.0.0.1:1", "token", "auto")
    nodes.close()
    nodes.start(1)
    assert not child.asked.is_set()


def test_bad_arguments_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)  # a process that were started would be another error
    with pytest.raises(ValueError, match="unknown backend 'nope': expected one of auto"):
        local(1, backend="nope")
    with pytest.raises(ValueError, match=r"'nothing\.here:f': there is no module nothing\.here"):
        local(1, calls=["nothing.here:f"])
    with pytest.raises(ValueError, match="other processes can't import the program itself: move it to a module"):
        local(1, calls=["__main__:f"])
    with pytest.raises(ValueError, match="num_nodes=0: expected a number from 1"):
        local(0)
