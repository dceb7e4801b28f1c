"""Which verdict a peer's end gets, of what was read of it in the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import cast

import pytest

from multiworld.wire.progress.thread import ProgressThread
from multiworld.world.detector import Detector
from multiworld.world.links.link import Link
from multiworld.world.links.peers import PeerInfo
from multiworld.world.liveness import Cause, LivenessPolicy, Lost

WAIT_S = 10.0


class FakeLink:
    """Its last words, if any, are read when it is drained; its end is told later."""

    def __init__(self, *, says_goodbye: bool) -> None:
        self.peer = PeerInfo.of_this_process("peer", "127.0.0.1", 1)
        self.heartbeat_s = 1.0
        self.said_goodbye = False
        self._says_goodbye = says_goodbye

    def heartbeat(self, now: float) -> None:
        pass

    def drain(self) -> None:
        self.said_goodbye = self._says_goodbye


def on_thread(loop: ProgressThread, call: Callable[[], None]) -> None:
    done = threading.Event()
    loop.call_soon(call)
    loop.call_soon(done.set)
    assert done.wait(WAIT_S)


@pytest.mark.parametrize(("says_goodbye", "cause"), [(True, Cause.LEFT), (False, Cause.DIED)])
def test_a_process_that_ended_after_it_said_goodbye_has_left(says_goodbye: bool, cause: Cause) -> None:
    loop = ProgressThread("test-detector")
    told: list[Lost[str]] = []
    detector = Detector(
        loop,
        LivenessPolicy(),
        b"",
        "me",
        on_lost=lambda _, lost: told.append(lost),
        on_suspected=lambda link, silent_s: None,
    )
    link = cast(Link, FakeLink(says_goodbye=says_goodbye))
    try:
        on_thread(loop, lambda: detector.watch(link))
        on_thread(loop, lambda: detector.exited(link))
        on_thread(loop, lambda: detector.gone(link, "closed", unreachable=False, left=link.said_goodbye))
        on_thread(loop, detector.close)
    finally:
        loop.stop()
    assert [lost.cause for lost in told] == [cause]
