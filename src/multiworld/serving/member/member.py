"""A member of a deployment, replica or gateway: it carries the controller's orders out, and tells how they went."""

from __future__ import annotations

import asyncio
import logging
import os
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import torch

from ...errors import MultiworldError
from ...model.user_code import result_of, users_traceback
from ...model.weights import has_weights, put_weights, weights_of
from ...world.manager import WorldManager
from ..blueprint import load_work
from ..errors import CanaryFailedError, what_happened
from ..flow.edge import Edge
from ..flow.node import Node, Place
from ..graph import GATEWAY, Batch, Graph, Stage
from ..ingress.ingress import Ingress
from ..replica.canary import Canary, answer_canary, difference, give_canary, given_inputs, take_canary
from ..replica.executor import describe_error
from ..replica.replica import Replica
from . import orders, reports
from .control_line import Line
from .failure import Failure
from .files import MemberFiles
from .hand_over import donate_weights, take_weights
from .orders import EdgeEnd, MemberOrder
from .reports import MemberReport
from .vitals import Vitals

logger = logging.getLogger(__name__)

DRAIN_S = 60.0  # for a gateway
FIRST_STATS_S, STATS_S = 0.1, 1.0  # more often at first: whoever dies before it has told of work died young


class Member:
    """What replicas and gateways have in common. ``line`` is set before the first order comes."""

    stage: str

    def __init__(self, manager: WorldManager, place: Place, *, host: str) -> None:
        self.manager, self.place, self.host = manager, place, host
        self.line: Line | None = None
        self.state = "starting"
        self.version = 1
        self.left = asyncio.Event()
        """Set when it has been told to leave, and has."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting: dict[tuple[str, EdgeEnd], asyncio.Task[None]] = {}
        self._vitals = Vitals()
        self._start(self._tell_statistics())

    @property
    def node(self) -> Node | None:
        raise NotImplementedError

    def news(self) -> reports.ReplicaNews | reports.GatewayNews:
        """Return what the controller is told of the work every second."""
        raise NotImplementedError

    async def close(self) -> None:
        """Leave all edges."""
        raise NotImplementedError

    def hello(self) -> reports.Hello:
        """Return who this is and how it stands."""
        edges = [] if self.node is None else list(self.node.edges.values())
        return reports.Hello(
            member=self.place.member,
            stage=self.place.stage,
            pid=os.getpid(),
            host=self.host,
            state=self.state,
            version=self.version,
            edges=tuple(reports.MemberEdge(peer=edge.peer, end=_end(edge)) for edge in edges),
        )

    def obey(self, order: MemberOrder) -> None:
        """Begin to carry an order out."""
        if isinstance(order, orders.Connect):
            self._connect(order)
        elif isinstance(order, orders.OpenEdge):
            self._with_node(lambda node: node.open(order.peer))
        elif isinstance(order, orders.CloseEdge):
            self._with_node(lambda node: node.close(order.peer))
        elif isinstance(order, orders.MemberLost):
            self._lost(order.peer)
        elif isinstance(order, orders.MemberDied):
            executing = [bytes.fromhex(id_) for id_ in order.executing]
            self._with_node(lambda node: node.learn(order.peer, executing))
        elif isinstance(order, orders.Leave):
            self._start(self._leave())
        else:
            logger.warning("%s cannot carry out %r", self.place.member, order)

    def tell(self, report: MemberReport) -> None:
        if self.line is not None:
            self.line.tell(report)

    def edge_lost(self, edge: Edge, error: Exception) -> None:
        """Tell the controller; it knows whether the peer is gone or only the way to it."""
        self.tell(
            reports.EdgeFailure(peer=edge.peer, end=_end(edge), error=type(error).__name__, text=what_happened(error))
        )

    def stop(self) -> None:
        """Cancel what is under way."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("%s could not carry an order out", self.place.member, exc_info=task.exception())

    def _with_node(self, call: Callable[[Node], None]) -> None:
        if self.node is not None:
            call(self.node)

    def _connect(self, order: orders.Connect) -> None:
        key = (order.peer, order.end)
        if key in self._connecting and not self._connecting[key].done():
            return  # told again, by a controller that has come back
        task = self._start(self._connect_to(order))
        self._connecting[key] = task
        task.add_done_callback(partial(self._has_connected, key))

    def _has_connected(self, key: tuple[str, EdgeEnd], task: asyncio.Task[None]) -> None:
        if self._connecting.get(key) is task:
            del self._connecting[key]

    async def _connect_to(self, order: orders.Connect) -> None:
        peer, end, node = order.peer, order.end, self.node
        if node is None:
            self.tell(reports.ConnectFailed(peer=peer, end=end, error="it has not loaded its work yet"))
            return
        try:
            await node.connect(peer, order.stage, is_upstream=end is EdgeEnd.UPSTREAM)
        except MultiworldError as error:
            self.tell(reports.ConnectFailed(peer=peer, end=end, error=what_happened(error)))
        else:
            self.tell(reports.Connected(peer=peer, end=end))

    def _lost(self, peer: str) -> None:
        for key in [key for key in self._connecting if key[0] == peer]:
            self._connecting.pop(key).cancel()
        self._with_node(lambda node: node.lost(peer))

    async def _leave(self) -> None:
        self.state = "leaving"
        await self.close()
        self.left.set()

    async def _tell_statistics(self) -> None:
        pause_s = FIRST_STATS_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, STATS_S)
            if self._vitals.is_due:
                await asyncio.to_thread(self._vitals.look)
            self.tell(self.news())


class ReplicaMember(Member):
    """One replica of one stage."""

    def __init__(self, manager: WorldManager, place: Place, *, host: str, files: MemberFiles) -> None:
        super().__init__(manager, place, host=host)
        self._files = files
        self._replica: Replica | None = None
        self._batch: Batch | None = None
        self._loading: asyncio.Task[None] | None = None
        self._tried_with: tuple[str, str] = ("", "")
        """Who was asked for a canary and had none, and whose it has passed."""

    def obey(self, order: MemberOrder) -> None:
        if isinstance(order, orders.Load):
            self._load_anew(order)
        elif isinstance(order, orders.GiveWeights):
            self._start(self._donate(order.to))
        elif isinstance(order, orders.GiveCanary):
            self._start(self._give_canary(order.to))
        elif isinstance(order, orders.Drain):
            self._start(self._drain())
        elif isinstance(order, orders.Tune):
            self._tune(order)
        elif isinstance(order, orders.KeepFor):
            self._with_node(lambda node: node.only(order.there))
        elif isinstance(order, orders.TellWhere):
            self._tell_where(order)
        else:
            super().obey(order)

    @property
    def node(self) -> Node | None:
        return None if self._replica is None else self._replica.node

    def news(self) -> reports.ReplicaNews:
        counts = reports.ReplicaCounts() if self._replica is None else self._replica.statistics()
        failure = None if self._replica is None else self._replica.failures.last
        return reports.ReplicaNews(**vars(counts), **vars(self._vitals.read()), failure=_shortened(failure))

    async def close(self) -> None:
        if self._replica is not None:
            await self._replica.aclose()

    def _load_anew(self, order: orders.Load) -> None:
        """Another donor, say: what was under way is given up."""
        if self._replica is not None:  # told again, by a controller that has come back
            self._tell_loaded("before")
            return
        if self._loading is not None:
            self._loading.cancel()
        self._loading = self._start(self._load(order))

    def _tell_loaded(self, source: str, took_s: float = 0.0) -> None:
        asked, passed = self._tried_with
        self.tell(reports.Loaded(version=self.version, took_s=took_s, source=source, asked=asked, canary=passed))

    async def _load(self, order: orders.Load) -> None:
        began = asyncio.get_running_loop().time()
        stage, giver = self.place.graph.stages[self.place.stage], order.canary
        try:
            canary = None
            if giver is not None:
                canary = await take_canary(self.manager, giver, self.place.member, self.place.store, self.place.backend)
        except MultiworldError as error:
            self.tell(reports.CanaryMissed(giver=giver or "", error=what_happened(error)))
            return
        is_handing_over = False
        try:
            torch.device(stage.device)  # raises if there is none of that kind
            torch.manual_seed(zlib.crc32(self.place.stage.encode()))  # else replicas that start together would differ
            with self._files.place() as folder:
                await asyncio.to_thread(self._files.fetch_work, stage.name, folder)
                work = await result_of(load_work(stage, folder))
            is_handing_over = order.donor is not None
            weights, source = await self._fetch_weights(order)
            is_handing_over = False
            if weights is not None:
                put_weights(work, weights)
            kept = await self._try_out(stage, work, canary)
            replica = Replica(self.manager, self.place, work, on_edge_lost=self.edge_lost)
        except Exception as error:  # the user's code may raise anything; the controller decides what to do
            self.tell(
                reports.LoadFailure(
                    donor=order.donor,
                    error=describe_error(error),
                    traceback=users_traceback(error),
                    hand_over_failed=is_handing_over,
                )
            )
            return
        self._replica = replica
        if self._batch is not None:
            self._replica.tune(self._batch)
        self.version, self.state = order.version, "loaded"
        self._replica.version = self.version
        self._replica.canary.kept = kept
        took_s = asyncio.get_running_loop().time() - began
        if giver is not None:
            self._tried_with = (giver, "") if canary is None else ("", giver)
        self._tell_loaded(source, took_s)

    async def _try_out(self, stage: Stage, work: Callable[..., Any], canary: Canary | None) -> Canary | None:
        """Return the canary with what this work answers; None if there is none. Raises CanaryFailedError."""
        inputs = given_inputs(stage) if canary is None else canary.inputs
        if not inputs:
            return None
        output = await answer_canary(stage, work, inputs)
        different = "" if canary is None else difference(canary.output, output)
        if different:
            raise CanaryFailedError(stage.name, different)
        return Canary(inputs, output)

    async def _give_canary(self, to: str) -> None:
        replica = self._replica
        if replica is None:
            return
        try:
            await give_canary(
                self.manager, self.place.member, to, replica.canary.kept, self.place.store, self.place.backend
            )
        except MultiworldError as error:
            logger.warning("%s could not give a canary to %s: %s", self.place.member, to, what_happened(error))

    async def _fetch_weights(self, order: orders.Load) -> tuple[Mapping[str, Any] | None, str]:
        """Return the weights, None for those that the work begins with, and where they are from."""
        path = order.weights
        if order.donor is not None:
            weights = await take_weights(
                self.manager, order.donor, self.place.member, self.place.store, self.place.backend
            )
            return weights or None, "donor"
        if path:
            return torch.load(path, weights_only=True, map_location="cpu"), "file"
        return None, "init"

    async def _donate(self, to: str) -> None:
        replica = self._replica
        if replica is None:
            return
        try:
            weights = weights_of(replica.executor.work) if has_weights(replica.executor.work) else {}
            await donate_weights(self.manager, self.place.member, to, weights, self.place.store, self.place.backend)
        except MultiworldError as error:
            logger.warning("%s could not give its weights to %s: %s", self.place.member, to, what_happened(error))

    async def _drain(self) -> None:
        self.state = "draining"
        if self._replica is not None:
            await self._replica.wait_idle()
        self.tell(reports.Drained())

    def _tell_where(self, order: orders.TellWhere) -> None:
        """A gateway asks, whose requests will soon have taken too long."""
        known = {} if self._replica is None else self._replica.whereabouts(map(bytes.fromhex, order.ids))
        if known:
            self.tell(reports.At(asker=order.asker, at={id_.hex(): place for id_, place in known.items()}))

    def _tune(self, order: orders.Tune) -> None:
        self._batch = Batch(max_size=order.batch_max_size, max_wait_s=order.batch_max_wait_s)
        if self._replica is not None:
            self._replica.tune(self._batch)


class GatewayMember(Member):
    """A gateway: its ingress takes requests as soon as its edges are open."""

    def __init__(self, manager: WorldManager, place: Place, ingress: Ingress, *, host: str) -> None:
        super().__init__(manager, place, host=host)
        self.ingress = ingress
        ingress.on_edge_lost = self.edge_lost
        ingress.ask_where = lambda ids: self.tell(reports.AskWhere(ids=tuple(id_.hex() for id_ in ids)))
        self.state = "loaded"
        self.ready = False
        self.why = "the controller has not said yet that all stages are up"
        self.drain_first: Callable[[float], Awaitable[object]] | None = None
        """What asks the ingress again and again until it has done with what it has begun."""
        self.on_ending: Callable[[], None] | None = None
        """Called when it begins to answer what is open, and to end after that."""
        self.metrics: Callable[[], list[Any]] | None = None
        """What returns its metrics, as JSON; the controller tells the other gateways."""

    def obey(self, order: MemberOrder) -> None:
        if isinstance(order, orders.Readiness):
            self._hear_readiness(order)
        elif isinstance(order, orders.Whereabouts):
            self.ingress.whereabouts.told({bytes.fromhex(id_): place for id_, place in order.at.items()})
        elif isinstance(order, orders.Drain):
            self._start(self._drain())
        else:
            super().obey(order)

    @property
    def node(self) -> Node | None:
        return self.ingress.node

    def news(self) -> reports.GatewayNews:
        return reports.GatewayNews(
            **vars(self.ingress.statistics()),
            **vars(self._vitals.read()),
            failure=_shortened(self.ingress.last_failure),
            metrics=None if self.metrics is None else tuple(self.metrics()),
        )

    async def close(self) -> None:
        await self.ingress.aclose()

    def _lost(self, peer: str) -> None:
        super()._lost(peer)
        if peer.rpartition("-")[0] != GATEWAY:
            self.ingress.replica_lost()

    def _hear_readiness(self, order: orders.Readiness) -> None:
        if self.state == "draining":
            return
        self.ready, self.why = order.ready, order.why

    async def _drain(self) -> None:
        self.state = "draining"
        self.ready, self.why = False, "this gateway stops"
        if self.on_ending is not None:
            self.on_ending()
        until = asyncio.get_running_loop().time() + DRAIN_S
        if self.drain_first is not None:
            await self.drain_first(DRAIN_S)
        await self.ingress.drain(max(0.0, until - asyncio.get_running_loop().time()))
        self.tell(reports.Drained())


def place_of(member: str, graph: Graph, store: str, policy: str, backend: str = "auto") -> Place:
    """Return where a member stands, whose name tells its stage."""
    stage = member.rsplit("-", 1)[0]
    return Place(member=member, stage=stage, graph=graph, store=store, policy=policy, backend=backend)


def _shortened(failure: Failure | None) -> Failure | None:
    return None if failure is None else failure.shortened()


def _end(edge: Edge) -> EdgeEnd:
    return EdgeEnd.UPSTREAM if edge.is_upstream else EdgeEnd.DOWNSTREAM
