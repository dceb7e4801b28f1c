"""One end of one edge: a world of two that carries packets one way and what is said of them the other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

from ...channel.base import Payload
from ...channel.payload.small_message import Received
from ...errors import MultiworldError, WorldBrokenError
from ...wire.progress.operation import Operation
from ..member.messages import DOWNSTREAM_RANK, UPSTREAM_RANK
from .packets import INLINE_BYTES, Item, Kind, Note, as_tensors, decode, encode
from .turn import Turn

logger = logging.getLogger(__name__)

MAX_UNDER_WAY: Final = 2
PACKET_BYTES: Final = 256 << 10
PACKET_ITEMS: Final = 64
EARLY_ITEMS: Final = 8
"""Leave at once: else all that waits travels as one packet, and one process after the other has it."""
LAZY_S: Final = 0.01  # what nobody waits for may come so much later, together with more of it
LEAVE_S: Final = 1.0  # for the last notes to arrive, unless the peer leaves in this very moment and reads no more
LAZY_IDS: Final = 4
LAZY_BYTES: Final = 16 << 20  # a quarter of the credit of a replica


class Listening(Protocol):
    """What ``World.deliver`` returns."""

    def stop(self) -> None: ...


class EdgeWorld(Protocol):
    """What an edge needs of its ``World``."""

    @property
    def rank(self) -> int: ...

    def deliver(
        self, src: int, deliver: Callable[[Any], None], ended: Callable[[Exception], None], /, *, as_bytes: bool
    ) -> Listening: ...

    def send_bytes(self, packed: bytearray, dst: int, tag: int, /) -> bool: ...

    def start_send_tensors(
        self, payload: Payload, dst: int, tag: int, timeout_s: float | None, /
    ) -> Operation[None]: ...

    async def leave(self, timeout_s: float | None = None, /) -> None: ...

    def abort(self) -> None: ...


class EdgeOwner(Protocol):
    """Whom an edge tells. All calls on the event loop."""

    def edge_brought(self, edge: Edge, items: list[Item], notes: list[Note]) -> None:
        """What one packet held. What it leads to may be done at once, edges flushed included."""

    def edge_broke(self, edge: Edge, error: Exception) -> None:
        """Once, unless it was closed here."""


class Edge:
    """Packs what is to be sent in one turn of the event loop into few messages; small ones wait while others leave.

    Use it on one event loop, from ``start`` to ``aclose`` or ``abort``.
    """

    def __init__(self, owner: EdgeOwner, world: EdgeWorld, peer: str, stage: str, turn: Turn | None = None) -> None:
        """``stage``: the peer's. ``turn``: at the end of which ``flush`` is called, and then ``plan_notes``."""
        self.peer, self.stage, self.world = peer, stage, world
        self.is_upstream = world.rank == UPSTREAM_RANK
        self.lazy_ids = LAZY_IDS
        """So many things of one kind are said at once."""
        self.is_prompt = False
        """Whether the sender chooses among replicas by what each has executed, and is to hear of that at once."""
        self._owner = owner
        self._far = DOWNSTREAM_RANK if self.is_upstream else UPSTREAM_RANK
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._ids: dict[int, dict[bytes, None]] = {}
        self._lazy_bytes = 0
        self.is_fed = False
        """Whether the sender at the other end may send something new."""
        self._notes: list[Note] = []
        self._last_notes: list[Note] = []
        """What is said when all items have left."""
        self._under_way = 0
        self._turn = turn or Turn()
        self._is_due = False
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None
        self._delivery: Listening | None = None
        self._over = False

    def __repr__(self) -> str:
        return f"<Edge {'to' if self.is_upstream else 'from'} {self.peer}{' over' if self._over else ''}>"

    @property
    def is_over(self) -> bool:
        return self._over

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not (self._items or self._ids or self._notes or self._last_notes or self._under_way)

    def start(self) -> None:
        """Begin to receive."""
        self._delivery = self.world.deliver(self._far, self._deliver, self._deliveries_ended, as_bytes=True)

    def post(self, item: Item) -> None:
        """Send an item; whoever posts keeps to the peer's credit."""
        self._items.append(item)
        if len(self._items) >= EARLY_ITEMS:
            self._flush()
        else:
            self._flush_soon()

    def withdraw(self, id_: bytes) -> bool:
        """Take back an item that has not left yet; return whether it had not."""
        for item in self._items:
            if item.id == id_:
                self._items.remove(item)
                return True
        return False

    def unsent(self) -> list[bytes]:
        """Return the ids of the items that have not left yet."""
        return [item.id for item in self._items]

    def say(self, kind: int, ids: Iterable[bytes] = (), *, number: float = 0.0) -> None:
        """Say something now."""
        self._notes.append(Note(kind, list(ids), number))
        self._flush_soon()

    def say_last(self, note: Note) -> None:
        """Say something with or after the last of the items that wait to be sent."""
        self._last_notes.append(note)
        self._flush_soon()

    def withdraw_last(self) -> None:
        """Take back what was to be said last."""
        self._last_notes.clear()

    def mention(self, kind: int, id_: bytes, *, size_bytes: int = 0) -> None:
        """Say something within ``LAZY_S``, or as soon as there is enough of it, or it is of many bytes of credit."""
        ids = self._note(kind, id_)
        self._lazy_bytes += size_bytes
        if kind == Kind.RELEASED and Kind.ACCEPTED in self._ids:
            self._ids[Kind.ACCEPTED].pop(id_, None)  # it is said with this
        if len(ids) >= self.lazy_ids or self._lazy_bytes >= LAZY_BYTES:
            self._flush_soon()
        elif not self._turn.is_on:
            self.plan_notes()

    def say_soon(self, kind: int, id_: bytes) -> None:
        """Say something in this turn of the loop, together with more of it."""
        self._note(kind, id_)
        self._flush_soon()

    def _note(self, kind: int, id_: bytes) -> dict[bytes, None]:
        ids = self._ids.get(kind)
        if ids is None:
            ids = self._ids[kind] = {}
        ids[id_] = None
        return ids

    async def aclose(self) -> None:
        """Send what waits, then leave the world; the peer sees a graceful end."""
        self._flush()
        self._end()
        await self.world.leave(LEAVE_S)

    def abort(self) -> None:
        """Give the world up at once."""
        self._end()
        self.world.abort()

    def _end(self) -> None:
        self._over = True
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = None
        if self._delivery is not None:
            self._delivery.stop()

    # ---- sending

    def flush(self) -> None:
        """Send now what would be sent at the end of this turn of the loop."""
        if self._soon is None and not self._is_due:
            return
        if self._soon is not None:
            self._soon.cancel()
        try:
            self._flush()
        except Exception as error:  # a defect, or no memory, ends this edge; others are flushed after it
            self._deliveries_ended(error)

    def plan_notes(self) -> None:
        """What has been mentioned in this turn is said within ``LAZY_S``. Called when all that is due has left."""
        if self._ids and self._later is None and self._soon is None and not (self._is_due or self._over):
            self._later = self._loop.call_later(LAZY_S, self._flush)

    def _flush_soon(self) -> None:
        if self._over or self._soon is not None:
            return
        if self._turn.is_on:
            self._is_due = True
        else:
            self._soon = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._later is not None:
            self._later.cancel()
        self._soon = self._later = None
        self._is_due = False
        while not self._over and self._under_way < MAX_UNDER_WAY and self._has_to_send():
            self._send_one()

    def _has_to_send(self) -> bool:
        return bool(self._items or self._ids or self._notes or self._last_notes)

    def _send_one(self) -> None:
        notes = self._notes
        notes += [Note(kind, list(ids)) for kind, ids in self._ids.items() if ids]
        self._notes, self._ids, self._lazy_bytes = [], {}, 0
        items = self._take()
        if self._last_notes and not self._items:
            notes += self._last_notes
            self._last_notes = []
        packed, large = encode(items, notes, now=time.monotonic())
        try:
            if not large and self.world.send_bytes(packed, self._far, 0):
                return
            sending = self.world.start_send_tensors(as_tensors(packed, large), self._far, 0, None)
        except MultiworldError as error:
            self._items.extendleft(reversed(items))  # they are unsent
            self._break(error)
            return
        if not sending.done:
            self._under_way += 1
            sending.add_callback(self._sent_elsewhere)

    def _take(self) -> list[Item]:
        taken: list[Item] = []
        size_bytes = 0
        while self._items and len(taken) < PACKET_ITEMS and size_bytes < PACKET_BYTES:
            item = self._items.popleft()
            taken.append(item)
            size_bytes += item.size_bytes if item.size_bytes <= INLINE_BYTES else PACKET_BYTES
        return taken

    def _sent_elsewhere(self, sending: Any) -> None:
        """On whichever thread the operation ended."""
        try:
            self._loop.call_soon_threadsafe(self._sent)
        except RuntimeError:  # the loop was closed: nobody sends any more
            return

    def _sent(self) -> None:
        self._under_way -= 1
        self._flush()

    # ---- receiving

    def _deliver(self, received: Received) -> None:
        items, notes = decode(received, now=time.monotonic())
        for item in items:
            item.source = self.stage
        self._owner.edge_brought(self, items, notes)

    def _deliveries_ended(self, error: Exception) -> None:
        if not isinstance(error, MultiworldError):  # whatever it was, a deaf edge would hold up its requests
            logger.error("the edge with %s failed", self.peer, exc_info=error)
        if not isinstance(error, WorldBrokenError):
            self.world.abort()
        self._break(error)

    def _break(self, error: Exception) -> None:
        if not self._over:
            self._end()
            self._loop.call_soon(partial(self._owner.edge_broke, self, error))
