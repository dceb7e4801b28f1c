"""One member's place in the graph: its edges, what it has in flight for the stages after it, and who is told what."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...errors import MultiworldError, WorldClosedError
from ...world.manager import WorldManager
from ..errors import MemberLostError, PoisonedRequestError, RequestLostError, ServingError
from ..graph import GATEWAY, Graph
from ..member.messages import DOWNSTREAM_RANK, UPSTREAM_RANK, edge_world
from .edge import Edge
from .in_flight import InFlight, InFlightCounts, Loss, Refusal
from .packets import Item, Kind, Note
from .routing import make_policy
from .turn import Turn

logger = logging.getLogger(__name__)

FIRST_WINDOW: Final = 16
CHECK_S: Final = 0.05
CONNECT_S: Final = 20.0
MAX_LAZY_IDS: Final = 256


class NodeOwner:
    """What a node asks its process to do, which need not do all of it. All calls on the event loop."""

    def arrived(self, edge: Edge, items: list[Item]) -> None:
        """Requests from upstream, or answers."""

    def cancelled(self, ids: Iterable[bytes]) -> None:
        """Nobody waits for these any more, here or further down."""

    def dropped(self, ids: Iterable[bytes]) -> None:
        """Another replica has done these: whatever has not been begun is to be released."""

    def recalled(self, edge: Edge, ids: Iterable[bytes]) -> list[bytes]:
        """Give up what that edge brought of these, unless it was begun; return what was given up."""
        return []

    def cleared(self, edge: Edge, ids: Iterable[bytes]) -> None:
        """That sender suspects these no more of having killed a replica."""

    def asked(self, ids: Iterable[bytes]) -> None:
        """Further down, parts of these wait for their other parts: does anybody wait for the answers?"""

    def go_ahead(self, edge: Edge, ids: Iterable[bytes]) -> None:
        """That sender knows that these are about to be executed alone."""

    def accepted(self, stage: str, ids: Iterable[bytes]) -> None:
        """A replica of that stage has what was sent, for good or until it is lost, which is dealt with here."""

    def refused(self, stage: str, item: Item, error: ServingError) -> None:
        """What was sent has been lost and may not be sent again."""

    def gateway_gone(self, gateway: str) -> None:
        """The controller says that a gateway is gone, with all who waited for its answers."""

    def connection_lost(self, edge: Edge, error: Exception) -> None:
        """An edge broke; what has to be done for its items has been done."""


class Place:
    """Where a node stands: its deployment, member name, stage, and how to form worlds."""

    def __init__(
        self,
        *,
        member: str,
        stage: str,
        graph: Graph,
        store: str,
        policy: str = "shortest-queue",
        backend: str = "auto",
    ) -> None:
        self.member, self.stage, self.graph, self.store, self.policy = member, stage, graph, store, policy
        self.backend = backend


class Node:
    """Use it on one event loop; ``aclose`` or ``abort`` ends all edges."""

    def __init__(self, owner: NodeOwner, manager: WorldManager, place: Place) -> None:
        self._owner, self._manager, self.place = owner, manager, place
        draw = random.Random().randrange
        self.in_flight: dict[str, InFlight] = {
            stage: InFlight(
                make_policy(place.policy, draw),
                idempotent=stage == GATEWAY or place.graph.stages[stage].idempotent,
                repeatable=place.graph.is_repeatable(stage),
                merging=place.graph.merges(stage),
            )
            for stage in place.graph.downstream(place.stage)
        }
        self._items: dict[str, dict[bytes, Item]] = {stage: {} for stage in self.in_flight}
        self._merging = {stage for stage in self.in_flight if place.graph.merges(stage)}
        self.edges: dict[tuple[str, bool], Edge] = {}
        """By peer, and whether we are upstream of it."""
        self._granted: dict[str, int] = {}
        self._gone: set[str] = set()
        self._over = False
        self._window = FIRST_WINDOW
        self.turn = Turn(self._send_due)
        self._is_waiting = False
        self._busy = asyncio.Event()
        self._checking = asyncio.get_running_loop().create_task(self._check_often())

    # ---- edges

    async def connect(self, peer: str, stage: str, *, is_upstream: bool) -> Edge:
        """Form the edge with a peer and return it. Raises MultiworldError. A former edge with that peer is replaced."""
        self._gone.discard(peer)  # it is there again: what is for it waits until the edge is
        self._give_up_edge(peer, is_upstream)
        member = self.place.member
        world = await self._manager.join(
            edge_world(member, peer) if is_upstream else edge_world(peer, member),
            rank=UPSTREAM_RANK if is_upstream else DOWNSTREAM_RANK,
            world_size=2,
            store=self.place.store,
            backend=self.place.backend,
            timeout_s=CONNECT_S,
        )
        self._gone.discard(peer)
        self._give_up_edge(peer, is_upstream)  # of a second order that was carried out meanwhile
        if self._over:
            world.abort()
            raise WorldClosedError(world.name, world.generation)
        edge = self.edges[(peer, is_upstream)] = Edge(self, world, peer, stage, self.turn)
        edge.start()
        if not is_upstream:
            self._grant_to(edge)
        return edge

    def _give_up_edge(self, peer: str, is_upstream: bool) -> None:
        former = self.edges.pop((peer, is_upstream), None)
        if former is not None:
            former.abort()
            self._edge_lost(former)
            self._owner.connection_lost(former, ServingError(f"the edge with {peer} is formed anew"))

    def open(self, peer: str) -> None:
        """From now on route to that peer. Unknown ones are ignored: the edge has just broken."""
        edge = self.edges.get((peer, True))
        if edge is not None:
            in_flight = self.in_flight[edge.stage]
            in_flight.open(peer, self._granted.get(peer, FIRST_WINDOW), now=time.monotonic())
            edge.withdraw_last()  # that it was closed
            edge.say(Kind.OPEN, number=1)
            self._choose_anew(edge.stage)

    def close(self, peer: str) -> None:
        """Offer nothing new to that peer."""
        edge = self.edges.get((peer, True))
        if edge is not None:
            self.in_flight[edge.stage].close(peer)
            edge.say_last(Note(Kind.OPEN))
            self._choose_anew(edge.stage)

    def _choose_anew(self, stage: str) -> None:
        """There are other replicas of a stage to choose from."""
        self._recall(stage)
        self._pump(stage)
        self._choose_promptly(stage)

    def _choose_promptly(self, stage: str) -> None:
        """Have the replicas of a stage say at once what they have executed while there is more than one to choose."""
        is_prompt = self.in_flight[stage].num_live > 1 and stage not in self._merging and stage != GATEWAY
        for edge in self.edges.values():
            if edge.is_upstream and edge.stage == stage and edge.is_prompt != is_prompt:
                edge.is_prompt = is_prompt
                edge.say(Kind.PROMPT, number=is_prompt)

    def lost(self, peer: str) -> None:
        """The controller says that a peer is gone; its edges may not have broken yet."""
        for is_upstream in (True, False):
            edge = self.edges.get((peer, is_upstream))
            if edge is not None:
                edge.abort()
                self.edge_broke(edge, MemberLostError(peer))
        if peer.rpartition("-")[0] == GATEWAY:
            if GATEWAY in self.in_flight:
                self._gone.add(peer)  # until one of that name is connected again, no answer for it finds a taker
                self._settle(GATEWAY, self.in_flight[GATEWAY].down(peer))
            self._owner.gateway_gone(peer)

    def learn(self, peer: str, executing: Iterable[bytes]) -> None:
        """The controller says what a replica executed when it died: nothing else that it held is suspected any more."""
        stage = peer.rpartition("-")[0]
        in_flight = self.in_flight.get(stage)
        if in_flight is None:
            return
        self._say_cleared(stage, in_flight.learn(peer, executing))

    def _say_cleared(self, stage: str, cleared: Mapping[str, Sequence[bytes]]) -> None:
        for holder, keys in cleared.items():
            for key in keys:
                self._items[stage][key].deaths = 0  # it may not have left yet
            edge = self.edges.get((holder, True))
            if edge is not None:
                edge.say(Kind.CLEARED, keys)

    def only(self, gateways: Iterable[str]) -> None:
        """The controller says which gateways there are: for others, answers need not be kept."""
        if GATEWAY in self.in_flight:
            for gateway in self.in_flight[GATEWAY].awaited.difference(gateways):
                self.lost(gateway)

    def grant(self, window: int) -> None:
        """From now on each sender may have so many items here."""
        if window != self._window:
            self._window = window
            for edge in self.edges.values():
                if not edge.is_upstream:
                    self._grant_to(edge)

    def _grant_to(self, edge: Edge) -> None:
        edge.lazy_ids = min(
            max(1, self._window // 4), MAX_LAZY_IDS
        )  # so that the sender never waits for what is not said
        edge.say(Kind.GRANT, number=self._window)

    @property
    def window(self) -> int:
        return self._window

    @property
    def is_fed(self) -> bool:
        """Whether some sender may send something new."""
        return any(edge.is_fed for edge in self.edges.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in flight here, nor on its way out."""
        return not any(self.in_flight.values()) and all(edge.is_idle for edge in self.edges.values())

    # ---- items

    def send(self, item: Item, stage: str) -> None:
        """Hold an item for a stage, and send it as soon as a replica has credit."""
        target = f"{GATEWAY}-{item.origin}" if stage == GATEWAY else None
        if target in self._gone:
            self._owner.accepted(stage, [item.id])
            return
        self._items[stage][item.id] = item
        if self._is_waiting and not self.turn.is_on:
            self._check_from_now_on()
        self.in_flight[stage].put(
            item.id,
            item.size_bytes,
            now=time.monotonic(),
            route=self._route(item, stage),
            target=target,
            replayed=item.replayed,
            is_suspected=item.attempt > 1,  # replicas died while it was with them, maybe of it
        )
        self._pump(stage)

    def take_back(self, id_: bytes) -> None:
        """Drop this here, and tell who has it."""
        for stage in self.in_flight:
            self._drop(stage, id_)

    def cancel(self, ids: Iterable[bytes]) -> None:
        """Nobody wants these any more: drop them, and where they have been passed on, tell everybody further down."""
        ids = list(ids)
        for stage in self.in_flight:
            passed_on = [id_ for id_ in ids if not self._drop(stage, id_)]
            if passed_on and stage != GATEWAY:
                for edge in self.edges.values():
                    if edge.is_upstream and edge.stage == stage:
                        edge.say(Kind.CANCEL, passed_on)

    def ask(self, ids: Iterable[bytes]) -> None:
        """Have the gateways cancel those of these that they have answered."""
        ids = list(ids)
        for edge in self.edges.values() if ids else ():
            if not edge.is_upstream:
                edge.say(Kind.ASK, ids)

    def _drop(self, stage: str, id_: bytes) -> bool:
        if self._items[stage].pop(id_, None) is None:
            return False
        for peer in self.in_flight[stage].drop(id_):
            edge = self._withdraw(stage, peer, id_)
            if edge is not None and stage != GATEWAY:
                edge.say(Kind.CANCEL, [id_])
        return True

    def _withdraw(self, stage: str, peer: str, id_: bytes) -> Edge | None:
        """Take an item back that has not left for that peer; else return the edge on which the peer can be told."""
        edge = self.edges.get((peer, True))
        if edge is not None and edge.withdraw(id_):
            self.in_flight[stage].returned(peer, [id_])
            return None
        return edge

    def _recall(self, stage: str) -> None:
        """Parts of one request find each other again after a change of replicas."""
        recalled: dict[str, list[bytes]] = {}
        for peer, id_ in self.in_flight[stage].misplaced():
            if self._withdraw(stage, peer, id_) is not None:
                recalled.setdefault(peer, []).append(id_)
        for peer, ids in recalled.items():
            self.edges[(peer, True)].say(Kind.RECALL, ids)

    def holds(self, id_: bytes) -> bool:
        """Return whether an item with that id is in flight here."""
        return any(id_ in in_flight for in_flight in self.in_flight.values())

    def _route(self, item: Item, stage: str) -> bytes:
        if stage in self._merging:
            return item.id
        key = item.context.key
        return b"" if key is None else key.encode()

    def _pump(self, stage: str) -> None:
        in_flight, items = self.in_flight[stage], self._items[stage]
        for key, peer in in_flight.assign(now=time.monotonic()):
            item = items[key]
            edge = self.edges.get((peer, True))
            if edge is None:  # it broke in this very turn; edge_broke sends it elsewhere
                continue
            item.deaths = in_flight.marked(item.id)
            item.replayed = item.replayed or in_flight.was_replayed(item.id)
            hops = item.context.hops
            if hops is not None and item.kind != Kind.ERROR and stage != GATEWAY:
                hops = hops.with_sent(stage, peer, at=time.time(), attempt=item.attempt, holders=in_flight.peers)
                item.context = replace(item.context, hops=hops)
            edge.post(item)

    # ---- what edges say

    def edge_brought(self, edge: Edge, items: list[Item], notes: list[Note]) -> None:
        self.turn.is_on = True
        try:
            for note in notes:
                self._heed(edge, note)
            if items:
                self._owner.arrived(edge, items)
        finally:
            self.turn.is_on = False
            self.flush()

    def flush(self) -> None:
        """Send now what would be sent at the end of this turn of the loop, and only then plan what comes later."""
        self._send_due()
        for edge in self.edges.values():
            edge.plan_notes()
        if self._is_waiting and any(self.in_flight.values()):
            self._check_from_now_on()

    def _send_due(self) -> None:
        for edge in self.edges.values():
            edge.flush()

    def _heed(self, edge: Edge, note: Note) -> None:
        kind, ids, number = note
        if kind == Kind.RELEASED:
            self._released(edge, ids)
        elif kind == Kind.ACCEPTED:
            self._owner.accepted(edge.stage, ids)
        elif kind == Kind.EXECUTED:
            self.in_flight[edge.stage].executed(edge.peer, ids, now=time.monotonic())
        elif kind == Kind.PROMPT:
            edge.is_prompt = bool(number)
        elif kind == Kind.OPEN:
            edge.is_fed = bool(number)
        elif kind == Kind.GRANT:
            self._granted[edge.peer] = max(1, int(number))
            self.in_flight[edge.stage].grant(edge.peer, self._granted[edge.peer])
            self._pump(edge.stage)
        elif kind == Kind.CANCEL:
            self._owner.cancelled(ids)
        elif kind == Kind.STARTED:
            self.in_flight[edge.stage].started(edge.peer, ids)
            if ids:
                edge.say(Kind.GO, ids)
        elif kind == Kind.GO:
            self._owner.go_ahead(edge, ids)
        elif kind == Kind.ASK:
            self._owner.asked(ids)
        elif kind == Kind.DROP:
            self._owner.dropped(ids)
        elif kind == Kind.CLEARED:
            self._owner.cleared(edge, ids)
        elif kind == Kind.RECALL:
            returned = self._owner.recalled(edge, ids)
            if returned:
                edge.say(Kind.RETURNED, returned)
        elif kind == Kind.RETURNED:
            self.in_flight[edge.stage].returned(edge.peer, ids)
            self._pump(edge.stage)

    def _released(self, edge: Edge, ids: Iterable[bytes]) -> None:
        ended = self.in_flight[edge.stage].released(edge.peer, ids, now=time.monotonic())
        for id_, others in ended.items():
            self._items[edge.stage].pop(id_, None)
            for peer in others:
                other = self._withdraw(edge.stage, peer, id_)
                if other is not None:
                    other.say(Kind.DROP, [id_])
        if ended:
            self._owner.accepted(edge.stage, ended)
        self._pump(edge.stage)

    def edge_broke(self, edge: Edge, error: Exception) -> None:
        if self.edges.get((edge.peer, edge.is_upstream)) is edge:
            del self.edges[(edge.peer, edge.is_upstream)]
            self._edge_lost(edge)
            self._owner.connection_lost(edge, error)

    def _edge_lost(self, edge: Edge) -> None:
        if not edge.is_upstream:
            return
        self._granted.pop(edge.peer, None)
        in_flight = self.in_flight[edge.stage]
        in_flight.returned(edge.peer, edge.unsent())  # these never got there
        self._settle(edge.stage, in_flight.down(edge.peer, is_gone=False))
        self._choose_anew(edge.stage)

    def _settle(self, stage: str, loss: Loss) -> None:
        items = self._items[stage]
        for refusal in loss.refused:
            item = items.pop(refusal.key, None)
            if item is not None:
                self._owner.refused(stage, item, _error_of(refusal, stage))
        self._say_cleared(stage, loss.cleared)
        ended = [key for key in loss.ended if items.pop(key, None) is not None]
        if ended:
            self._owner.accepted(stage, ended)

    # ---- time

    def _check_from_now_on(self) -> None:
        self._is_waiting = False
        self._busy.set()

    async def _check_often(self) -> None:
        while True:
            if not any(self.in_flight.values()):
                self._busy.clear()
                self._is_waiting = True
                await self._busy.wait()
            await asyncio.sleep(CHECK_S)
            now = time.monotonic()
            for stage, in_flight in self.in_flight.items():
                if in_flight.check(now=now):
                    self._pump(stage)
                self._give_up_late(stage, now)

    def _give_up_late(self, stage: str, now: float) -> None:
        """Only at this stage: every other one that it was sent to gives it up, and says so, by itself."""
        late = [id_ for id_, item in self._items[stage].items() if item.deadline < now]
        for id_ in late:
            self._drop(stage, id_)
        if late:
            self._owner.accepted(stage, late)
            self._pump(stage)

    def statistics(self) -> dict[str, InFlightCounts]:
        """Return what is in flight, by stage."""
        return {stage: in_flight.statistics() for stage, in_flight in self.in_flight.items()}

    # ---- the end

    async def aclose(self) -> None:
        """Leave all edges gracefully."""
        self._over = True
        self._checking.cancel()
        edges = list(self.edges.values())
        self.edges.clear()
        with contextlib.suppress(MultiworldError):
            await asyncio.gather(*(edge.aclose() for edge in edges))

    def abort(self) -> None:
        self._over = True
        self._checking.cancel()
        edges = list(self.edges.values())
        self.edges.clear()
        for edge in edges:
            edge.abort()


def _error_of(refusal: Refusal, stage: str) -> ServingError:
    if refusal.deaths:
        return PoisonedRequestError(stage, refusal.deaths)
    return RequestLostError(stage, refusal.peer)
