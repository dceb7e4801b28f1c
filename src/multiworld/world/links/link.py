"""One control link per pair of processes: heartbeats and the news about worlds, never tensors."""

from __future__ import annotations

import errno
import fcntl
import select
import struct
import termios
import time
from collections.abc import Callable
from typing import Protocol

from ...errors import ProtocolError
from ...wire.connection.connection import Connection
from ...wire.connection.frames import Header, Kind, pack_frame
from ...wire.endpoints.keep_alive import keep_alive
from ...wire.endpoints.listener import Pending
from ...wire.messages import decode
from .messages import Goodbye, LinkHello, LinkMessage, SentinelAt, pack_message
from .peers import PeerInfo

UNREACHABLE_ERRNOS = frozenset(
    {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ENONET}
    | {errno.EBADMSG}  # a record did not verify: the peer is there, and the way to it cannot be used
)
HEARTBEAT_AT_LEAST_S = 0.02  # whatever the peer wants
NUM_PROBES = 2
_HEARTBEAT = pack_frame(Kind.HEARTBEAT)


class LinkOwner(Protocol):
    """What a link reports to; called on the progress thread."""

    def link_heard(self, link: Link) -> None: ...

    def link_said(self, link: Link, kind: int, body: bytes) -> None:
        """With the read side held: ``Link.defer`` what follows. Raises ProtocolError, and the link is lost."""

    def link_lost(self, link: Link, reason: str, *, unreachable: bool) -> None: ...


class Link:
    """A connection sink that stands for one peer process."""

    def __init__(self, owner: LinkOwner, peer: PeerInfo, *, heartbeat_s: float) -> None:
        self.peer = peer
        self.heartbeat_s = heartbeat_s
        """How often the peer wants to hear from us, in seconds."""
        self.sentinel: tuple[str, int] | None = None
        self.said_goodbye = False
        self.heard_at = time.monotonic()
        """When something of the peer was read last."""
        self._owes_nothing_at = time.monotonic()
        self._owner = owner
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        return f"<Link to {self.peer}>"

    def opened(self, connection: Connection) -> None:
        self._connection = connection

    def attach(self, connection: Connection, *, unreachable_s: float) -> None:
        """Take the connection, and let the kernel watch the path to the peer's host."""
        self._connection = connection
        keep_alive(connection.sock, num_probes=NUM_PROBES, unreachable_s=unreachable_s)

    @property
    def is_hung_up(self) -> bool:
        """Whether the peer has closed its end: the kernel knows before we have read so far. Progress thread only."""
        if self._connection is None or self._connection.closed:
            return True
        poll = select.poll()
        poll.register(self._connection.sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    @property
    def open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    @property
    def key(self) -> bytes:
        """What vouches for further connections between the two processes; empty if there is nothing."""
        return b"" if self._connection is None or self._connection.closed else self._connection.key

    @property
    def local_host(self) -> str:
        assert self._connection is not None
        return str(self._connection.sock.getsockname()[0])

    def heartbeat(self, now: float) -> None:
        self.unacknowledged_s(now)
        if self._connection is not None and not self._connection.num_queued:  # a queue that does not move needs no more
            self._connection.send(_HEARTBEAT)

    def tell(self, message: LinkMessage) -> None:
        """Any thread; dropped if the link is lost."""
        self.send(pack_message(message))

    def send(self, packed: bytes) -> None:
        """Send a frame that is packed. Any thread; dropped if the link is lost."""
        if self._connection is not None:
            self._connection.send(packed)

    def unacknowledged_s(self, now: float) -> float:
        """Return for how long the peer's kernel has owed us an acknowledgement; 0 when it owes none.

        Counted from the last heartbeat before which nothing was owed. Not from TCP_INFO: to that, what a local firewall
        drops was never sent, and every retransmission of the peer's counts as an acknowledgement.
        """
        if not self._owed_bytes():
            self._owes_nothing_at = now
        return now - self._owes_nothing_at

    def _owed_bytes(self) -> int:
        if self._connection is None or self._connection.closed:
            return 0
        (queued,) = struct.unpack("=i", fcntl.ioctl(self._connection.sock, termios.TIOCOUTQ, bytes(4)))
        return int(queued)

    def defer(self, call: Callable[[], None]) -> None:
        """With the read side held: call once it is free."""
        assert self._connection is not None
        self._connection.defer(call)

    def drain(self) -> None:
        """Read what has already arrived."""
        if self._connection is not None and not self._connection.closed:
            self._connection.read_available()

    def finish(self) -> None:
        """Send what is queued, then close from this side; what the peer still says is dropped."""
        connection = self._connection
        if connection is not None:
            connection.finish_writing(lambda: None)
            connection.loop.call_later(1.0, connection.abort)

    def abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    # connection sink
    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes:
            raise ProtocolError(f"frame kind {header.kind} with a payload on a link")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        self.heard_at = time.monotonic()
        self._owner.link_heard(self)
        if header.kind == Kind.HEARTBEAT:
            return
        if header.kind == Kind.GOODBYE:
            decode(Goodbye, meta)
            self.said_goodbye = True
        elif header.kind == Kind.SENTINEL:
            told = decode(SentinelAt, meta)
            self.sentinel = (told.host, told.port)
        else:
            self._owner.link_said(self, header.kind, meta)

    def lost(self, reason: str) -> None:
        code = 0 if self._connection is None else self._connection.lost_errno
        self._owner.link_lost(self, reason, unreachable=code in UNREACHABLE_ERRNOS)


def accept_link(owner: LinkOwner, pending: Pending, hello: LinkHello, *, unreachable_s: float) -> Link:
    """Make a link of a call for one. Raises MessageError if the HELLO does not say who calls."""
    peer = PeerInfo.from_json(hello.peer.encode())
    link = Link(owner, peer, heartbeat_s=max(HEARTBEAT_AT_LEAST_S, hello.heartbeat_s))
    link.attach(pending.connection, unreachable_s=unreachable_s)
    pending.accept(link)
    return link
