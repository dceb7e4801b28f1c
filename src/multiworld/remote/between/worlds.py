"""Which worlds the nodes share: each is formed when it is first needed, and left when a member is lost."""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ..protocol import between
from ..protocol.between import Collective, ReceiveFrom, SendTo
from ..protocol.messages import Meet, Part, Parted
from ..protocol.specs import Spec
from ..session.origins import Origin, line_of, origin
from ..session.session import Session
from .meeting import Member, name_of, store_of

MAX_WORLDS: Final = 32
"""Worlds of nodes that a master keeps; the one that was not used for longest is left for another."""
_numbers: Final = itertools.count(1)
_groups: Final = itertools.count(1)


@dataclass
class SharedWorld:
    """A world of several nodes: their sessions in the order of ranks, and how many collectives were issued."""

    number: int
    sessions: tuple[Session, ...]
    num_collectives: int = 0


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one member of a collective reads, writes in place and makes. ``inputs``: the specs of the first two."""

    session: Session
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    makes: tuple[int, ...] = ()
    inputs: tuple[Spec, ...]
    specs: tuple[Spec, ...] = ()


class Between:
    """The worlds between the nodes of one connection. All methods work from any thread, and none waits for a node,
    unless that is too far behind.
    """

    def __init__(self, backend: str, launchers_store: Callable[[], str | None] = lambda: None) -> None:
        self._backend, self._launchers_store = backend, launchers_store
        # Guards the lines below: records of one copy or collective are queued for all its nodes at once. A thread that
        # brings news may be inside of it already.
        self._lock = threading.Lock()
        self._news: deque[Parted] = deque()
        self._members: dict[int, Member] = {}  # by the uid of their session
        self._worlds: OrderedDict[tuple[int, ...], SharedWorld] = OrderedDict()  # by the uids of their sessions

    def add(self, session: Session, store: str | None) -> None:
        """Let a node meet others from now on."""
        self._members[session.uid] = Member(number=session.number, generation=session.generation, store=store)
        session.on_parted = self._parted
        _between[session] = self

    def lost(self, session: Session) -> None:
        """A node is gone: what others do with it fails at once, however far that has come."""
        reason = f"node {session.number} is lost: {session.dead or session.away}"
        with self._lock:
            if session.is_over:
                self._members.pop(session.uid, None)
            for key, world in list(self._worlds.items()):
                if session.uid in key:
                    self._end(key, Part(world=world.number, session=session.uid, reason=reason))
        self._take_news()

    def copy(self, source: Session, id_: int, target: Session, new_id: int, spec: Spec, operation: str) -> None:
        """Have a tensor of one node sent to another, where it becomes ``new_id`` with that spec."""
        place = origin(sys._getframe(1))
        label = f"{operation} at {line_of(place)}"
        with self._lock:
            key = tuple(sorted((source.uid, target.uid)))
            pair = [source, target] if key[0] == source.uid else [target, source]
            number = self._world_of(pair, operation).number
            send = SendTo(id_, number, key.index(target.uid), new_id)
            receive = ReceiveFrom(new_id, number, key.index(source.uid), spec, label)
            both = ((target, between.receive_from(receive)), (source, between.send_to(send)))
            self._queue(key, both, operation, place)
        self._take_news()
        _flush((source, target))

    def collective(self, name: str, parts: Sequence[Share], root: int = 0, op: str = "") -> None:
        """Have all parts of a collective run; the ranks are in the order of the parts."""
        place = origin(sys._getframe(1))
        label = f"{name} at {line_of(place)}"
        with self._lock:
            world = self._world_of([part.session for part in parts], name)
            head = (world.number, world.num_collectives, next(_groups), name, op, root)
            world.num_collectives += 1
            records = [
                (
                    each.session,
                    between.collective(
                        Collective(*head, each.reads, each.writes, each.makes, each.inputs, each.specs, label)
                    ),
                )
                for each in parts
            ]
            self._queue(tuple(each.session.uid for each in parts), records, name, place)
        self._take_news()
        _flush([part.session for part in parts])

    def _world_of(self, sessions: Sequence[Session], operation: str) -> SharedWorld:
        """Return the world of these nodes; the first time they are told to meet. Raises NodeDeadError.

        A node that is lost a moment later is seen by ``lost``, which waits for the lock.
        """
        for session in sessions:
            session.check_usable(operation)
        key = tuple(session.uid for session in sessions)
        world = self._worlds.get(key)
        if world is not None:
            self._worlds.move_to_end(key)
            return world
        world = self._worlds[key] = SharedWorld(next(_numbers), tuple(sessions))
        members = [self._members[uid] for uid in key]
        name, store = name_of(members, world.number), store_of(members, self._launchers_store())
        for rank, session in enumerate(sessions):
            session.tell(
                Meet(
                    world=world.number,
                    name=name,
                    rank=rank,
                    nodes=tuple(each.number for each in sessions),
                    sessions=key,
                    store=store,
                    backend=self._backend,
                )
            )
        if len(self._worlds) > MAX_WORLDS:
            self._end_oldest()
        return world

    def _end_oldest(self) -> None:
        """Leave the world that was not used for longest, unless another stream may still have records of it."""
        for key, world in self._worlds.items():
            if not any(session.has_streams for session in world.sessions):
                self._end(key)
                return

    def _queue(
        self, key: tuple[int, ...], records: Iterable[tuple[Session, bytes]], operation: str, place: Origin
    ) -> None:
        """Queue a record for each node. If one can't take it, as in a capture, no other waits for that node."""
        try:
            for session, record in records:
                session.streams.present.queue.append((record, operation, place))
        except BaseException:
            world = self._worlds[key].number
            self._end(key, Part(world=world, session=0, reason=f"{operation} could not be issued to all"))
            raise

    def _end(self, key: tuple[int, ...], part: Part | None = None) -> None:
        """Have a world left behind what was issued in it; with ``part`` what is under way there is given up."""
        world = self._worlds.pop(key)
        # A node that is made anew, of all that was issued since, has never heard of this world then.
        standing = [session for session in world.sessions if not session.is_over and session.recovery is None]
        for session in standing:
            if part is not None:
                session.tell(part)
            session.stream.queue.append((between.leave(world.number), "leave", None))
            session.stream.flush(may_wait=False)

    def _parted(self, said: Parted) -> None:
        """A node tells that a world ended by itself: all give it up, and the next use forms another one."""
        self._news.append(said)
        self._take_news()

    def _take_news(self) -> None:
        while self._news and self._lock.acquire(blocking=False):
            try:
                self._end_parted(self._news.popleft())
            except IndexError:
                return  # another thread was faster
            finally:
                self._lock.release()

    def _end_parted(self, said: Parted) -> None:
        key = next((key for key, world in self._worlds.items() if world.number == said.world), None)
        if key is not None:
            self._end(key, Part(world=said.world, session=said.session, reason=said.reason))


def _flush(sessions: Iterable[Session]) -> None:
    """Send what is queued for all before waiting for one: it may wait for the others."""
    for session in sessions:
        for stream in session.streams.all():
            if stream.queue.waiting:
                stream.flush(may_wait=False)
    for session in sessions:
        session.streams.present.wait_for_room()


_between: Final[weakref.WeakKeyDictionary[Session, Between]] = weakref.WeakKeyDictionary()


def between_of(one: Session, other: Session) -> Between | None:
    """Return what connects two nodes; None: they are of different connections, or one is made anew when it is lost.

    What such a node holds must come from its master, which keeps it for that.
    """
    if one.recovery is not None or other.recovery is not None:
        return None
    found = _between.get(one)
    return found if found is not None and found is _between.get(other) else None
