"""A host process's connection to its controller: dialed again and again for as long as the process lives.

Only a host that the controller has never let in, and refuses for long, gives up: its name or token is wrong. One whose
controller is elsewhere says when that is not there.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from ...errors import HandshakeError, ProtocolError, RecordError, TokenError
from ...wire.addresses import family_of, show
from ...wire.progress import ProgressThread, Timer
from ...wire.records import DIALER
from .greeting import DialerGreeting
from .keep_alive import keep_alive
from .lines import LONGEST_LINE
from .spoken_lines import SpokenLines

__all__ = ["ControllerLink"]

logger = logging.getLogger(__name__)

FIRST_DELAY_S, LONGEST_DELAY_S = 0.05, 1.0
GREETING_S = 5.0
MISSED_S = 5.0  # a controller that ends is started again before
REFUSED_S = 30.0  # a predecessor of the same name may take that long to end, or to be found lost
NONCE_BYTES = 16
CHUNK_BYTES = 64 * 1024
FULL_BYTES = 2 * LONGEST_LINE  # of what the controller does not read: what it missed is in the next hello


class ControllerLink:
    """``hello`` is asked for at each connection; ``on_order`` gets what the controller says on it.

    What is sent while there is no connection is dropped: the next hello tells how things are then.
    """

    def __init__(
        self,
        loop: ProgressThread,
        address: tuple[str, int],
        token: str,
        *,
        hello: Callable[[str], Mapping[str, Any]],
        on_order: Callable[[dict[str, Any]], None],
        on_refused: Callable[[str], None] | None = None,
        on_outdated: Callable[[], None] = lambda: None,
    ) -> None:
        """``hello`` gets this host's own address, as the connection shows it.

        ``on_refused``, of a host whose controller is elsewhere, gets the reason, at the end; once let in, there is
        none. ``on_outdated`` is called when what the host runs belongs to a deployment that is no more.
        """
        self.serial = 0
        """Which connection this is: numbers of orders mean something on their own one only."""
        self._loop, self._address, self._token = loop, address, token
        self._make_hello, self._on_order, self._on_refused = hello, on_order, on_refused
        self._on_outdated = on_outdated
        self.tells_absence = on_refused is not None
        """Whether people are told when the controller is not there."""
        self._absent_since: float | None = None
        self._was_absence_told = False
        self._sock: socket.socket | None = None
        self._is_connecting = self._is_linked = False
        self._greeting: DialerGreeting | None = None
        self._lines = SpokenLines()
        self._unsent = bytearray()
        self._limit: Timer | None = None
        self._redial: Timer | None = None
        self._delay_s = FIRST_DELAY_S
        self._complaint = ""
        self._refused_since: float | None = None
        self._closed = False

    def dial(self) -> None:
        """Connect once now; from then on it is done again after each loss."""
        self._redial = None
        if self._closed:
            return
        self._lines, self._greeting = SpokenLines(), None
        self._unsent.clear()
        try:
            self._sock = sock = socket.socket(
                family_of(self._address[0]), socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            )
            keep_alive(sock)
            self._limit = self._loop.call_later(GREETING_S, self._too_slow)
            number = sock.connect_ex(self._address)
            if number not in (0, errno.EINPROGRESS):
                raise OSError(number, os.strerror(number))
        except OSError as error:
            self._lose(error)
            return
        self._is_connecting = True
        self._loop.register(sock.fileno(), select.EPOLLOUT, self)

    def send(self, event: Mapping[str, Any]) -> None:
        if self._is_linked:
            self._write(self._lines.say(event))

    @property
    def is_up(self) -> bool:
        """Whether the controller hears what is said now."""
        return self._is_linked

    @property
    def owes(self) -> bool:
        """Whether something said was not sent yet."""
        return self._is_linked and bool(self._unsent)

    def close(self) -> None:
        self._closed = True
        self._drop()
        if self._redial is not None:
            self._redial.cancel()

    def on_ready(self, events: int) -> None:
        try:
            if self._is_connecting:
                self._connected()
                return
            if events & select.EPOLLOUT:
                self._flush()
            if events & ~select.EPOLLOUT:
                self._read()
        except (OSError, ProtocolError) as error:
            self._lose(error)

    def on_failure(self, error: BaseException) -> None:
        self._lose(error)

    def close_descriptor(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def _connected(self) -> None:
        assert self._sock is not None
        number = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            raise OSError(number, os.strerror(number))
        if self._sock.getsockname() == self._sock.getpeername():
            raise OSError(errno.ECONNREFUSED, "connected to itself")  # TCP does so if it is given that very port
        self._is_connecting = False
        self._loop.modify(self._sock.fileno(), select.EPOLLIN)
        self._greeting = DialerGreeting(self._token, "host", os.urandom(NONCE_BYTES))
        self._write(self._lines.say(self._greeting.hello))

    def _read(self) -> None:
        assert self._sock is not None
        try:
            chunk = self._sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "the controller closed the connection")
        sock = self._sock
        self._lines.feed(chunk)
        while self._sock is sock and (record := self._lines.next()) is not None:  # else lost or closed meanwhile
            self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        if self._is_linked:
            if "refused" in record:
                if record.get("outdated"):
                    self._on_outdated()
                raise HandshakeError(str(record["refused"]))
            self._on_refused = None  # it was let in
            self._on_order(record)
        elif self._greeting is None:
            raise ProtocolError("the controller speaks first")
        elif not self._greeting.has_answered:
            self._write(self._lines.say(self._greeting.answer(record)))
        else:
            self._greeting.check_accepted(record)
            self._lines.authenticate(self._greeting.key, DIALER)
            self._link()

    def _link(self) -> None:
        assert self._sock is not None
        if self._limit is not None:
            self._limit.cancel()
        self._is_linked = True
        self._present()
        self.serial += 1
        self._delay_s = FIRST_DELAY_S
        self.send(self._make_hello(self._sock.getsockname()[0]))

    def _write(self, line: bytes) -> None:
        self._unsent += line
        if len(self._unsent) > FULL_BYTES:
            self._lose(OSError(errno.ENOBUFS, "the controller reads nothing"))
            return
        try:
            self._flush()
        except OSError as error:
            self._lose(error)

    def _flush(self) -> None:
        assert self._sock is not None
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent, socket.MSG_NOSIGNAL)]
        except BlockingIOError:
            pass
        self._loop.modify(self._sock.fileno(), select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0))

    def _too_slow(self) -> None:
        self._lose(TimeoutError(errno.ETIMEDOUT, "it did not answer in time"))

    def _lose(self, error: BaseException) -> None:
        was_linked = self._is_linked
        self._drop()
        if isinstance(error, RecordError):  # once there is another way, all is well: no reason to give up
            self._complain(str(error))
        elif isinstance(error, ProtocolError):
            self._complain(str(error))
            self._give_up_in_time(str(error), 0.0 if isinstance(error, TokenError) else REFUSED_S)
        else:
            self._refused_since = None
            if was_linked:
                self._on_refused = None  # it was let in
            logger.debug("the controller at %s is lost: %s", show(*self._address), error)
            self._absent(error)
        if not self._closed and self._redial is None:
            self._redial = self._loop.call_later(self._delay_s, self.dial)
            self._delay_s = min(2 * self._delay_s, LONGEST_DELAY_S)

    def _absent(self, error: BaseException) -> None:
        """Tell, once: at once at first, as an address may be wrong, later when it has been away for a while."""
        now = time.monotonic()
        if self._absent_since is None:
            self._absent_since = now
        if not self.tells_absence or self._closed or self._was_absence_told:
            return
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if not self.serial:
            text = "there is no controller at %s: %s. It is looked for until it is there, or this host is stopped."
        elif now - self._absent_since >= MISSED_S:
            text = (
                "the controller at %s is away: %s. What runs here goes on; it is looked for until this host is stopped."
            )
        else:
            return
        self._was_absence_told = True
        logger.warning(text, show(*self._address), reason)

    def _present(self) -> None:
        if self._was_absence_told:
            logger.warning("the controller at %s is there", show(*self._address))
        self._absent_since, self._was_absence_told = None, False

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:  # it will be tried again and again
            self._complaint = reason
            logger.warning("the controller at %s is not to be talked to: %s", show(*self._address), reason)

    def _give_up_in_time(self, reason: str, patience_s: float) -> None:
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        if self._on_refused is not None and not self._closed and now - self._refused_since >= patience_s:
            self.close()
            self._on_refused(reason)

    def _drop(self) -> None:
        self._is_linked = self._is_connecting = False
        if self._limit is not None:
            self._limit.cancel()
        if self._sock is not None:
            self._loop.unregister(self._sock.fileno())
            with suppress(OSError):
                self._sock.close()
            self._sock = None
