"""Decide which receive from any rank gets the next message, and which peer is asked first. Pure: no socket or thread.

Receives on one tag are served in the order in which they were issued. Peers are asked in a ring, from the one behind
that which was served last on the tag, so that none that has messages waits for ever while others send without a pause.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

MAX_TURNS = 1024  # tags of which it is remembered whose turn it is

R = TypeVar("R")  # the shell's receive


class AnySource(Generic[R]):
    """The receives from any rank that have no message, and whose turn it is."""

    def __init__(self, peers: Sequence[int], *, max_turns: int = MAX_TURNS) -> None:
        self._peers = list(peers)
        self._max_turns = max_turns
        self._waiting: dict[int, OrderedDict[R, None]] = {}  # by tag
        self._turns: OrderedDict[int, int] = OrderedDict()  # by tag, the place in the ring to begin at

    def __bool__(self) -> bool:
        """Whether receives wait. Any thread."""
        return bool(self._waiting)

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in list(self._waiting.values()))

    def __contains__(self, tag: int) -> bool:
        """Whether a receive waits on the tag. Any thread."""
        return tag in self._waiting

    def post(self, tag: int, receive: R) -> list[int]:
        """A receive is issued. Return the peers in the order in which to look for messages that are here already."""
        self._waiting.setdefault(tag, OrderedDict())[receive] = None
        turn = self._turns.get(tag, 0)
        return self._peers[turn:] + self._peers[:turn]

    def take(self, tag: int, peer: int) -> R | None:
        """A message of ``peer`` waits for a receive. Return the one that gets it, if there is any."""
        waiting = self._waiting.get(tag)
        if not waiting:
            return None
        receive, _ = waiting.popitem(last=False)
        if not waiting:
            del self._waiting[tag]
        self._turns[tag] = (self._peers.index(peer) + 1) % len(self._peers)
        self._turns.move_to_end(tag)
        if len(self._turns) > self._max_turns:
            self._turns.popitem(last=False)
        return receive

    def withdraw(self, tag: int, receive: R) -> bool:
        """A receive is cancelled. False: it does not wait here any more."""
        waiting = self._waiting.get(tag)
        if waiting is None or receive not in waiting:
            return False
        del waiting[receive]
        if not waiting:
            del self._waiting[tag]
        return True

    def withdraw_all(self) -> list[R]:
        """Take all receives out, and return them."""
        receives = [receive for waiting in self._waiting.values() for receive in waiting]
        self._waiting.clear()
        return receives
