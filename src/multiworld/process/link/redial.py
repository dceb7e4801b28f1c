"""The dialing end of a control link that comes back: dialed again after each loss, with a back-off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from ...errors import MultiworldError
from ...wire.backoff import BackOff
from ...wire.connection.connection import Connection
from ...wire.endpoints.dialer import dial
from ...wire.endpoints.handshake import DialerHello
from ...wire.messages import MessageSet, message, sparse
from ...wire.progress.operation import Operation
from ...wire.progress.thread import ProgressThread, Timer
from .control_link import Call, ControlLink, LinkLostError

DIAL_S: Final = 5.0

Said = TypeVar("Said")
Heard = TypeVar("Heard")


@message("hello")
@sparse
@dataclass(frozen=True, kw_only=True)
class ControlHello(DialerHello):
    """Wants a control link. ``generation`` counts the dialer's."""

    generation: int = 0


class RedialedLink(Generic[Said, Heard]):
    """On the loop's thread only. ``dial`` once; from then on there is one link or the next one is on its way.

    Each connection has a ``generation``, which its HELLO tells: the acceptor keeps the latest. Calls and answers
    belong to the connection over which they came, so nothing of an earlier one can be taken for the present one's.
    """

    def __init__(
        self,
        loop: ProgressThread,
        address: tuple[str, int],
        token: str,
        purpose: str,
        says: MessageSet[Said],
        hears: MessageSet[Heard],
        back_off: BackOff,
        *,
        on_up: Callable[[ControlLink[Said, Heard]], None],
        on_message: Callable[[Heard, Call], None],
        on_down: Callable[[MultiworldError], None],
    ) -> None:
        """``on_down`` gets why a link was lost (LinkLostError), or none came up (what ``dial`` fails with)."""
        self.generation = 0
        self.link: ControlLink[Said, Heard] | None = None
        """The one that is up."""
        self._loop, self._address, self._token, self._purpose = loop, address, token, purpose
        self._says, self._hears, self._back_off = says, hears, back_off
        self._on_up, self._on_message, self._on_down = on_up, on_message, on_down
        self._dialing: Operation[Connection] | None = None
        self._redial: Timer | None = None
        self._closed = False

    def dial(self) -> None:
        """Connect now; from then on it is done again after each loss."""
        self._redial = None
        if self._closed:
            return
        self.generation += 1
        link: ControlLink[Said, Heard] = ControlLink(
            self._says, self._hears, on_message=self._on_message, on_lost=partial(self._down, self.generation)
        )
        hello = ControlHello(purpose=self._purpose, generation=self.generation)
        self._dialing = dial(self._loop, *self._address, hello, self._token.encode(), link, timeout_s=DIAL_S)
        self._dialing.add_callback(partial(self._dialed, self.generation, link))

    def tell(self, message: Said) -> bool:
        """Say something; dropped, and False, while there is no link."""
        return self.link is not None and self.link.tell(message)

    def drop(self, error: MultiworldError) -> None:
        """Give the present link up for that reason, and dial again."""
        if self.link is not None:
            link = self.link
            self._down(self.generation, error)
            link.abort()

    def close(self) -> None:
        """Dial no more, and close. Idempotent."""
        self._closed = True
        if self._redial is not None:
            self._redial.cancel()
        if self._dialing is not None:
            self._dialing.cancel(LinkLostError("closed here"))
        if self.link is not None:
            link, self.link = self.link, None
            link.abort()

    def _dialed(self, generation: int, link: ControlLink[Said, Heard], dialing: Operation[Connection]) -> None:
        self._dialing = None
        if dialing.error is None and not link.is_lost:
            self.link = link
            self._back_off.reset()
            self._on_up(link)
        elif isinstance(dialing.error, MultiworldError):  # else it was up for a moment, and its loss was told
            self._down(generation, dialing.error)

    def _down(self, generation: int, error: MultiworldError) -> None:
        if self._closed or generation != self.generation or self._redial is not None:
            return
        self.link = None
        self._redial = self._loop.call_later(self._back_off.next_s(), self.dial)
        self._on_down(error)
