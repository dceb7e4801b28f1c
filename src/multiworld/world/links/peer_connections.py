"""Connect this process with its peers: one link each, and one data connection per world where a channel asks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...errors import MultiworldError
from ...wire.connection.connection import Connection
from ...wire.connection.sink import ConnectionSink
from ...wire.endpoints.addresses import local_name
from ...wire.endpoints.dialer import dial
from ...wire.endpoints.handshake import DialerHello, Voucher
from ...wire.endpoints.listener import Listener, Pending, Route
from ...wire.endpoints.token import warn_of_no_token
from ...wire.messages import message, sparse
from ...wire.progress.operation import Operation
from ...wire.progress.thread import ProgressThread, Timer
from ..liveness import LivenessPolicy
from .link import Link, LinkOwner, accept_link
from .messages import LinkHello, LinkMessage
from .peers import PeerInfo

logger = logging.getLogger(__name__)

PARKED_S = 30.0
MAX_PARKED = 4096
LINK, DATA = "link", "data"
ONE_SIDED = "of the two ends of that data connection only one authenticates what goes over it"


@message("hello")
@sparse
@dataclass(frozen=True, kw_only=True)
class DataHello(DialerHello):
    """Wants the data connection of ``rank`` in a world: the id of one generation."""

    job: str
    world: str
    rank: int
    authenticated: bool | None = None


class LinkError(MultiworldError):
    """A peer that was just there could not be linked; the join tries again."""


class PeerConnections:
    """The listeners, the links and the data connections that wait for each other.

    Progress thread, but for ``peer_info``.
    """

    def __init__(
        self,
        loop: ProgressThread,
        owner: LinkOwner,
        policy: LivenessPolicy,
        token: bytes,
        job: str,
        manager_id: str,
        *,
        on_link: Callable[[Link], None],
    ) -> None:
        self._loop, self._owner, self._policy, self._token, self._job = loop, owner, policy, token, job
        self._manager_id = manager_id
        self._on_link = on_link
        self._listeners: dict[str, Listener] = {}
        self._infos: dict[str, PeerInfo] = {}
        self.links: dict[str, Link] = {}
        self._awaited: dict[str, list[Operation[Link]]] = {}
        self._expected: dict[tuple[str, int], tuple[ConnectionSink, Operation[Connection], bool]] = {}
        self._parked: dict[tuple[str, int], tuple[Pending, DataHello, Timer]] = {}
        self._called: dict[str, set[int]] = {}  # by world: the ranks whose data connection was accepted or parked
        self._closed = False
        self.is_launched = False
        """By an agent, which has said what there is to say of a job without a token."""

    @property
    def has_token(self) -> bool:
        return bool(self._token)

    def listen(self, host: str) -> PeerInfo:
        """Listen on a local address, if not yet, and return how peers find us there; raises OSError."""
        if host not in self._listeners:
            if not self._token and not self.is_launched:
                warn_of_no_token(host)
            routes: dict[str, Route] = {LINK: self._link_called, DATA: self._data_called}
            listener = Listener(self._loop, host, 0, self._token, routes, self._key_of)
            self._listeners[host] = listener
            self._infos[host] = PeerInfo.of_this_process(self._manager_id, host, listener.port)
            self._listen_locally()
        return self._infos[host]

    def _listen_locally(self) -> None:
        name = local_name(self._manager_id)
        if name in self._listeners:
            return
        try:
            self._listeners[name] = Listener(self._loop, name, 0, self._token, {DATA: self._data_called}, self._key_of)
        except OSError as error:  # a sandbox without Unix sockets; then processes of this host meet as others do
            logger.warning("no Unix socket for the processes of this host, which makes them slower: %s", error)

    def ensure_link(self, peer: PeerInfo, via: PeerInfo, timeout_s: float) -> Operation[Link]:
        """Return the link to a peer, made now if need be: the smaller id dials, the other waits."""
        operation: Operation[Link] = Operation()
        link = self.links.get(peer.id)
        if link is not None and link.open:
            operation.succeed(link)
            return operation
        waiting = self._awaited.setdefault(peer.id, [])
        waiting.append(operation)
        if self._manager_id < peer.id and len(waiting) == 1:
            self._dial_link(peer, via, timeout_s)
        elif len(waiting) == 1:
            self._loop.call_later(timeout_s, lambda: self._give_up_link(peer, waiting))
        return operation

    def tell(self, peer: PeerInfo, message: LinkMessage) -> None:
        """Tell a peer: now, or when the link that is being made to it is there. Any thread."""
        link = self.links.get(peer.id)
        if link is not None and link.open:
            link.tell(message)
        else:
            self._loop.call_soon(partial(self._tell_later, peer, message))

    def _tell_later(self, peer: PeerInfo, message: LinkMessage) -> None:
        def tell(linked: Operation[Link]) -> None:
            if linked.error is None:
                linked.result().tell(message)

        link, waiting = self.links.get(peer.id), self._awaited.get(peer.id)
        if link is not None and link.open:
            link.tell(message)
        elif waiting:
            linked: Operation[Link] = Operation()
            linked.add_callback(tell)
            waiting.append(linked)

    def drop_link(self, link: Link) -> None:
        if self.links.get(link.peer.id) is link:
            del self.links[link.peer.id]

    def close(self) -> None:
        self._closed = True
        for listener in self._listeners.values():
            listener.close()
        for key in list(self._parked):
            self._take_parked(key)[0].connection.abort()
        for link in list(self.links.values()):
            link.abort()

    # ---- links

    def _dial_link(self, peer: PeerInfo, via: PeerInfo, timeout_s: float) -> None:
        link = Link(self._owner, peer, heartbeat_s=self._policy.heartbeat_s)
        hello = LinkHello(
            purpose=LINK, job=self._job, to=peer.id, peer=via.to_json().decode(), heartbeat_s=self._policy.heartbeat_s
        )
        dialing = dial(self._loop, peer.host, peer.port, hello, self._token, link, timeout_s=timeout_s, source=via.host)

        def finish(_: Operation[Connection]) -> None:
            self._loop.call_soon(settle)

        def settle() -> None:
            error = dialing.error
            if error is None and dialing.result().closed:  # it was lost right behind its last word
                error = LinkError(f"{peer} was lost at once")
            if error is not None:
                self._settle_links(peer.id, None, error)
                return
            link.attach(dialing.result(), unreachable_s=self._policy.unreachable_s)
            self._add_link(link)

        dialing.add_callback(finish)

    def _link_called(self, pending: Pending) -> None:
        hello = pending.hello(LinkHello)
        if hello.job != self._job:
            pending.refuse(f"this process belongs to job {self._job!r}, not to {hello.job!r}")
        elif hello.to != self._manager_id:
            pending.refuse("the process that had this address before is gone")
        else:
            self._add_link(accept_link(self._owner, pending, hello, unreachable_s=self._policy.unreachable_s))

    def _add_link(self, link: Link) -> None:
        if self._closed:
            link.abort()
            return
        old = self.links.get(link.peer.id)
        self.links[link.peer.id] = link
        if old is not None:
            self._owner.link_lost(old, "the peer opened a new link because it lost this one", unreachable=True)
            old.abort()
        self._on_link(link)
        self._settle_links(link.peer.id, link, None)

    def _key_of(self, peer_id: str) -> bytes:
        link = self.links.get(peer_id)
        return b"" if link is None else link.key

    def _settle_links(self, peer_id: str, link: Link | None, error: BaseException | None) -> None:
        for operation in self._awaited.pop(peer_id, []):
            if link is not None:
                operation.succeed(link)
            else:
                assert error is not None
                operation.fail(error)

    def _give_up_link(self, peer: PeerInfo, waiting: list[Operation[Link]]) -> None:
        if self._awaited.get(peer.id) is waiting:
            self._settle_links(peer.id, None, LinkError(f"{peer} did not call back"))

    # ---- data connections

    def dial_data(
        self,
        uid: str,
        rank: int,
        peer: PeerInfo,
        via: PeerInfo,
        sink: ConnectionSink,
        timeout_s: float,
        *,
        local: bool,
        authenticated: bool,
    ) -> Operation[Connection]:
        """Open a data connection of a world to a peer; ``rank`` is ours. Our link to that process vouches for us.

        ``authenticated``: and what goes over it, too.
        """
        key = self._key_of(peer.id)
        return dial(
            self._loop,
            local_name(peer.id) if local else peer.host,
            0 if local else peer.port,
            DataHello(purpose=DATA, job=self._job, world=uid, rank=rank, authenticated=authenticated),
            self._token,
            sink,
            timeout_s=timeout_s,
            source=None if local else via.host,
            voucher=Voucher(self._manager_id, key) if key else None,
            authenticated=authenticated,
        )

    def expect_data(self, uid: str, rank: int, sink: ConnectionSink, *, authenticated: bool) -> Operation[Connection]:
        """Wait for a peer's data connection, or take it if it came before we knew of the world."""
        operation: Operation[Connection] = Operation()
        key = (uid, rank)

        def expect() -> None:
            parked = self._take_parked(key) if key in self._parked else None
            if operation.done:
                return
            self._expected[key] = (sink, operation, authenticated)
            if parked is not None and not parked[0].is_lost:
                self._admit(*parked)

        self._loop.call_soon(expect)
        return operation

    def forget_world(self, uid: str, error: Exception) -> None:
        """The world is gone here: refuse its data connections."""
        self._called.pop(uid, None)
        for key in [key for key in self._expected if key[0] == uid]:
            _, operation, _ = self._expected.pop(key)
            operation.fail(error)
        for key in [key for key in self._parked if key[0] == uid]:
            self._take_parked(key)[0].refuse("this generation of the world is over")

    def _data_called(self, pending: Pending) -> None:
        hello = pending.hello(DataHello)
        uid, rank = key = hello.world, hello.rank
        if rank in self._called.get(uid, ()):  # each calls once; somebody may have recorded how
            pending.refuse("that rank of that world has called already")
            return
        known = key in self._expected
        if not known and len(self._parked) >= MAX_PARKED:
            pending.refuse("too many connections for unknown worlds")
            return
        self._called.setdefault(uid, set()).add(rank)
        if known:
            self._admit(pending, hello)
        else:
            self._parked[key] = pending, hello, self._loop.call_later(PARKED_S, lambda: self._unpark(key))

    def _admit(self, pending: Pending, hello: DataHello) -> None:
        sink, operation, authenticated = self._expected.pop((hello.world, hello.rank))
        if operation.done:
            pending.refuse("this generation of the world is over")
            return
        if hello.authenticated is not authenticated:
            operation.fail(LinkError(f"the data connection of rank {hello.rank} was refused: {ONE_SIDED}"))
            pending.refuse(ONE_SIDED)
            return
        pending.accept(sink, authenticated=authenticated)  # before anybody can send on it
        if not operation.succeed(pending.connection):
            pending.connection.abort("this generation of the world is over")

    def _unpark(self, key: tuple[str, int]) -> None:
        if key not in self._parked:  # taken while this was on its way
            return
        pending, _ = self._take_parked(key)
        self._called[key[0]].discard(key[1])
        if not self._called[key[0]]:
            del self._called[key[0]]
        pending.refuse(f"nobody here joined that world within {PARKED_S:.0f} s")

    def _take_parked(self, key: tuple[str, int]) -> tuple[Pending, DataHello]:
        """Take it out, with its timer, which would keep the connection and its world until then."""
        pending, hello, timer = self._parked.pop(key)
        timer.cancel()
        return pending, hello


class WorldConnector:
    """The ``channel.base.Connector`` of one world and generation."""

    def __init__(
        self,
        connections: PeerConnections,
        uid: str,
        rank: int,
        via: PeerInfo,
        members: list[PeerInfo],
        *,
        authenticated: bool,
    ) -> None:
        """``authenticated``: what goes over the connections, too, and not only who they lead to."""
        self._connections, self._via, self._members = connections, via, members
        self._uid, self._rank, self._authenticated = uid, rank, authenticated

    def shares_host(self, rank: int) -> bool:
        return self._members[rank].host_id == self._via.host_id

    def dial(self, rank: int, sink: ConnectionSink, *, timeout_s: float, local: bool = False) -> Operation[Connection]:
        peer = self._members[rank]
        return self._connections.dial_data(
            self._uid, self._rank, peer, self._via, sink, timeout_s, local=local, authenticated=self._authenticated
        )

    def expect(self, rank: int, sink: ConnectionSink) -> Operation[Connection]:
        return self._connections.expect_data(self._uid, rank, sink, authenticated=self._authenticated)
