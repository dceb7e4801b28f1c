"""Streams and events of nodes by the names that ``torch.cuda`` has for those of GPUs: a node stands for a device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from ...remote.master import streams
from ...remote.master.node import Node
from .default import current_node, present_nodes


class Stream(streams.Stream):
    """A new stream of a node. Default: of the node that ``node(n)`` has chosen."""

    def __init__(self, node: int | None = None) -> None:
        """Raises NodeDeadError, ConnectError; RuntimeError without master-worker mode."""
        super().__init__(_node(node).session())


class Event(streams.Event):
    """An event. Default of its methods: the stream that this thread uses on the node that ``node(n)`` has chosen."""

    def record(self, stream: streams.Stream | None = None) -> None:
        super().record(current_stream() if stream is None else stream)

    def wait(self, stream: streams.Stream | None = None) -> None:
        super().wait(current_stream() if stream is None else stream)


def stream(chosen: streams.Stream | None) -> AbstractContextManager[streams.Stream | None]:
    """Inside, what this thread does with tensors of the stream's node runs on that stream. None changes nothing."""
    return nullcontext() if chosen is None else chosen


def current_stream(node: int | None = None) -> streams.Stream:
    """Return the stream that this thread uses on a node. Default: on the node that ``node(n)`` has chosen."""
    return _node(node).current_stream()


def default_stream(node: int | None = None) -> streams.Stream:
    """Return the stream of all that is done inside no ``with stream(...):``."""
    return _node(node).default_stream


def synchronize(node: int | None = None) -> None:
    """Wait until all that was issued on a node is executed, on all its streams. Raises NodeDeadError."""
    _node(node).synchronize()


def _node(number: int | None) -> Node:
    return current_node() if number is None else present_nodes()[number]
