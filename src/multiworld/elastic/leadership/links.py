"""The links between the agents of a job: calls in and out, messages, and who is lost."""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Protocol

from ...errors import HandshakeError, MessageError, ProtocolError
from ...wire.connection.frames import Kind, pack_frame
from ...wire.endpoints.dialer import DialError, dial
from ...wire.endpoints.listener import Listener, Pending, Route
from ...wire.progress.operation import Operation
from ...wire.progress.thread import ProgressThread
from ...wire.progress.waiting import pause
from ...world.detector import Detector
from ...world.links.link import Link, accept_link
from ...world.links.messages import Goodbye, LinkHello
from ...world.links.peers import PeerInfo
from ...world.liveness import Cause, LivenessPolicy, Lost
from ..agent.shared_port import SharedPort
from ..rendezvous.base import Address
from .messages import AGENT_MESSAGES, AgentMessage, Refuse

logger = logging.getLogger(__name__)

PURPOSE = "agent"
CALL_S = 1.0
RETRY_S = 0.05


class AgentLinksOwner(Protocol):
    """Who decides about links; called on the progress thread."""

    def agent_said(self, link: Link, message: AgentMessage) -> None:
        """The end that opened a link says first what it wants. Raises ProtocolError for what makes no sense."""

    def agent_link_lost(self, link: Link, cause: Cause, detail: str) -> None:
        """``Cause.DIED`` and ``Cause.LEFT`` are certain; after the others the agent may still be alive."""


class AgentLinks:
    """This agent's listeners and links. Progress thread only."""

    def __init__(
        self,
        loop: ProgressThread,
        owner: AgentLinksOwner,
        policy: LivenessPolicy,
        token: bytes,
        job: str,
        agent_id: str,
    ) -> None:
        self._loop, self._owner, self._policy, self._token, self._job = loop, owner, policy, token, job
        self._agent_id = agent_id
        self._listeners: list[Listener] = []
        self._links: set[Link] = set()
        self._detector = Detector(
            loop, policy, token, agent_id, on_lost=self._lost, on_suspected=lambda link, silent_s: None
        )
        self.me: PeerInfo | None = None
        """How others find this agent: its first listener."""
        self.addresses: set[Address] = set()
        """Where this agent listens."""
        self.heartbeat_s = policy.heartbeat_s
        self.door: SharedPort | None = None
        """Where workers of plain programs may come, too."""
        self._doors: list[SharedPort] = []
        self._packed: tuple[AgentMessage | None, bytes] = (None, b"")  # the last message
        self.routes: dict[str, Route] = {PURPOSE: self._called}
        """Who decides on callers, by what they call for; for listeners that are opened from now on."""

    def listen(self, host: str, port: int) -> int:
        """Listen there, too; returns the port. Raises OSError."""
        listener = Listener(self._loop, host, port, self._token, self.routes)
        self._listeners.append(listener)
        self.addresses.add(Address(host, listener.port))
        if self.me is None:
            self.me = PeerInfo.of_this_process(self._agent_id, host, listener.port)
        return listener.port

    def open_door(self, host: str, port: int) -> None:
        """Listen there for agents, and for the workers of plain programs. Raises OSError."""
        door = SharedPort(self._loop, host, port, self._listeners[0].admit)
        if self.door is None:
            self.door = door
        self._doors.append(door)
        self.addresses.add(Address(host, door.port))

    def call(self, host: str, port: int, timeout_s: float) -> Operation[Link]:
        """Open a link to the agent that listens there. Fails with DialError or HandshakeError.

        The agent at the other end is known once it has introduced itself: ``link.peer`` is a stand-in until then.
        """
        assert self.me is not None
        stranger = PeerInfo(id="", host=host, port=port, pid=0, start_time=0, host_id="", hostname=host)
        link = Link(self, stranger, heartbeat_s=self._policy.heartbeat_s)
        linked: Operation[Link] = Operation()
        hello = LinkHello(
            purpose=PURPOSE, job=self._job, peer=self.me.to_json().decode(), heartbeat_s=self._policy.heartbeat_s
        )
        source = self.me.host if self.me.host == host else None
        dialing = dial(self._loop, host, port, hello, self._token, link, timeout_s=timeout_s, source=source)

        def settle() -> None:
            if dialing.error is not None:
                linked.fail(dialing.error)
                return
            try:
                link.attach(dialing.result(), unreachable_s=self._policy.unreachable_s)
            except OSError as error:  # lost behind its last word
                linked.fail(DialError(host, port, str(error), error.errno or 0))
                return
            self._links.add(link)
            if not linked.succeed(link):  # given up meanwhile
                self.drop(link)

        dialing.add_callback(lambda _: self._loop.call_soon(settle))
        return linked

    async def is_dead(self, host: str, port: int) -> bool:
        """Whether no agent of this job is at that address any more, for certain. A step coroutine."""
        deadline = time.monotonic() + CALL_S
        while True:
            try:
                link = await self.call(host, port, CALL_S)
            except DialError as error:
                if error.is_refused or time.monotonic() > deadline:
                    return error.is_refused
                await pause(self._loop, RETRY_S)  # a dying process may close its links before its listener
            except HandshakeError:  # somebody else's by now
                return True
            else:
                self.drop(link)
                return False

    def introduce(self, link: Link, peer: PeerInfo, heartbeat_s: float) -> None:
        """The agent that we called has said who it is: watch it from now on."""
        link.peer, link.heartbeat_s = peer, heartbeat_s
        self._detector.watch(link)

    def watch(self, link: Link) -> None:
        """The agent that called stays: watch it from now on."""
        self._detector.watch(link)

    def tell(self, link: Link, message: AgentMessage) -> None:
        """One message to many links is packed once: a roster of a thousand agents takes a while."""
        if message is not self._packed[0]:
            self._packed = (message, pack_frame(Kind.CONTROL, AGENT_MESSAGES.encode(message)))
        link.send(self._packed[1])

    def say_goodbye(self, link: Link) -> None:
        """End a link of our own accord."""
        self._detector.forget(link)
        self._links.discard(link)
        link.tell(Goodbye())
        link.finish()

    def drop(self, link: Link) -> None:
        """End a link at once, without a word."""
        self._detector.forget(link)
        self._links.discard(link)
        link.abort()

    def close(self) -> None:
        """Say goodbye to all, and close."""
        for link in list(self._links):
            self.say_goodbye(link)
        self.abort()

    def abort(self) -> None:
        """Close all, without a word: to others, this agent has died."""
        for listener in self._listeners:
            listener.close()
        for door in self._doors:
            door.close()
        for link in list(self._links):
            self.drop(link)
        self._detector.close()

    # ---- calls

    def _called(self, pending: Pending) -> None:
        hello = pending.hello(LinkHello)
        if hello.job != self._job:
            pending.refuse(
                f"this agent belongs to the job {self._job!r}, not to {hello.job!r}; "
                "give the agents of one job the same --rdzv-id, and those of another another endpoint"
            )
            return
        link = accept_link(self, pending, hello, unreachable_s=self._policy.unreachable_s)
        self._links.add(link)  # watched once it is known to be more than a call

    # ---- link owner

    def link_heard(self, link: Link) -> None:
        self._detector.heard(link)

    def link_said(self, link: Link, kind: int, body: bytes) -> None:
        if kind != Kind.CONTROL:
            raise ProtocolError(f"frame kind {kind} between agents")
        link.defer(partial(self._heard, link, body))

    def _heard(self, link: Link, body: bytes) -> None:
        if link not in self._links:
            return
        try:
            self._owner.agent_said(link, AGENT_MESSAGES.decode(body))
        except ProtocolError as error:  # of another release, or of somebody who errs: the next may be read
            logger.warning("what the agent at %s said is dropped: %s", link.peer, error)
            if isinstance(error, MessageError) and error.kind == "attach":
                self.tell(link, Refuse(reason=f"the agent's introduction cannot be read: {error}"))

    def link_lost(self, link: Link, reason: str, *, unreachable: bool) -> None:
        self._loop.call_soon(lambda: self._gone(link, reason, unreachable=unreachable))

    def _gone(self, link: Link, reason: str, *, unreachable: bool) -> None:
        if link not in self._links:
            return
        if link.peer.id:
            self._detector.gone(link, reason, unreachable=unreachable, left=link.said_goodbye)
        if link in self._links:  # not introduced yet, so nobody watches it
            self._forget(link, Cause.UNREACHABLE if unreachable else Cause.DIED, reason)

    def _lost(self, link: Link, lost: Lost[str]) -> None:
        self._forget(link, lost.cause, lost.detail)

    def _forget(self, link: Link, cause: Cause, detail: str) -> None:
        if link in self._links:
            self._links.discard(link)
            link.abort()
            self._owner.agent_link_lost(link, cause, detail)
