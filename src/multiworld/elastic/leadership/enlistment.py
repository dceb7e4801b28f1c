"""Report for duty with another agent: call it, follow where it sends us, and wait for its welcome."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ...errors import HandshakeError
from ...wire.endpoints.dialer import DialError
from ...wire.progress.operation import Operation
from ...wire.progress.thread import ProgressThread
from ...world.links.link import Link
from ...world.links.peers import PeerInfo
from .links import CALL_S, AgentLinks
from .meeting import Call
from .messages import AgentMessage, Attach, Redirect, Refuse, Welcome

logger = logging.getLogger(__name__)

WELCOME_S = 3.0  # an agent that was called may still have to notice that the coordinator is gone
MAX_HOPS = 8
CLOSED = (0, errno.ECONNRESET, errno.EPIPE)  # by somebody to whom we had come


Answer = Welcome | Redirect | Refuse


class Enlisted(NamedTuple):
    """The coordinator, ``peer``, takes us."""

    link: Link
    peer: PeerInfo
    welcome: Welcome


class Enlistment:
    """One attempt at a time; progress thread only. ``introduction`` returns what the other agent is told about us."""

    def __init__(self, loop: ProgressThread, links: AgentLinks, introduction: Callable[[], Attach]) -> None:
        self._loop, self._links, self._introduction = loop, links, introduction
        self._answer: Operation[Answer] | None = None
        self.link: Link | None = None
        """To the agent whose answer we wait for."""

    async def attempt(self, host: str, port: int, *, is_known: bool = False) -> Call | Enlisted:
        """Call an agent, and whoever it sends us to. A step coroutine.

        Raises HandshakeError if it refuses us for good. ``is_known``: it was an agent of this job, so that whoever
        is there now and does not take us for one is another.
        """
        for hop in range(MAX_HOPS):
            try:
                link = await self._links.call(host, port, CALL_S)
            except DialError as error:
                logger.debug("no agent at %s:%d: %s", host, port, error)
                return _meaning(error, is_hop=hop > 0)
            except HandshakeError:
                if is_known:
                    return Call.DEAD
                raise
            answer: Answer | None = None
            try:
                answer = await self._introduce(link)
            finally:
                if not isinstance(answer, Welcome):
                    self._links.drop(link)
            if answer is None:
                return Call.UNKNOWN
            if isinstance(answer, Welcome):
                return Enlisted(link, PeerInfo.from_json(answer.peer.encode()), answer)
            if isinstance(answer, Refuse):
                raise HandshakeError(answer.reason)
            host, port = answer.host, answer.port
        return Call.UNKNOWN

    def heard(self, link: Link, message: AgentMessage) -> bool:
        """Take what another agent says; False: it is no answer to us. Raises ProtocolError: it cannot be one."""
        if link is not self.link or self._answer is None or not isinstance(message, Answer):
            return False
        if isinstance(message, Welcome):
            PeerInfo.from_json(message.peer.encode())
        self._answer.succeed(message)
        return True

    def lost(self, link: Link, detail: str) -> bool:
        """A link has ended; False: it was not that of our call."""
        if link is not self.link or self._answer is None:
            return False
        self._answer.fail(DialError(link.peer.host, link.peer.port, detail))
        return True

    async def _introduce(self, link: Link) -> Answer | None:
        """Say who we are; returns the answer, or None if there is none in time."""
        self._answer = answer = Operation[Answer]()
        self.link = link
        self._links.tell(link, self._introduction())
        timer = self._loop.call_later(WELCOME_S, partial(_give_up, answer, link))
        try:
            return await answer
        except DialError:
            return None
        finally:
            timer.cancel()
            self._answer = self.link = None


def _meaning(error: DialError, *, is_hop: bool) -> Call:
    """Say what it means that an agent was not reached; if another has sent us there, not much."""
    if is_hop:
        return Call.UNKNOWN
    if error.is_refused:
        return Call.DEAD
    if error.is_silent:
        return Call.SILENT
    if error.errno == errno.EPROTO:
        return Call.STRANGE
    return Call.CLOSED if error.errno in CLOSED else Call.UNKNOWN


def _give_up(answer: Operation[Answer], link: Link) -> None:
    answer.fail(DialError(link.peer.host, link.peer.port, "no answer in time"))
