"""The worlds that a node shares with other nodes: by their number, from the master's word until they are left."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from ...errors import JoinError, MultiworldError, ProtocolError
from ...wire.progress.operation import Operation
from ...world.joining.join_request import check_request
from ...world.manager import WorldManager
from ...world.world import World
from ..protocol import between
from ..protocol.messages import Failed, Meet, Part, Parted
from ..protocol.records import Kind
from .collectives import take_part
from .copies import Records, Tensors, receive_copy, send_copy
from .peer_world import PeerWorld

JOIN_S: Final = 30.0
"""A world of nodes that can't reach each other ends in an error after this."""

MAX_LEFT: Final = 64
"""Worlds that are known after they were left: another stream may still have records of them."""

Join = Callable[[Meet], Operation[World]]
Handler = Callable[[bytes], object]


def join_with(manager: WorldManager) -> Join:
    """Return what forms a world of several nodes by that manager."""

    def join(said: Meet) -> Operation[World]:
        request = check_request(
            said.name, said.rank, len(said.nodes), said.store, said.backend, JOIN_S, device=None, serve_store=False
        )
        return manager.start_join(replace(request, is_inner=True))

    return join


def refuse_to_join(said: Meet) -> Operation[World]:
    raise JoinError(said.name, "this node has no connection to others")


class Peers:
    """All methods work from any thread; the handlers of records are an executor's."""

    def __init__(self) -> None:
        self._join: Join = refuse_to_join
        self._tell: Callable[[Parted], object] = lambda parted: None
        self._worlds: dict[int, PeerWorld] = {}
        self._told = threading.Condition()  # guards the next two, and who waits for a world
        self._last = 0  # numbers grow, and the master's words come in their order
        self._is_over = False
        self._left: deque[int] = deque()

    def use(self, join: Join, tell: Callable[[Parted], object]) -> None:
        """Form worlds by ``join``; ``tell`` the master of those that end by themselves."""
        self._join, self._tell = join, tell

    def heard(self, said: Meet | Part) -> None:
        """Form a world, or give it up, while the executor may be busy."""
        if isinstance(said, Meet):
            self._worlds[said.world] = PeerWorld(said, self._joined(said), partial(self._broke, said.world))
            with self._told:
                self._last = said.world
                self._told.notify_all()
        elif said.world in self._worlds:
            self._worlds[said.world].part(said.session, said.reason)

    def abort(self) -> None:
        """The master is lost: end each wait for another node at once, with an error."""
        with self._told:
            self._is_over = True
            self._told.notify_all()
        for world in list(self._worlds.values()):
            world.abort()

    def close(self) -> None:
        """Leave all worlds, at the same time."""
        leaving = [world.close() for world in self._worlds.values()]
        self._worlds.clear()
        for each in leaving:
            done = threading.Event()
            each.add_callback(lambda _, done=done: done.set())  # type: ignore[misc]
            done.wait()

    def handlers(
        self,
        tensors: Tensors,
        *,
        arrive: Callable[[Iterable[int]], bool],
        failed: Callable[[BaseException], Failed],
    ) -> dict[int, Handler]:
        """Return what executes the records of several nodes in one stream."""
        records = Records(tensors, arrive, failed)

        def send(body: bytes) -> None:
            said = between.read_send_to(body)
            send_copy(records, self._of(said.world), said)

        def receive(body: bytes) -> None:
            said = between.read_receive_from(body)
            receive_copy(records, self._of(said.world), said)

        def collective(body: bytes) -> None:
            said = between.read_collective(body)
            take_part(records, self._of(said.world), said)

        return {
            Kind.SEND_TO: send,
            Kind.RECEIVE_FROM: receive,
            Kind.COLLECTIVE: collective,
            Kind.LEAVE: self._leave,
        }

    def _of(self, number: int) -> PeerWorld:
        """Return a world. The word of it was sent before, but another thread may still be about to read that.

        Raises ProtocolError for one that was left, or if the master is lost.
        """
        with self._told:
            self._told.wait_for(lambda: number <= self._last or self._is_over)
        world = self._worlds.get(number)
        if world is None:
            raise ProtocolError(f"there is no world {number} of several nodes")
        return world

    def _joined(self, said: Meet) -> Operation[World]:
        try:
            return self._join(said)
        except (MultiworldError, OSError, ValueError, TypeError, RuntimeError) as error:
            failed: Operation[World] = Operation()
            failed.fail(error)
            return failed

    def _leave(self, body: bytes) -> None:
        number = between.read_leave(body)
        self._of(number).leave()
        self._left.append(number)
        if len(self._left) > MAX_LEFT:
            del self._worlds[self._left.popleft()]

    def _broke(self, number: int, session: int, reason: str) -> None:
        self._tell(Parted(world=number, session=session, reason=reason))
