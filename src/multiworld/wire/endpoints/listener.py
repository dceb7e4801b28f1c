"""Accept connections on one port, shake hands, and hand each to the part of the program that it asks for."""

from __future__ import annotations

import logging
import os
import select
import socket
from collections.abc import Callable
from typing import Any, TypeVar

from ...errors import HandshakeError, ProtocolError, TokenError
from ..connection.connection import Connection
from ..connection.frames import Header, Kind, pack_frame
from ..connection.records import ACCEPTOR
from ..connection.sink import ConnectionSink
from ..descriptors import is_out_of_descriptors
from ..messages import encode, from_json
from ..progress.thread import ProgressThread
from ..rate_limited_log import RateLimitedLog
from .addresses import is_local, is_ours, listen_at, show
from .admission import ACCEPTS_AT_ONCE, UNPROVEN_S, Admission
from .handshake import NONCE_BYTES, TOKEN, DialerHello, HandshakeRefused, check_proof, derive_key, prove, read_hello

logger = logging.getLogger(__name__)

BACKLOG = 512
REFUSED_S = 1.0  # how long a refused dialer may take to read the reason

Route = Callable[["Pending"], None]
H = TypeVar("H", bound=DialerHello)


class Listener:
    """A listening socket. ``routes`` maps the ``purpose`` of a HELLO to who decides on it.

    ``key_of`` returns the key of our link to the process of that id, or nothing if there is none.
    """

    def __init__(
        self,
        loop: ProgressThread,
        host: str,
        port: int,
        token: bytes,
        routes: dict[str, Route],
        key_of: Callable[[str], bytes] = lambda _: b"",
        *,
        say: Callable[..., None] = logger.warning,
    ) -> None:
        """Bind and listen; raises OSError. ``host`` is an address (see ``addresses``), port 0 picks a free one.

        ``say`` logs what anybody can cause: failed handshakes, and connections that do not speak our protocol.
        """
        self._loop, self._routes = loop, routes
        self.token, self.key_of = token, key_of
        self._sock = listen_at(host, port, BACKLOG)
        self.host, self.port = host, 0
        if not is_local(host):
            self.host, self.port = self._sock.getsockname()[:2]
        where = show(self.host or host, self.port)
        self._unproven: Admission[Pending] = Admission(where, _too_many, _read)
        self._closed = False
        self._say_refused = RateLimitedLog(logger.warning)
        self.say_failed, self.say_garbage = RateLimitedLog(say), RateLimitedLog(say)
        loop.register(self._sock.fileno(), select.EPOLLIN, self)

    def __repr__(self) -> str:
        return f"<Listener {show(self.host, self.port)}>"

    def on_ready(self, events: int) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if is_out_of_descriptors(error):
                    self._loop.modify(self._sock.fileno(), 0)
                    self._loop.call_later(self._unproven.cannot_accept(error), self._resume)
                    return
                logger.debug("a connection was gone before it was accepted: %s", error)
                continue
            self.admit(sock, address)

    def admit(self, sock: socket.socket, address: Any) -> None:
        """Shake hands on a connection that was accepted, here or elsewhere, from ``address``."""
        if not is_ours(sock):
            self._say_refused("a process of another user connected to %s, and was refused", show(self.host, 0))
            sock.close()
            return
        name = "a process of this host" if is_local(self.host) else f"{address[0]}:{address[1]}"
        try:
            pending = Pending(self, self._loop, sock, name)
        except OSError as error:
            logger.debug("the connection from %s was gone as soon as it was accepted: %s", name, error)
            sock.close()
            return
        self._unproven.came(pending, name, sock.fileno())
        pending.connection.read_available()  # on one host the HELLO is there already

    def on_failure(self, error: BaseException) -> None:
        self._loop.call_soon(self.close)

    def close_descriptor(self) -> None:
        self._closed = True
        self._sock.close()

    def route(self, pending: Pending) -> None:
        """A dialer has proved itself: let the one it asks for decide. One whose HELLO it cannot read is refused."""
        route = self._routes.get(pending.purpose)
        if route is None:
            pending.refuse(f"nobody here serves {pending.purpose!r}")
            return
        try:
            route(pending)
        except ProtocolError as error:
            pending.refuse(f"the HELLO cannot be read: {error}")

    def greeted(self, pending: Pending) -> None:
        self._unproven.spoke(pending)

    def settled(self, pending: Pending) -> None:
        self._unproven.left(pending)

    def close(self) -> None:
        """Stop listening and drop the connections that are still in their handshake. Progress thread only.

        Idempotent.
        """
        if self._closed:
            return
        self._closed = True
        self._loop.unregister(self._sock.fileno())
        self._sock.close()
        self._unproven.close()

    def _resume(self) -> None:
        if not self._closed:
            self._loop.modify(self._sock.fileno(), select.EPOLLIN)


class Pending:
    """The acceptor's half of a handshake. Once proved, a route calls ``accept`` or ``refuse``, then or later."""

    def __init__(self, listener: Listener, loop: ProgressThread, sock: socket.socket, name: str) -> None:
        self.name = name
        self.purpose = ""
        self.is_lost = False
        self._listener = listener
        self._hello = b""
        self._fields: object = None
        self._by = ""
        self._dialer_nonce = b""
        self._nonce = b""  # ours, once we have challenged
        self._acceptance = b""  # our own proof; if we did not challenge, behind our nonce
        self._settled = False
        self._refused = False
        self.connection = Connection(loop, sock, self, warn=listener.say_garbage, shakes_hands=True)
        self._timer = loop.call_later(UNPROVEN_S, self._expire)

    def hello(self, cls: type[H]) -> H:
        """Return the HELLO as its purpose has it. Raises MessageError, for which ``Listener`` refuses the dialer."""
        return from_json(cls, self._fields)

    def accept(self, sink: ConnectionSink, *, authenticated: bool = True) -> None:
        """Hand the connection to ``sink``. Any thread. With a token what follows is ``authenticated``, if wanted."""
        connection = self.connection

        def hand_over() -> None:
            connection.queue(pack_frame(Kind.ACCEPTED, self._acceptance))
            if authenticated and self._listener.token:
                connection.authenticate(ACCEPTOR)
            connection.hand_over(sink)
            connection.flush()

        connection.run(hand_over)

    def refuse(self, reason: str, cause: str = "") -> None:
        """Say why not, and close. Any thread."""
        if self._settled:  # else anybody can have that said, and as often as they like
            logger.info("refused %s: %s", self.name, reason)
        self._refused = True
        self.connection.send(pack_frame(Kind.REFUSED, encode(HandshakeRefused(reason=reason, cause=cause))))
        self.connection.finish_writing(lambda: None)
        self.connection.loop.call_later(REFUSED_S, lambda: self.connection.abort(reason))

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes:
            raise ProtocolError("payload during the handshake")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        if self._refused:
            return  # whatever it still says, it has its answer
        try:
            if header.kind == Kind.HELLO and not self._hello:
                self._greet(meta)
            elif header.kind == Kind.PROOF and self._nonce and not self._settled:
                self._check(meta)
            elif header.kind == Kind.PROOF and self._hello and not self._settled:
                self._check_by_key(meta)
            else:
                raise ProtocolError(f"frame kind {header.kind} during the handshake")
        except HandshakeError as error:
            self._listener.say_failed("refused connection from %s: %s", self.name, error)
            self.refuse(str(error), TOKEN if isinstance(error, TokenError) else "")

    def lost(self, reason: str) -> None:
        self.is_lost = True
        self._settle()

    def _greet(self, meta: bytes) -> None:
        self._fields, hello = read_hello(meta)
        try:
            self._dialer_nonce = bytes.fromhex(hello.nonce)
        except ValueError:
            self._dialer_nonce = b""
        if not self._dialer_nonce:
            raise HandshakeError("the HELLO has no nonce")
        self._hello, self.purpose, self._by = meta, hello.purpose, hello.by
        self._listener.greeted(self)
        if not self._by:  # else the proof comes without being asked for
            self._challenge()

    def _challenge(self) -> None:
        self._nonce = os.urandom(NONCE_BYTES)
        self.connection.send(pack_frame(Kind.CHALLENGE, self._nonce))

    def _check_by_key(self, proof: bytes) -> None:
        key = self._listener.key_of(self._by)
        try:
            check_proof(proof, key, b"dialer", self._hello, self._dialer_nonce, b"")
        except HandshakeError:
            key = b""
        if key:
            nonce = os.urandom(NONCE_BYTES)
            self._share(key, nonce)
            self._acceptance = nonce + self._acceptance
            self._proved()
        else:  # it may know the token all the same: one of us may not have noticed yet that the link is a new one
            self._challenge()

    def _check(self, proof: bytes) -> None:
        token = self._listener.token
        check_proof(proof, token, b"dialer", self._hello, self._dialer_nonce, self._nonce)
        self._share(token, self._nonce)
        self._proved()

    def _share(self, secret: bytes, nonce: bytes) -> None:
        """The dialer has proved the secret: prove it too, and keep what both share from now on."""
        self._acceptance = prove(secret, b"acceptor", self._hello, self._dialer_nonce, nonce)
        self.connection.key = derive_key(secret, self._hello, self._dialer_nonce, nonce)

    def _proved(self) -> None:
        self._settle()
        self.connection.defer(lambda: self._listener.route(self))

    def _settle(self) -> None:
        self._settled = True
        self._timer.cancel()
        self._listener.settled(self)

    def _expire(self) -> None:
        if not self._settled:
            self._listener.say_failed("connection from %s dropped: no handshake within %.0f s", self.name, UNPROVEN_S)
            self.connection.abort("no handshake in time")


def _too_many(pending: Pending) -> None:
    pending.connection.abort("too many connections, or the listener was closed")


def _read(pending: Pending) -> None:
    pending.connection.read_available()
