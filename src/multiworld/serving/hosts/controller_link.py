"""A host process's link to its controller: dialed again and again for as long as the process lives.

Only a host that the controller has never let in, and refuses for long, gives up: its name or token is wrong. One whose
controller is elsewhere says when that is not there.
"""

from __future__ import annotations

import errno
import logging
import random
import time
from collections.abc import Callable
from functools import partial

from ...errors import HandshakeError, MultiworldError, ProtocolError, TokenError
from ...process.link import Call, ControlLink, LinkLostError, RedialedLink
from ...wire.backoff import BackOff
from ...wire.endpoints.addresses import show
from ...wire.endpoints.dialer import DialError
from ...wire.progress.thread import ProgressThread
from .messages import HOST_EVENTS, HOST_ORDERS, Hello, HostEvent, HostOrder, Refused

logger = logging.getLogger(__name__)

FIRST_DELAY_S, LONGEST_DELAY_S = 0.05, 1.0
MISSED_S = 5.0  # a controller that ends is started again before
REFUSED_S = 30.0  # a predecessor of the same name may take that long to end, or to be found lost


class ControllerLink:
    """``hello`` is asked for at each connection; ``on_order`` gets what the controller says on it.

    What is told while there is no connection is dropped: the next hello tells how things are then.
    """

    def __init__(
        self,
        loop: ProgressThread,
        address: tuple[str, int],
        token: str,
        *,
        hello: Callable[[str], Hello],
        on_order: Callable[[HostOrder, Call], None],
        on_refused: Callable[[str], None] | None = None,
        on_outdated: Callable[[], None] = lambda: None,
        when_settled: Callable[[Callable[[], None]], None] = lambda callback: callback(),
    ) -> None:
        """``hello`` gets this host's own address, as the connection shows it, when ``when_settled`` calls back.

        ``on_refused``, of a host whose controller is elsewhere, gets the reason, at the end; once let in, there is
        none. ``on_outdated`` is called when what the host runs belongs to a deployment that is no more.
        """
        self._where = show(*address)
        self._make_hello, self._when_settled = hello, when_settled
        self._on_order, self._on_refused = on_order, on_refused
        self._on_outdated = on_outdated
        self.tells_absence = on_refused is not None
        """Whether people are told when the controller is not there."""
        self._absent_since: float | None = None
        self._was_absence_told = False
        self._was_up = False
        self._introduced: ControlLink[HostEvent, HostOrder] | None = None  # the link on which the hello was said
        self._complaint = ""
        self._refused_since: float | None = None
        self._redialed: RedialedLink[HostEvent, HostOrder] = RedialedLink(
            loop,
            address,
            token,
            "host",
            HOST_EVENTS,
            HOST_ORDERS,
            BackOff(FIRST_DELAY_S, LONGEST_DELAY_S, random=random.random),  # hosts come back to one controller
            on_up=self._up,
            on_message=self._take,
            on_down=self._down,
        )
        self.dial = self._redialed.dial
        self.close = self._redialed.close

    def tell(self, event: HostEvent) -> None:
        if self.is_up:
            self._redialed.tell(event)

    @property
    def is_up(self) -> bool:
        """Whether the controller hears what is said now."""
        return self._redialed.link is not None and self._redialed.link is self._introduced

    @property
    def owes(self) -> bool:
        """Whether something said was not sent yet."""
        return self._redialed.link is not None and self._redialed.link.owes

    def _up(self, link: ControlLink[HostEvent, HostOrder]) -> None:
        if self._was_absence_told:
            logger.warning("the controller at %s is there", self._where)
        self._absent_since, self._was_absence_told, self._was_up = None, False, True
        self._when_settled(partial(self._introduce, link))

    def _introduce(self, link: ControlLink[HostEvent, HostOrder]) -> None:
        if self._redialed.link is link:  # else it was lost meanwhile
            self._introduced = link
            link.tell(self._make_hello(link.connection.sock.getsockname()[0]))

    def _take(self, order: HostOrder, call: Call) -> None:
        if isinstance(order, Refused):
            if order.outdated:
                self._on_outdated()
            self._redialed.drop(HandshakeError(order.reason))
        else:
            self._on_refused = None  # it was let in
            self._on_order(order, call)

    def _down(self, error: MultiworldError) -> None:
        if isinstance(error, LinkLostError) and error.is_forged:  # once there is another way, all is well
            self._complain(error.reason)
        elif isinstance(error, ProtocolError) or (isinstance(error, DialError) and error.errno == errno.EPROTO):
            self._complain(error.reason)
            self._give_up_in_time(error.reason, 0.0 if isinstance(error, TokenError) else REFUSED_S)
        else:
            self._refused_since = None
            if isinstance(error, LinkLostError):
                self._on_refused = None  # it was let in
            reason = error.reason if isinstance(error, LinkLostError | DialError) else str(error)
            logger.debug("the controller at %s is lost: %s", self._where, reason)
            self._absent(reason)

    def _absent(self, reason: str) -> None:
        """Tell, once: at once at first, as an address may be wrong, later when it has been away for a while."""
        now = time.monotonic()
        if self._absent_since is None:
            self._absent_since = now
        if not self.tells_absence or self._was_absence_told:
            return
        if not self._was_up:
            text = "there is no controller at %s: %s. It is looked for until it is there, or this host is stopped."
        elif now - self._absent_since >= MISSED_S:
            text = (
                "the controller at %s is away: %s. What runs here goes on; it is looked for until this host is stopped."
            )
        else:
            return
        self._was_absence_told = True
        logger.warning(text, self._where, reason)

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:  # it will be tried again and again
            self._complaint = reason
            logger.warning("the controller at %s is not to be talked to: %s", self._where, reason)

    def _give_up_in_time(self, reason: str, patience_s: float) -> None:
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        if self._on_refused is not None and now - self._refused_since >= patience_s:
            self.close()
            self._on_refused(reason)
