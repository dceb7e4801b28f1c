"""Tags of the messages between master and node, so that none waits for another kind. Pure."""

from __future__ import annotations

from typing import Final

MASTER: Final = 0
NODE: Final = 1
"""Their ranks in the two worlds that they share."""

HELLO: Final = 1
NEWS: Final = 2
"""From the node: what was executed, and what failed."""
ARRIVALS: Final = 3
"""From the master: a large tensor comes over the bulk lane."""
CONTROL: Final = 4
"""From the master: what does not wait for the commands before it."""
REPLIES: Final = 5
"""From the node: each reply says which request it is to."""
FIRST_STREAM: Final = 16
"""Commands of stream N have the tag FIRST_STREAM + N."""
FIRST_ELEMENTS: Final = 1 << 32
"""The elements that are the reply to request N have the tag FIRST_ELEMENTS + N in the world of large tensors."""

INLINE_BYTES: Final = 32 * 1024
"""Tensors up to this size travel within the commands and the replies; larger ones in the world of large tensors."""


def names_of(number: int) -> tuple[str, str]:
    """Return the names of the worlds that a node shares with its master: for commands, and for large tensors."""
    return f"remote-{number}", f"remote-{number}-bulk"
