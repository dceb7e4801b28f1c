"""What a master reads and writes in a node's memory, and what stays when it is lost."""

from __future__ import annotations

import os
import socket
import weakref

import pytest
import torch

from multiworld.remote.node import accesses
from multiworld.remote.node.accesses import Accesses
from multiworld.remote.peer_memory import PeerMemory, PeerMemoryError


def test_reads_and_writes_end_when_the_master_says_so() -> None:
    open_ = Accesses()
    elements = torch.zeros(3)
    kept = weakref.ref(elements)
    reading, writing = open_.begin_read(1), open_.begin_write(1, elements)
    del elements
    open_.was_written(2)
    assert not writing.done
    assert kept() is not None
    open_.was_written(1)
    assert writing.done
    assert kept() is None
    assert not reading.done
    open_.was_read(1)
    assert reading.done
    open_.was_read(1)


def test_the_end_fails_all_and_keeps_what_may_still_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []
    monkeypatch.setattr(accesses, "_given_up", kept)
    open_ = Accesses()
    mark = open_.mark
    memory = PeerMemory.of(os.getpid(), socket.gethostname(), mark.text, mark.address)
    assert memory is not None
    elements = torch.zeros(3)
    reading, writing = open_.begin_read(1), open_.begin_write(1, elements)
    open_.end()
    open_.end()
    assert isinstance(reading.error, PeerMemoryError)
    assert isinstance(writing.error, PeerMemoryError)
    assert len(kept) == 1
    assert kept[0] is elements
    with pytest.raises(PeerMemoryError):
        memory.check()


def test_what_begins_after_the_end_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accesses, "_given_up", [])
    open_ = Accesses()
    open_.end()
    assert open_.begin_read(1).error is not None
    assert open_.begin_write(1, torch.zeros(3)).error is not None


def test_the_mark_that_the_master_demands_is_shown_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accesses, "_given_up", [])
    open_ = Accesses()
    memory = PeerMemory.of(os.getpid(), socket.gethostname(), open_.mark.text, open_.mark.address)
    assert memory is not None
    demanded = memory.demand_mark()
    open_.show(demanded)
    memory.check()
    open_.end()
    open_.show(demanded)
    with pytest.raises(PeerMemoryError):
        memory.check()
