"""Take the answer to a request for which nobody waits any more: the node keeps a tensor until its values were taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...channel.payload.small_message import Received
from ...errors import MultiworldError
from ...wire.progress.operation import Operation
from ..lane import bytes_of
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
        if was_abandoned(error):
            discard()
        raise


def was_abandoned(error: BaseException) -> bool:
    """Whether Ctrl-C or the cancellation of a task ended a wait, and not an error of what it waited for."""
    return not isinstance(error, Exception)


@plainly
def discard_answer(link: Link, request: int, was_read: WasRead) -> None:
    """Take the answer when it comes, and forget it. Any thread; does not block."""
    try:
        receive = link.world.start_recv_bytes(lanes.NODE, lanes.FIRST_REPLY + request, None)
    except MultiworldError:
        return  # the node is lost, and keeps nothing
    receive.add_callback(partial(_came, link, request, was_read))


@plainly
def discard_values(link: Link, request: int) -> None:
    """Take the values of a large tensor when they come, and forget them. Any thread; does not block."""
    try:
        link.bulk.start_recv_tensors(lanes.NODE, lanes.FIRST_REPLY + request, None).add_callback(_forget)
    except MultiworldError:
        return  # as above


def _came(link: Link, request: int, was_read: WasRead, receive: Operation[Received]) -> None:
    if receive.error is not None:
        return
    said = read(bytes_of(receive.result()))
    if isinstance(said, InMemory):
        was_read(link, request)
    elif isinstance(said, Sends):
        discard_values(link, request)


def _forget(receive: Operation[Any]) -> None:
    """Nothing holds the values once their operation is gone."""
