"""The end of a connection: wait until all is executed, say for what if that takes long, and give up after a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Final

from ..errors import NodeDeadError
from ..session.session import Session
from ..session.statistics import ASK_S, asked

logger = logging.getLogger(__name__)

SAY_S: Final = 5.0
"""After so long it is said for which nodes the end waits, and then whenever twice as long has passed."""


def settle_all(
    sessions: Sequence[Session], timeout_s: float | None = None, say_s: float = SAY_S
) -> list[NodeDeadError]:
    """Wait until all is executed, or its node is lost; return the losses that took commands with them.

    A node that is not done after ``timeout_s`` is taken for lost.
    """
    done = threading.Event()
    watch = threading.Thread(
        target=_watch, args=(list(sessions), done, timeout_s, say_s), name="multiworld-settling", daemon=True
    )
    watch.start()
    lost = []
    try:
        for session in sessions:
            if not session.is_over:
                try:
                    session.settle()
                except NodeDeadError as error:
                    if error.first_lost:
                        lost.append(error)
    finally:
        done.set()
        watch.join()
    return lost


def _watch(sessions: Sequence[Session], done: threading.Event, timeout_s: float | None, say_s: float) -> None:
    begin = time.monotonic()
    while True:
        waited_s = time.monotonic() - begin
        left_s = None if timeout_s is None else timeout_s - waited_s
        if left_s is not None and left_s <= 0:
            break
        if done.wait(max(0.0, min(say_s - waited_s, say_s if left_s is None else left_s))):
            return
        if time.monotonic() - begin >= say_s:
            say_s *= 2
            _say(sessions, time.monotonic() - begin)
    for session in sessions:
        if not session.is_over and session.first_unconfirmed():
            session.give_up(f"it was busy for {timeout_s:g} s after nodes.close(timeout_s={timeout_s:g})")


def _say(sessions: Sequence[Session], waited_s: float) -> None:
    busy = [session for session in sessions if not session.is_over and session.first_unconfirmed()]
    answers = asked(busy, ASK_S)
    for session in busy:
        first = session.first_unconfirmed()
        if (
            session.number in answers and not session.has_streams
        ):  # what it confirmed may be older than what it executes
            first = session.stream.queue.shown(answers[session.number].num_executed) or first
        if first:
            logger.warning(
                "the end of the connection waits for node %d since %.1f s: it is not done with %s. "
                "Ctrl-C gives up what it has not begun, and so does nodes.close(timeout_s=...)",
                session.number,
                waited_s,
                first,
            )
