"""Messages and descriptors between the agent, its fork server and its workers."""

from __future__ import annotations

import contextlib
import os

import pytest

from multiworld.process.spawn import seqpacket


def test_messages_keep_their_bounds_and_bring_their_descriptors() -> None:
    ours, theirs = seqpacket.connected_pair()
    with ours, theirs:
        file = seqpacket.sealed(b"content")
        seqpacket.send(ours, b"first", (file,))
        seqpacket.send(ours, b"second")
        os.close(file)
        first, second = seqpacket.receive(theirs), seqpacket.receive(theirs)
        assert first is not None
        assert first[0] == b"first"
        (copy,) = first[1]
        assert not os.get_inheritable(copy)
        with open(copy, "rb") as received:
            assert received.read() == b"content"
        assert second == (b"second", [])


def test_the_end_of_the_peer_is_told() -> None:
    ours, theirs = seqpacket.connected_pair()
    with ours:
        theirs.close()
        assert seqpacket.receive(ours) is None
        with pytest.raises(BrokenPipeError):
            seqpacket.send(ours, b"more")


def test_the_end_of_a_peer_that_had_not_read_all_is_told() -> None:
    ours, theirs = seqpacket.connected_pair()
    with ours:
        seqpacket.send(ours, b"unread")
        theirs.close()
        assert seqpacket.receive(ours) is None


def test_a_full_socket_does_not_block() -> None:
    ours, theirs = seqpacket.connected_pair()
    with ours, theirs:
        ours.setblocking(False)
        num_sent = 0
        with contextlib.suppress(BlockingIOError):
            while num_sent < 100_000:
                seqpacket.send(ours, b"x" * 1000)
                num_sent += 1
        assert 10 < num_sent < 100_000
        assert all(seqpacket.receive(theirs) is not None for _ in range(num_sent))
        theirs.setblocking(False)
        with pytest.raises(BlockingIOError):
            seqpacket.receive(theirs)
