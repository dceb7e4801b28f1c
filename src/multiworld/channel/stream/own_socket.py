"""A channel's own socket, to carry the frames of a stream as the connections do that a world opens by itself."""

from __future__ import annotations

import socket
from functools import partial

from ...wire.connection.connection import Connection
from ...wire.connection.sink import ConnectionSink
from ...wire.progress.operation import Operation
from ..base import ChannelContext


def attach_socket(context: ChannelContext, sock: socket.socket, sink: ConnectionSink) -> Operation[Connection]:
    """Let a connected stream socket, which is the connection's then, talk to ``sink``. For a ``Connector``.

    The other end is trusted from now on: make sure before that it is the rank that it says. Fails with
    OSError, and the socket is closed, if that cannot be watched.
    """
    operation: Operation[Connection] = Operation()
    context.loop.call_soon(partial(_attach, context, sock, sink, operation))
    return operation


def _attach(
    context: ChannelContext, sock: socket.socket, sink: ConnectionSink, operation: Operation[Connection]
) -> None:
    """On the progress thread, so that nothing is read before the sink knows its connection."""
    if operation.done:
        sock.close()
        return
    try:
        connection = Connection(context.loop, sock, sink)
    except OSError as error:
        sock.close()
        operation.fail(error)
        return
    connection.run(partial(connection.hand_over, sink))
    if not operation.succeed(connection):
        connection.abort("no longer wanted")
