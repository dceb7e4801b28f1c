"""What each rank of one host tells the others in shared memory, and how they wait for it.

A rank has a page of its own, which it alone writes: how far it is, the last call that it gave up, and what it has laid
open in each half of its area. It wakes whoever sleeps on it, who comes back now and then anyway (``shared_call``).

A *position* is a step of a call: the call's number, the same on all ranks, above ``STEP_BITS`` bits for the step.
"""

from __future__ import annotations

import ctypes
import hashlib

from ...wire.memory import futex
from ...wire.memory.copying import memory_at

PAGE_BYTES = 4096
SLICE_S = 0.005
STEP_BITS = 24
GAVE_UP_AT, LABELS_AT, LABEL_BYTES = 64, 128, 1024
MASK = 0xFFFFFFFF
DIGEST_BYTES = 32


def position_of(seq: int, step: int) -> int:
    return seq << STEP_BITS | step


class FlagPage:
    """One rank's page, in memory that ``owner`` keeps mapped. Call numbers begin at 1."""

    def __init__(self, owner: object, address: int) -> None:
        self._owner = owner
        self._address = address
        self._came_to = ctypes.c_uint64.from_address(address)
        self._gave_up = ctypes.c_uint64.from_address(address + GAVE_UP_AT)
        labels = [address + LABELS_AT + half * LABEL_BYTES for half in (0, 1)]
        self._shown_at = [ctypes.c_uint64.from_address(label) for label in labels]
        self._text_bytes = [ctypes.c_uint64.from_address(label + 8) for label in labels]
        self._texts = [memory_at(label + 16, LABEL_BYTES - 16) for label in labels]

    # ---- its owner's side

    def come_to(self, position: int) -> None:
        """Tell that this rank has come to a position, with all that it wrote before."""
        self._came_to.value = position
        futex.wake(self._address)

    def give_up(self, seq: int) -> None:
        """Tell that this rank has given the call of that number up, and uses nothing of it any more."""
        self._gave_up.value = seq
        futex.wake(self._address)

    def label(self, half: int, position: int, text: bytes) -> None:
        """Say what lies in a half of the area, before coming to that position."""
        text = _shortened(text)
        self._shown_at[half].value = position
        self._text_bytes[half].value = len(text)
        self._texts[half][: len(text)] = text

    # ---- the others' side

    def has_come_to(self, position: int) -> bool:
        return self._came_to.value >= position

    def has_given_up(self, seq: int) -> bool:
        """Whether it gave that call up, or a later one: then, if it has not come to the end of this, this too."""
        return self._gave_up.value >= seq

    def has_left(self, seq: int) -> bool:
        """Whether this rank uses nothing any more of a call that failed somewhere."""
        return self._gave_up.value >= seq or self._came_to.value >> STEP_BITS > seq

    def half_at(self, position: int) -> int | None:
        """Return the half that was laid open at that position; None: neither was."""
        for half in (0, 1):
            if self._shown_at[half].value == position:
                return half
        return None

    def has_text(self, half: int, text: bytes) -> bool:
        return self.text(half) == _shortened(text)

    def text(self, half: int) -> bytes:
        return bytes(self._texts[half][: min(self._text_bytes[half].value, LABEL_BYTES - 16)])

    def sleep(self, position: int) -> None:
        """Wait a while for it to come to a position, or to give up."""
        seen = self._came_to.value
        if seen < position:
            futex.wait(self._address, seen & MASK, SLICE_S)


def _shortened(text: bytes) -> bytes:
    """Return a text that fits into a label; a long one ends in a digest of it all."""
    if len(text) <= LABEL_BYTES - 16:
        return text
    return text[: LABEL_BYTES - 16 - DIGEST_BYTES] + hashlib.sha256(text).hexdigest()[:DIGEST_BYTES].encode()
