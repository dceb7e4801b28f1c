"""Collectives that wait for long: their ranks ask each other what they have called, in case they disagree.

Mostly a disagreement shows by itself: a message meets a receive that expects another one. But ranks that each wait for
the others send nothing, as two of three do that reduce to different roots.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Protocol

from ...wire.backoff import BackOff
from ...wire.progress.operation import Operation
from ...wire.progress.thread import ProgressThread, weakly

ASK_AFTER_S = 0.5
MAX_PAUSE_S = 8.0  # each time that nobody has an answer, the next question comes twice as late
NUM_REMEMBERED = 256  # how many collectives a rank may be ahead of another that asks


class Asker(Protocol):
    """Carries questions and answers to all peers, or one."""

    def ask(self, seq: int, signature: bytes) -> None:
        """Tell all peers what the collective of that number is here."""

    def contradict(self, rank: int, seq: int, signature: bytes) -> None:
        """Tell a peer that it is something else here, so that it need not wait for us."""


class OpenCollectives:
    """The collectives of one channel: those that are under way, and what the last ones were. From any thread."""

    def __init__(self, loop: ProgressThread, asker: Asker) -> None:
        self._loop, self._asker = loop, asker
        self._lock = threading.Lock()
        self._signatures: dict[int, bytes] = {}  # by number, of the open and the last ones
        self._open: dict[int, None] = {}
        self._seen: set[int] = set()  # those that were open when the clock rang last
        self._ringing = False
        self._back_off = BackOff(ASK_AFTER_S, MAX_PAUSE_S)  # of the clock that rings

    def begin(self, seq: int, signature: bytes, operation: Operation[Any]) -> None:
        """Remember a collective, and ask about it if it is not over before long."""
        with self._lock:
            self._signatures[seq] = signature
            if len(self._signatures) > NUM_REMEMBERED:
                self._forget_oldest()
            if operation.done:
                return
            self._open[seq] = None
            ringing, self._ringing = self._ringing, True
        operation.add_callback(partial(self._end, seq))
        if not ringing:
            self._ring_in()

    def asked(self, rank: int, seq: int, signature: bytes) -> None:
        """A peer waits in the collective of that number, which is ``signature`` there."""
        with self._lock:
            ours = self._signatures.get(seq)
        if ours is not None and ours != signature:
            self._asker.contradict(rank, seq, ours)

    def _end(self, seq: int, _: Operation[Any]) -> None:
        with self._lock:
            self._open.pop(seq, None)

    def _forget_oldest(self) -> None:
        oldest = next((seq for seq in self._signatures if seq not in self._open), None)
        if oldest is not None:
            del self._signatures[oldest]

    def _ring_in(self) -> None:
        self._loop.call_later(self._back_off.next_s(), weakly(self._ring))

    def _ring(self) -> None:
        with self._lock:
            waiting = [(seq, self._signatures[seq]) for seq in self._open if seq in self._seen]
            self._seen = set(self._open)
            self._ringing = bool(self._open)
        for seq, signature in waiting:
            self._asker.ask(seq, signature)
        if not waiting:
            self._back_off.reset()
        if self._seen:
            self._ring_in()
