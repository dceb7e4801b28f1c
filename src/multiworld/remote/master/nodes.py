"""All nodes of a master: ``with remote.connect() as nodes``."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import MultiworldError
from ...world.manager import WorldManager
from ..errors import ConnectError, RemoteError
from ..protocol.messages import Drop
from ..session.session import Session
from ..session.statistics import NodesStatistics
from ..session.sync_points import SyncPoints
from .node import Node
from .roster import NodePlace, Roster

logger = logging.getLogger(__name__)

END_S = 30.0


class Nodes(Mapping[int, Node]):
    """The nodes by number. A context manager: at its end it waits for what was issued, and raises what nobody saw.

    After an interrupt nothing is waited for: the nodes drop what they have not begun.
    """

    def __init__(
        self,
        places: Mapping[int, str | None],
        manager: WorldManager,
        bulk_manager: WorldManager,
        *,
        backend: str = "auto",
        num_threads: int = 0,
        prepare: Callable[[int], None] = lambda number: None,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        """``places``: the store of each node. ``release`` is called last, when the connections have ended."""
        self._nodes = {number: Node(number) for number in places}
        self._sessions: list[Session] = []
        self._managers = (manager, bulk_manager)
        self._release = release
        self._is_open, self._pid = True, os.getpid()
        self.sync_points = SyncPoints()
        self._roster = Roster(
            manager,
            bulk_manager,
            backend=backend,
            num_threads=num_threads,
            sync_points=self.sync_points,
            on_session=self._take,
            on_refused=lambda number, reason: self._nodes[number].refuse(reason),
            prepare=prepare,
        )
        for number, store in places.items():
            self._roster.add(NodePlace(number=number, store=store))

    def __getitem__(self, number: int) -> Node:
        node = self._nodes.get(number)
        if node is None:
            raise ConnectError(f"there is no node {number}: the nodes are {', '.join(map(str, self._nodes)) or 'none'}")
        return node

    def __contains__(self, number: object) -> bool:
        return number in self._nodes

    def __iter__(self) -> Iterator[int]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"<Nodes {list(self._nodes.values())}>"

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        unseen = self.close(drop=kind is not None and issubclass(kind, KeyboardInterrupt))
        if kind is None and unseen:
            raise unseen[0]

    def wait_alive(self, timeout_s: float | None = None) -> None:
        """Wait until all nodes are there. Raises ConnectError, TimeoutError."""
        for node in self._nodes.values():
            node.wait_alive(timeout_s)

    def synchronize(self) -> None:
        """Wait until all that was issued is executed. Raises NodeDeadError."""
        for node in self._nodes.values():
            node.synchronize()

    def manual_seed(self, seed: int) -> None:
        """Seed the generators of all nodes that are alive."""
        for node in self._nodes.values():
            if node.is_alive:
                node.manual_seed(seed)

    @property
    def statistics(self) -> NodesStatistics:
        """What this master has issued, sent and waited for."""
        return NodesStatistics.of(self._sessions, self.sync_points)

    def close(self, *, drop: bool = False) -> list[RemoteError]:
        """End the connection, and return the failures that nobody saw. Idempotent.

        ``drop``: do not wait; the nodes execute nothing more.
        """
        if not self._is_open or os.getpid() != self._pid:
            return []
        self._is_open = False
        for session in self._sessions:
            self._finish(session, drop=drop)
        unseen = [error for session in self._sessions for error in session.unseen.values()]
        self._roster.close()
        for manager in self._managers:
            manager.close(1.0)
        self._release()
        return unseen

    def _finish(self, session: Session, *, drop: bool) -> None:
        if session.dead is None and session.ended is None:
            try:
                if drop:
                    session.tell(Drop())
                else:
                    session.settle()
                session.say_end()
            except MultiworldError as error:
                logger.info("node %d was lost at the end: %s", session.number, error)
        session.end("nodes.close() was called")

    def _take(self, session: Session) -> None:
        self._sessions.append(session)
        self._nodes[session.number].take(session)


def report_unseen(unseen: list[RemoteError], out: Any = None) -> None:
    """Print failures that nobody saw, for a program that ends."""
    for error in unseen:
        print(f"multiworld: nobody saw this error: {error}", file=out or sys.stderr)
