"""The process that makes plans in advance for one training process: see ``foresight``."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
from typing import TYPE_CHECKING

from ...process.spawn import seqpacket
from ..planning.changes.foreseen import Foreseen, Outcome

if TYPE_CHECKING:
    from .foresight import Order

NICENESS = 10
"""It takes what the training leaves over. At 19 it would starve on a host whose cores are all busy."""


def main(fd: int) -> None:
    """Plan for the newest order, one loss after the other, until the training process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: the training process decides when to end
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with socket.socket(fileno=fd) as channel, contextlib.suppress(BrokenPipeError):
        while (received := seqpacket.receive(channel)) is not None:
            order = _order(received[1][0])
            foreseen = Foreseen(order.plan, order.templates, order.conditions)
            for lost in order.lost:
                if select.select([channel], [], [], 0)[0]:  # another order, or the end
                    break
                _tell(channel, f"{order.generation} {lost}", foreseen.outcome(lost))


def _order(fd: int) -> Order:
    with open(fd, "rb") as file:
        order: Order = pickle.load(file)
    return order


def _tell(channel: socket.socket, what: str, outcome: Outcome) -> None:
    """Blocks while some hundred plans wait to be taken: those for further losses are not made then."""
    content = seqpacket.sealed(pickle.dumps(outcome))
    try:
        seqpacket.send(channel, what.encode(), (content,))
    finally:
        os.close(content)
