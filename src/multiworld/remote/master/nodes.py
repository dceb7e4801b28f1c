"""All nodes of a master: ``with remote.connect() as nodes``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from ...world.manager import WorldManager
from ...world.subscription import Broadcaster, Subscription
from ..between.worlds import Between
from ..errors import ConnectError, ConnectionEndedError, RemoteError
from ..events import NodeEvent, NodeJoined, NodeLost
from ..protocol.messages import Drop
from ..session import open_connections
from ..session.session import Session
from ..session.statistics import NodesStatistics
from ..session.sync_points import SyncPoints
from .ending import Ending, is_failure, report_unseen
from .node import Node
from .roster import NodePlace, Roster
from .settling import settle_all

START_S: Final = 60.0
LEAVE_S: Final = 1.0
DROP_S: Final = 0.1
CLOSED: Final = "nodes.close() was called"
FORKED: Final = "this process was forked: the connection remains its parent's"


class Nodes(Mapping[int, Node]):
    """The nodes by number. A context manager: at its end it waits for what was issued, and raises what nobody saw.

    After an interrupt nothing is waited for: the nodes drop what they have not begun. Without ``with`` the same happens
    when the program ends: what nobody saw is printed then, and the exit status is 1.
    """

    def __init__(
        self,
        places: Iterable[NodePlace],
        manager: WorldManager,
        bulk_manager: WorldManager,
        *,
        backend: str = "auto",
        num_threads: int = 0,
        beside: NodePlace | None = None,
        prepare: Callable[[int], None] = lambda number: None,
        release: Callable[[bool], None] = lambda drop: None,
        launchers_store: Callable[[], str | None] = lambda: None,
    ) -> None:
        """``beside``: a node that is started at its first use. ``prepare`` may start the process of a node.

        ``launchers_store``: where a node meets others if the launcher did not start it, and did start them.

        ``release`` is called last, with whether the nodes drop what they have not begun.
        """
        places = tuple(places)
        self._nodes = {place.number: Node(place.number) for place in places}
        self._beside, self._beside_lock = beside, threading.Lock()
        self._sessions: list[Session] = []
        self._between = Between(backend, launchers_store)
        self._stores = {place.number: place.store for place in (*places, *([beside] if beside else []))}
        self._managers = (manager, bulk_manager)
        self._release = release
        self._lost_at_end: list[RemoteError] = []
        self._is_open, self._has_ended, self._pid = True, False, os.getpid()
        self._broadcaster: Broadcaster[NodeEvent] = Broadcaster()
        self._covering: list[open_connections.Covering] = []
        self.sync_points = SyncPoints()
        self._roster = Roster(
            manager,
            bulk_manager,
            backend=backend,
            num_threads=num_threads,
            sync_points=self.sync_points,
            on_session=self._take,
            on_lost=self._lost,
            on_refused=lambda number, reason: self._nodes[number].refuse(reason),
            prepare=prepare,
        )
        for place in places:
            self._roster.add(place)
        self._ending = Ending(self._close_at_exit, self._forked)
        open_connections.opened(self)

    def __getitem__(self, number: int) -> Node:
        node = self._nodes.get(number)
        if node is not None:
            return node
        if self._beside is not None and number == self._beside.number:
            return self._start_beside(self._beside)
        known = ", ".join(str(each) for each in (*([self._beside.number] if self._beside else []), *self._nodes))
        hint = '. "remote" without a number is node 0: write "remote:1" for node 1' if number == 0 else ""
        raise ConnectError(f"there is no node {number}: the nodes are {known or 'none'}{hint}")

    def __contains__(self, number: object) -> bool:
        return number in self._nodes or (self._beside is not None and number == self._beside.number)

    def __iter__(self) -> Iterator[int]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"<Nodes {list(self._nodes.values())}>"

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """A block that ends with an error tells nodes of the launcher nothing: a master that is started again needs
        them. It is as if this process had been killed.
        """
        unseen = self._close(
            drop=kind is not None and issubclass(kind, KeyboardInterrupt), failed=is_failure(error), strict=True
        )
        if kind is None and unseen:
            raise unseen[0]
        report_unseen(unseen)  # beside the error that ends the block, which may follow from them

    @property
    def is_open(self) -> bool:
        """Whether ``close`` was not called, and this is the process that made the connection."""
        return self._is_open

    @property
    def has_ended(self) -> bool:
        """Whether all that was issued is settled or dropped, and the nodes are being released."""
        return self._has_ended

    def wait_alive(self, timeout_s: float | None = None) -> None:
        """Wait until all nodes are there. Raises ConnectError, TimeoutError."""
        for node in self._nodes.values():
            node.wait_alive(timeout_s)

    def synchronize(self) -> None:
        """Wait until all that was issued is executed. Raises NodeDeadError."""
        for node in self._nodes.values():
            node.synchronize()

    @property
    def numbers(self) -> list[int]:
        return list(self._nodes)

    def session_of(self, number: int) -> Session:
        """Return the present session of a node. Raises ConnectError, NodeDeadError."""
        return self[number].session()

    def alive_sessions(self) -> list[Session]:
        return [node.session() for node in self._nodes.values() if node.takes_commands]

    def keep_recoverable(self, covering: open_connections.Covering) -> None:
        """Tell it of new sessions, and close it at the end."""
        self._covering.append(covering)

    def manual_seed(self, seed: int) -> None:
        """Seed the generators of all nodes that are alive."""
        for node in self._nodes.values():
            if node.takes_commands:
                node.manual_seed(seed)

    def events(self) -> Subscription[NodeEvent]:
        """Return an async iterator over NodeJoined and NodeLost from now on; it ends when the connection ends."""
        return self._broadcaster.subscribe()

    @property
    def statistics(self) -> NodesStatistics:
        """What this master has issued, sent and waited for, and what each node holds: it asks them, for 1 s at most."""
        return NodesStatistics.of(self._sessions, self.sync_points)

    def close(self, *, timeout_s: float | None = None, drop: bool = False) -> list[RemoteError]:
        """End the connection, and return the errors that nobody saw. Idempotent.

        It waits for what was issued, as long as the node that executes it is there, but no longer than ``timeout_s``: a
        node that is not done then is taken for lost, with what it has not executed. After some seconds the log says
        which node it waits for, and for which line. ``drop``: do not wait; the nodes
        execute nothing more. An interrupt while it waits has the same effect, and goes on to the caller.
        """
        return self._close(timeout_s=timeout_s, drop=drop)

    def abandon(self) -> None:
        """End the connection as by an error: nodes of the launcher wait for the next master."""
        self._close(drop=True, failed=True)

    def _close_at_exit(self, *, drop: bool, failed: bool) -> list[RemoteError]:
        return self._close(drop=drop, failed=failed, strict=True)

    def _close(
        self, *, timeout_s: float | None = None, drop: bool = False, failed: bool = False, strict: bool = False
    ) -> list[RemoteError]:
        """``failed``: by an error of the program. ``strict``: what nobody saw becomes one."""
        if not self._is_open or os.getpid() != self._pid:
            return []
        self._is_open = False
        open_connections.closed(self)
        self._ending.cancel()
        try:
            if not drop:
                self._lost_at_end += settle_all(self._sessions.copy(), timeout_s)
        except KeyboardInterrupt:
            drop = failed = True
            raise
        finally:
            kill = drop or (timeout_s is not None and bool(self._lost_at_end))
            unseen = self._end(drop=drop, kill=kill, failed=failed, strict=strict)
        return unseen

    def _start_beside(self, place: NodePlace) -> Node:
        """Start the node beside the master, and wait until it is there."""
        if not self._is_open:
            raise ConnectionEndedError(CLOSED if os.getpid() == self._pid else FORKED)
        with self._beside_lock:
            if place.number not in self._nodes:
                self._nodes[place.number] = Node(place.number)
                self._roster.add(place)
        node = self._nodes[place.number]
        node.wait_alive(START_S)
        return node

    def _end(self, *, drop: bool, kill: bool, failed: bool, strict: bool) -> list[RemoteError]:
        """``kill``: processes of nodes that this one has started are not waited for."""
        self._has_ended = True
        unseen = [*self._lost_at_end, *(error for session in self._sessions for error in session.unseen_errors())]
        is_done = not failed and not (strict and unseen)
        for session in self._sessions:
            is_there = not session.is_over
            if is_there and drop:
                session.tell(Drop())
            session.end(CLOSED)  # first: a node that hears that all is done leaves at once, and is not lost
            if is_there and is_done:
                session.say_end()
        for node in list(self._nodes.values()):
            node.refuse(CLOSED)
        self._roster.close()
        for manager in self._managers:
            manager.close(DROP_S if drop else LEAVE_S)
        for each in self._covering:
            each.close()
        self._release(kill)
        self._broadcaster.close()
        return unseen

    def _take(self, session: Session) -> None:
        if session not in self._sessions:  # else it was made anew
            self._sessions.append(session)
            self._between.add(session, self._stores[session.number])
        self._nodes[session.number].take(session)
        for each in list(self._covering):
            each.cover(session)
        hello = session.hello
        assert hello is not None
        self._broadcaster.publish(
            NodeJoined(node=session.number, generation=session.generation, pid=hello.pid, host=hello.host)
        )

    def _lost(self, session: Session) -> None:
        self._between.lost(session)
        reason = session.dead or session.away
        if reason is not None:
            lost = session.first_unconfirmed()
            self._broadcaster.publish(
                NodeLost(node=session.number, generation=session.generation, reason=reason, first_lost=lost)
            )

    def _forked(self) -> None:
        """In a forked child, where no lock is safe to take."""
        self._is_open = False
        for session in self._sessions:
            session.forked(FORKED)
