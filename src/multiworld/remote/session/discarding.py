"""Take the answer to a request for which nobody waits any more: the node keeps a tensor until its values were taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...errors import MultiworldError
from ...wire.progress.operation import Operation
from ..protocol import lanes
from ..protocol.messages import InMemory, Sends
from ..protocol.reply import read
from .lifetime import Link
from .plainly import plainly

WasRead = Callable[[Link, int], object]
"""Tells the node of a link that the answer to a request was read in its memory."""


@contextmanager
def if_abandoned(discard: Callable[[], object]) -> Iterator[None]:
    """Call ``discard`` if an interrupt or the cancellation of a task ends the block."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):
            discard()
        raise


@plainly
def discard_values(link: Link, request: int) -> None:
    """Take the values of a large tensor when they come, and forget them. Any thread; does not block."""
    try:
        link.bulk.start_recv_tensors(lanes.NODE, lanes.FIRST_ELEMENTS + request, None).add_callback(_forget)
    except MultiworldError:
        return  # the node is lost, and keeps nothing


def discard_reply(link: Link, request: int, reply: memoryview, was_read: WasRead) -> None:
    """Have the node keep nothing for a reply that nobody takes. Any thread; does not block."""
    said = read(reply)
    if isinstance(said, InMemory):
        was_read(link, request)
    elif isinstance(said, Sends):
        discard_values(link, request)


def _forget(receive: Operation[Any]) -> None:
    """Nothing holds the values once their operation is gone."""
