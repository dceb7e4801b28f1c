"""What a host process says to its owner, and what it takes from it, comes whole or ends in a sentence."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from multiworld.process.spawn import seqpacket
from multiworld.serving.hosts.owner.line import OwnerLine, Ready
from multiworld.serving.hosts.program import _receive_options
from multiworld.wire.messages import decode
from multiworld.wire.progress.thread import ProgressThread


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = seqpacket.connected_pair()
    with ours, theirs:
        yield ours, theirs


def said(ends: tuple[socket.socket, socket.socket], warnings: tuple[str, ...]) -> Ready:
    """Return what the owner reads."""
    ours, theirs = ends
    loop = ProgressThread("test-owner", starts=False)
    lost: list[bool] = []
    try:
        line = OwnerLine(loop, theirs, on_stop=lambda grace_s: None, on_lost=lambda: lost.append(True))
        line.say(Ready(pid=1, warnings=warnings))
        assert not lost
        received = seqpacket.receive(ours)
        assert received is not None
        return decode(Ready, received[0])
    finally:
        loop.close()


def test_warnings_that_fit_are_told_as_they_are(ends: tuple[socket.socket, socket.socket]) -> None:
    assert said(ends, ("one", "two")).warnings == ("one", "two")


def test_of_more_warnings_than_fit_the_number_of_the_others_is_told(ends: tuple[socket.socket, socket.socket]) -> None:
    told = said(ends, tuple("\N{SNOWMAN}" * 2000 for _ in range(50))).warnings
    assert 1 < len(told) < 50
    assert told[-1].startswith(f"{50 - (len(told) - 1)} more warnings")


def test_options_without_their_descriptor_end_in_a_sentence(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    seqpacket.send(ours, b"options")  # as it comes where no descriptor is free
    with pytest.raises(SystemExit, match="no descriptor is free"):
        _receive_options(theirs)


def test_a_host_whose_owner_died_before_it_told_the_options_ends(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    ours.close()
    with pytest.raises(SystemExit) as ended:
        _receive_options(theirs)
    assert ended.value.code == 1
    assert os.fstat(theirs.fileno())
