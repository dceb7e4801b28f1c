"""Whether the node of a session is there, is made anew, or is lost, and whether the connection ended here."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...world.world import World
from ..errors import reason_of
from ..peer_memory import PeerMemory
from .answers import Answers
from .recovering import Recovery


class Link:
    """The two worlds of a node in one generation. ``lost``: whether one of them broke.

    ``answers``: what the node replies. ``memory``: the node's, if large tensors are read and written there.
    """

    def __init__(self, world: World, bulk: World, answers: Answers) -> None:
        self.world, self.bulk, self.answers = world, bulk, answers
        self.memory: PeerMemory | None = None
        self.lost = False  # guarded by the lifetime's lock

    def abort(self) -> None:
        self.world.abort()
        self.bulk.abort()


class Lifetime:
    """``dead``: why the node is lost for good. ``ended``: why the connection ended here.

    ``away``: why the node is lost while it is made anew; then it is there again, or dead. ``recovery`` makes it anew.
    Any thread, also one that holds locks of a world that broke: nothing here blocks but ``wait_back``.
    """

    def __init__(self, on_turn: Callable[[], None], on_loss: Callable[[bool], None], after: int = -1) -> None:
        """``on_turn`` is called with each change, ``on_loss`` with whether the node may come back.

        ``after``: the generation of the node before.
        """
        self.generation = after
        self.dead: str | None = None
        self.ended: str | None = None
        self.away: str | None = None
        self.recovery: Recovery | None = None
        self.link: Link | None = None
        self._on_turn, self._on_loss = on_turn, on_loss
        self._turned = threading.Condition()  # guards all of it; no other lock is taken below it but that of a room

    @property
    def is_over(self) -> bool:
        return self.dead is not None or self.ended is not None

    @property
    def present_link(self) -> Link:
        """The link in use; that of the last generation while the node is lost."""
        assert self.link is not None
        return self.link

    def use(self, world: World, bulk: World, answers: Answers) -> Link:
        """These are the worlds of the node from now on."""
        link = self.link = Link(world, bulk, answers)
        self.generation = max(self.generation + 1, world.generation)  # a new process at an address counts from 0
        world.on_broken(lambda: self._broke(link, world, "the connection was closed"))
        bulk.on_broken(lambda: self._broke(link, bulk, "the connection for large tensors was closed"))
        return link

    def lose(self, reason: str, link: Link) -> None:
        """A link of the node broke."""
        with self._turned:
            if link.lost or self.is_over:
                return
            link.lost = True
            link.world.later(0.0, link.abort)  # one of the two may still stand
            if link is not self.link:
                return
            if self.recovery is None:
                self.give_up(reason)
                return
            refusal = self.recovery.refusal()
            if refusal:
                self.give_up(f"{reason}; {refusal}")
                return
            self.away = reason
            self._on_loss(True)
            self._turn()

    def give_up(self, reason: str) -> None:
        """The node is lost for good."""
        with self._turned:
            if not self.is_over:
                self.dead = reason
                self._on_loss(False)
                self._turn()

    def came_back(self, link: Link) -> bool:
        """The node was made anew. False: it is lost again."""
        with self._turned:
            if link.lost or link is not self.link or self.is_over:
                return False
            self.away = None
            self._turn()
            return True

    def end(self, reason: str) -> None:
        with self._turned:
            self.ended = self.ended or reason
            self._turn()

    def wait_back(self) -> None:
        """Block while the node is being made anew."""
        with self._turned:
            self._turned.wait_for(lambda: self.away is None or self.is_over)

    def _turn(self) -> None:
        self._turned.notify_all()
        self._on_turn()

    def _broke(self, link: Link, world: World, closed: str) -> None:
        self.lose(closed if world.error is None else reason_of(world.error), link)
