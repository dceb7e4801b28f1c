"""Decide which edges are formed, opened, closed and formed again between the members that live. Pure.

An edge is one world of two. Both ends are told to connect, it counts when both said that they are, and the upstream end
routes over it only after it was told ``open``: make before break.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...graph import GATEWAY, Graph
from ...member.orders import CloseEdge, Connect, EdgeEnd, OpenEdge
from ...member.reports import MemberEdge
from .actions import Action, EdgeBroken, EdgeClosed, EdgeOpened, Emit, Send
from .members import Member

RETRY_S, MAX_RETRY_S = 0.2, 5.0
FORM_S = 10.0  # for both ends to say that they are connected
PATIENCE_S = 3.0  # after which an edge that does not form keeps nobody from serving over the others
HEALED_S = 10.0  # an edge that held so long has its failures forgotten
TOO_MANY = 3  # failures in a row that say: one end is cut off


class EdgeState(enum.Enum):
    FORMING = "forming"
    CONNECTED = "connected"
    OPEN = "open"
    BROKEN = "broken"


STANDING = (EdgeState.CONNECTED, EdgeState.OPEN)


@dataclass(kw_only=True)
class Edge:
    """One edge of the graph, between two members."""

    upstream: str
    downstream: str
    since: float
    first: float
    """When it was first tried; its age does not begin anew with each attempt."""
    state: EdgeState = EdgeState.FORMING
    upstream_connected: bool = False
    downstream_connected: bool = False
    attempts: int = 0
    not_before: float = 0.0
    error: str = ""
    is_unsure: bool = False
    """Whether the upstream end may have missed what it was told last."""

    @property
    def stands(self) -> bool:
        return self.state in STANDING


class Wiring:
    """All edges of a deployment."""

    def __init__(self, graph: Graph, *, epoch: int = 0) -> None:
        self._graph = graph
        self.edges: dict[tuple[str, str], Edge] = {}
        self.epoch = epoch
        """Grows with every change of who routes to whom."""

    # ---- what members said

    def adopt(self, member: str, edges: Iterable[MemberEdge], known: Mapping[str, Member], now: float) -> None:
        """A member that served on without a controller said which edges it has; what it lacks is formed anew."""
        named = {_key(member, edge.peer, edge.end) for edge in edges}
        for key in [key for key in self.edges if member in key and key not in named]:
            del self.edges[key]
        for key in named:
            if key[0] in known and key[1] in known:
                edge = self.edges.setdefault(key, Edge(upstream=key[0], downstream=key[1], since=now, first=now))
                edge.is_unsure = edge.is_unsure or key[0] == member
                self._mark(edge, member, now)

    def connected(self, member: str, peer: str, end: EdgeEnd, now: float) -> None:
        edge = self.edges.get(_key(member, peer, end))
        if edge is not None and edge.state is EdgeState.FORMING:
            self._mark(edge, member, now)

    def failed(self, member: str, peer: str, end: EdgeEnd, error: str, now: float, *, broke: bool) -> list[Action]:
        """An end says that an edge broke, or could not be formed. Late news of an earlier attempt changes nothing."""
        edge = self.edges.get(_key(member, peer, end))
        if edge is None or edge.state is EdgeState.BROKEN:
            return []
        said = edge.upstream_connected if member == edge.upstream else edge.downstream_connected
        if broke and not said:
            return []
        return self._break(edge, error, now)

    def forget(self, member: str) -> None:
        """A member is gone, and its edges with it."""
        for key in [key for key in self.edges if member in key]:
            del self.edges[key]

    # ---- what is to be done

    def step(self, members: Mapping[str, Member], now: float) -> list[Action]:
        """Form what is missing, give up what takes too long."""
        actions: list[Action] = []
        for upstream, downstream in self._pairs(members):
            edge = self.edges.get((upstream.id, downstream.id))
            if edge is None:
                edge = Edge(upstream=upstream.id, downstream=downstream.id, since=now, first=now)
                self.edges[edge.upstream, edge.downstream] = edge
                actions += self._form(edge, upstream, downstream, now)
            elif edge.state is EdgeState.BROKEN and now >= edge.not_before:
                actions += self._form(edge, upstream, downstream, now)
            elif edge.state is EdgeState.FORMING and now - edge.since > FORM_S:
                actions += self._break(edge, edge.error or f"not connected within {FORM_S:g} s", now)
            elif edge.stands and edge.attempts and now - edge.since > HEALED_S:
                edge.attempts, edge.error = 0, ""
        return actions

    def route(self, members: Mapping[str, Member], now: float) -> list[Action]:
        """Open what leads to who is ready, last stages first, and close what leads to who is not to get more.

        A gateway gets answers before it sends requests: else those who have heard only that one of its name is gone
        would keep none.
        """
        actions: list[Action] = []
        order = {stage: index for index, stage in enumerate(self._graph.order)}
        for edge in sorted(self.edges.values(), key=lambda edge: -order.get(members[edge.upstream].stage, -1)):
            if not edge.stands or not members[edge.upstream].may_send:
                continue  # who is away is told when it is back
            is_open, is_ready = edge.state is EdgeState.OPEN, members[edge.downstream].is_ready
            if is_ready and not (is_open or edge.is_unsure) and not self._hears(members[edge.upstream], now):
                continue
            if is_open != is_ready or edge.is_unsure:
                edge.state = EdgeState.OPEN if is_ready else EdgeState.CONNECTED
                edge.is_unsure = False
                actions += self._tell(edge, is_open=is_ready)
        return actions

    def is_wired(self, member: Member, members: Mapping[str, Member], now: float, asleep: Collection[str] = ()) -> bool:
        """Whether a member has the edges that it needs: all that can be, and at least one to each stage beside it.

        ``asleep``: stages that are to have no replicas; of those it needs none.
        """
        for (_, stage), edges in self._neighbors(member, members).items():
            if not edges and stage in asleep:
                continue
            if not any(edge is not None and edge.stands for edge in edges):
                return False
            for edge in edges:
                if edge is None or not (edge.stands or edge.attempts or now - edge.first > PATIENCE_S):
                    return False
        return True

    def _hears(self, member: Member, now: float) -> bool:
        """Whether all who might answer a gateway can, but for those to whom there is no way."""
        answering = [edge for edge in self.edges.values() if edge.downstream == member.id]
        return not member.is_gateway or not any(
            edge.state is EdgeState.FORMING and not edge.attempts and now - edge.first <= PATIENCE_S
            for edge in answering
        )

    def is_open(self, member: str) -> bool:
        """Whether anybody routes to it."""
        return any(edge.downstream == member and edge.state is EdgeState.OPEN for edge in self.edges.values())

    def cut_off(self, members: Mapping[str, Member]) -> dict[str, str]:
        """Return the replicas that are to be replaced because edges to them fail again and again, with the reason."""
        bad = [edge for edge in self.edges.values() if edge.attempts >= TOO_MANY and not edge.stands]
        result: dict[str, str] = {}
        for edge in bad:
            ends = sorted((edge.downstream, edge.upstream), key=lambda end: members[end].is_gateway)
            if any(members[end].retiring for end in ends):
                continue  # it is being dealt with
            worst = max(ends, key=lambda end: self._share_broken(end))
            if not members[worst].is_gateway:  # to replace those that a gateway cannot reach would not help it
                result[worst] = f"its edges fail: {edge.upstream} → {edge.downstream}: {edge.error}"
        return result

    # ---- below

    def _share_broken(self, member: str) -> float:
        own = [edge for edge in self.edges.values() if member in (edge.upstream, edge.downstream)]
        return sum(not edge.stands for edge in own) / len(own)

    def _pairs(self, members: Mapping[str, Member]) -> Iterator[tuple[Member, Member]]:
        by_stage: dict[str, list[Member]] = {}
        for member in members.values():
            by_stage.setdefault(member.stage, []).append(member)
        for stage in (*reversed(self._graph.order), GATEWAY):
            for upstream in by_stage.get(stage, ()):
                if not upstream.may_send:
                    continue
                for following in self._graph.downstream(stage):
                    for downstream in by_stage.get(following, ()):
                        if downstream.may_take:
                            yield upstream, downstream

    def _neighbors(self, member: Member, members: Mapping[str, Member]) -> dict[tuple[str, str], list[Edge | None]]:
        """Return the edges to the members that live of each stage beside this one; None for one not even tried."""
        result: dict[tuple[str, str], list[Edge | None]] = {}
        for stage in self._graph.upstream(member.stage):
            peers = [peer for peer in members.values() if peer.stage == stage and peer.may_send]
            result["from", stage] = [self.edges.get((peer.id, member.id)) for peer in peers]
        for stage in self._graph.downstream(member.stage):
            peers = [peer for peer in members.values() if peer.stage == stage and peer.may_take]
            result["to", stage] = [self.edges.get((member.id, peer.id)) for peer in peers]
        return result

    def _mark(self, edge: Edge, member: str, now: float) -> None:
        if member == edge.upstream:
            edge.upstream_connected = True
        else:
            edge.downstream_connected = True
        if edge.upstream_connected and edge.downstream_connected and edge.state is EdgeState.FORMING:
            edge.state, edge.since = EdgeState.CONNECTED, now

    def _form(self, edge: Edge, upstream: Member, downstream: Member, now: float) -> list[Action]:
        edge.state, edge.since, edge.is_unsure = EdgeState.FORMING, now, False
        edge.upstream_connected = edge.downstream_connected = False
        return [
            Send(member=member.id, message=Connect(peer=peer.id, stage=peer.stage, end=end))
            for member, peer, end in (
                (upstream, downstream, EdgeEnd.UPSTREAM),
                (downstream, upstream, EdgeEnd.DOWNSTREAM),
            )
        ]

    def _break(self, edge: Edge, error: str, now: float) -> list[Action]:
        edge.state, edge.since, edge.error = EdgeState.BROKEN, now, error
        edge.attempts += 1
        edge.not_before = now + min(MAX_RETRY_S, RETRY_S * 2 ** min(edge.attempts - 1, 16))
        edge.upstream_connected = edge.downstream_connected = False
        event = EdgeBroken(upstream=edge.upstream, downstream=edge.downstream, attempts=edge.attempts, error=error)
        return [Emit(event=event)]

    def _tell(self, edge: Edge, *, is_open: bool) -> list[Action]:
        self.epoch += 1
        record, order = (EdgeOpened, OpenEdge) if is_open else (EdgeClosed, CloseEdge)
        event = record(upstream=edge.upstream, downstream=edge.downstream, epoch=self.epoch)
        return [Send(member=edge.upstream, message=order(peer=edge.downstream, epoch=self.epoch)), Emit(event=event)]


def _key(member: str, peer: str, end: EdgeEnd) -> tuple[str, str]:
    return (member, peer) if end is EdgeEnd.UPSTREAM else (peer, member)
