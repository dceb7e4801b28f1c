"""What becomes of data connections whose two ends do not want the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from multiworld.errors import HandshakeError
from multiworld.testing import scaled
from multiworld.wire.progress.thread import ProgressThread
from multiworld.wire.progress.waiting import wait_blocking
from multiworld.world.links.peer_connections import LinkError, PeerConnections
from multiworld.world.liveness import LivenessPolicy
from tests.unit.wire.connected import Sink

ID, OTHER_ID = "a" * 32, "b" * 32


@pytest.fixture
def loop(no_leaks: None) -> Iterator[ProgressThread]:
    loop = ProgressThread("test-peers")
    yield loop
    loop.stop()


@pytest.fixture
def both(loop: ProgressThread) -> Iterator[list[PeerConnections]]:
    owner = cast("Any", None)  # of links, and there are none
    boards = [
        PeerConnections(loop, owner, LivenessPolicy(), b"secret" * 6, "job", each, on_link=lambda _: None)
        for each in (ID, OTHER_ID)
    ]
    yield boards
    for board in boards:
        loop.call_soon(board.close)


@pytest.mark.parametrize("comes_first", ["the call", "who waits for it"])
@pytest.mark.parametrize("is_authenticated", [True, False])
def test_who_waits_for_a_connection_that_authenticates_otherwise_learns_it(
    both: list[PeerConnections], is_authenticated: bool, comes_first: str
) -> None:
    here, there = both
    at, via = here.listen("127.0.0.1"), there.listen("127.0.0.1")

    def call() -> Any:
        return there.dial_data("w", 1, at, via, Sink(), scaled(5), local=False, authenticated=not is_authenticated)

    dialing = call() if comes_first == "the call" else None
    waiting = here.expect_data("w", 1, Sink(), authenticated=is_authenticated)
    with pytest.raises(HandshakeError, match="only one authenticates"):
        wait_blocking(dialing or call())
    assert waiting.done
    assert isinstance(waiting.error, LinkError)
    assert "rank 1 was refused: of the two ends of that data connection only one" in str(waiting.error)
