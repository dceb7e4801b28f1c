"""Open a connection to another process and prove the job token to it."""

from __future__ import annotations

import errno
import logging
import os
import socket
from dataclasses import replace
from functools import partial

from ...errors import HandshakeError, MultiworldError, ProtocolError, TokenError
from ..connection.connection import Connection
from ..connection.frames import Header, Kind, pack_frame
from ..connection.records import DIALER
from ..connection.sink import ConnectionSink
from ..messages import decode, encode
from ..progress.operation import Operation
from ..progress.thread import ProgressThread
from ..rate_limited_log import RateLimitedLog
from . import handshake
from .addresses import address_of, family_of, is_local, is_ours, show

logger = logging.getLogger(__name__)

_say_garbage = RateLimitedLog(logger.warning)  # a caller whose address is another service's tries again and again


class DialError(MultiworldError):
    """The other end could not be reached (``reason``): nobody listens, or no route. Trying again may help.

    ``errno``: the system's error; EPROTO if somebody answered in another protocol; 0 if there was none, as when the
    other end closed the connection. ``is_silent``: somebody took the connection and said nothing.
    """

    def __init__(self, host: str, port: int, reason: str, errno: int = 0, is_silent: bool = False) -> None:
        super().__init__(host, port, reason, errno, is_silent)
        self.host, self.port, self.reason, self.errno = host, port, reason, errno
        self.is_silent = is_silent

    @property
    def is_refused(self) -> bool:
        """Whether the machine is there and nobody listens: a process that did is gone."""
        return self.errno == errno.ECONNREFUSED

    def __str__(self) -> str:
        return f"{show(self.host, self.port)}: {self.reason}"


def dial(
    loop: ProgressThread,
    host: str,
    port: int,
    hello: handshake.DialerHello,
    token: bytes,
    sink: ConnectionSink,
    *,
    timeout_s: float,
    source: str | None = None,
    voucher: handshake.Voucher | None = None,
    authenticated: bool = True,
) -> Operation[Connection]:
    """Connect to an address (see ``addresses``), shake hands, and hand the connection over to ``sink``.

    Fails with DialError (unreachable or too slow) or HandshakeError (refused, wrong token, not ours). ``sink.lost`` is
    called only for a connection that was handed over. ``source``: the local address to connect from. With a
    ``voucher`` the handshake takes one round trip less. ``authenticated``: what
    follows is, where there is a token; the acceptor must want the same.
    """
    operation: Operation[Connection] = Operation()
    try:
        sock = socket.socket(family_of(host), socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    except OSError as error:
        operation.fail(DialError(host, port, f"no socket: {error.strerror}", error.errno or 0))
        return operation
    try:
        if source is not None:
            sock.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
            sock.bind((source, 0))
        connected = _connect(sock, host, port)
        if not is_ours(sock):
            raise PermissionError(f"{host[1:]} belongs to another user")
    except OSError as error:
        sock.close()
        operation.fail(DialError(host, port, error.strerror or str(error), error.errno or 0))
        return operation
    _Dialing(
        loop,
        sock,
        host,
        port,
        hello,
        token,
        sink,
        operation,
        timeout_s,
        voucher,
        connected=connected,
        authenticated=authenticated and bool(token),
    )
    return operation


def _connect(sock: socket.socket, host: str, port: int) -> bool:
    """Begin to connect. True: it is connected already (on one host, where nothing has to be waited for)."""
    try:
        sock.connect(address_of(host, port))
    except BlockingIOError:
        if is_local(host):  # too many are calling it at this moment
            raise
        try:
            sock.getpeername()
        except OSError:
            return False  # the progress thread finishes it
    return True


class _Dialing:
    """The dialer's half of the handshake; a connection sink until the real one takes over."""

    def __init__(
        self,
        loop: ProgressThread,
        sock: socket.socket,
        host: str,
        port: int,
        hello: handshake.DialerHello,
        token: bytes,
        sink: ConnectionSink,
        operation: Operation[Connection],
        timeout_s: float,
        voucher: handshake.Voucher | None,
        *,
        connected: bool,
        authenticated: bool,
    ) -> None:
        self._host, self._port, self._token, self._sink, self._operation = host, port, token, sink, operation
        self._key = b"" if voucher is None else voucher.key
        self._authenticated = authenticated
        self._acceptor_nonce = b""  # once it has challenged us
        self._nonce = os.urandom(handshake.NONCE_BYTES)
        by = "" if voucher is None else voucher.by
        self._hello = encode(replace(hello, version=handshake.PROTOCOL_VERSION, nonce=self._nonce.hex(), by=by))
        self._made: Connection | None = None
        self._timer = loop.call_later(timeout_s, self._expire)  # first: a refused connection is lost at once
        try:
            self._connection = self._made = Connection(
                loop, sock, self, connected=connected, shakes_hands=True, warn=_say_garbage
            )
        except OSError as error:  # no memory for one more that is watched
            self._timer.cancel()
            sock.close()
            operation.fail(DialError(host, port, error.strerror or str(error), error.errno or 0))
            return
        operation.on_cancel = self._connection.abort
        words = pack_frame(Kind.HELLO, self._hello)
        if voucher is not None:
            words += pack_frame(Kind.PROOF, handshake.prove(voucher.key, b"dialer", self._hello, self._nonce, b""))
        self._connection.send(words)

    def begin(self, header: Header, meta: bytes) -> memoryview | None:
        if header.payload_bytes:
            raise ProtocolError("payload during the handshake")
        return None

    def end(self, header: Header, meta: bytes) -> None:
        if header.kind == Kind.CHALLENGE:
            self._answer(meta)
        elif header.kind == Kind.ACCEPTED:
            self._accepted(meta)
        elif header.kind == Kind.REFUSED:
            self._fail(self._refusal(decode(handshake.HandshakeRefused, meta)))
        else:
            raise ProtocolError(f"frame kind {header.kind} during the handshake")

    def lost(self, reason: str) -> None:
        self._timer.cancel()
        code = 0 if self._made is None else self._made.lost_errno  # another thread may lose it while it is being made
        if self._has_said_half():
            code = errno.EPROTO
        self._operation.fail(DialError(self._host, self._port, reason, code))

    def _answer(self, meta: bytes) -> None:
        if len(meta) != handshake.NONCE_BYTES or self._acceptor_nonce:
            raise ProtocolError("a challenge that no acceptor of ours makes")
        self._acceptor_nonce = meta
        answer = handshake.prove(self._token, b"dialer", self._hello, self._nonce, meta)
        self._connection.send(pack_frame(Kind.PROOF, answer))

    def _accepted(self, meta: bytes) -> None:
        """The acceptor has to prove what it let us in with: anybody can say that it does."""
        secret, nonce, proof = self._token, self._acceptor_nonce, meta
        if not nonce:
            secret, nonce, proof = self._key, meta[: handshake.NONCE_BYTES], meta[handshake.NONCE_BYTES :]
            if not secret:
                raise ProtocolError("accepted by somebody who has not asked for the job token")
        try:
            handshake.check_proof(proof, secret, b"acceptor", self._hello, self._nonce, nonce)
        except HandshakeError:
            self._fail(TokenError(handshake.STRANGER))
            return
        self._connection.key = handshake.derive_key(secret, self._hello, self._nonce, nonce)
        self._timer.cancel()
        connection = self._connection
        if self._authenticated:
            connection.authenticate(DIALER)
        connection.hand_over(self._sink)
        connection.defer(lambda: self._finish(connection))

    def _refusal(self, refused: handshake.HandshakeRefused) -> HandshakeError:
        if refused.cause == handshake.TOKEN:
            return handshake.tokens_differ(has_token=bool(self._token))
        return HandshakeError(refused.reason)

    def _finish(self, connection: Connection) -> None:
        if not self._operation.succeed(connection):  # cancelled or timed out meanwhile
            connection.abort("no longer wanted")

    def _fail(self, error: Exception) -> None:
        self._timer.cancel()
        self._connection.defer(partial(_refuse, self._operation, error))
        self._connection.abort(str(error))

    def _has_said_half(self) -> bool:
        """Whether what came is shorter than any frame: a short word of another protocol."""
        return self._made is not None and not self._made.parser.at_boundary

    def _expire(self) -> None:
        has_said_half = self._has_said_half()
        is_silent = not has_said_half and _is_connected(self._connection.sock)
        code = errno.EPROTO if has_said_half else errno.ETIMEDOUT
        self._operation.fail(DialError(self._host, self._port, "no answer in time", code, is_silent))
        self._connection.abort("no answer in time")


def _is_connected(sock: socket.socket) -> bool:
    try:
        sock.getpeername()
    except OSError:
        return False
    return True


def _refuse(operation: Operation[Connection], error: Exception) -> None:
    operation.fail(error)
