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
from ..ingress.front import Front
from ..replica.canary import Canary, answer_canary, difference, give_canary, given_inputs, take_canary
from ..replica.executor import describe_error
from ..replica.replica import Replica
from .control_line import Line
from .failure import Failure
from .files import MemberFiles
from .hand_over import donate_weights, take_weights
from .messages import Message
from .vitals import Vitals

__all__ = ["GatewayMember", "Member", "ReplicaMember", "place_of"]

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
        self._connecting: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._vitals = Vitals()
        self._orders: dict[str, Callable[[Message], object]] = {
            "connect": self._connect,
            "open": lambda order: self._with_node(lambda node: node.open(order["peer"])),
            "close": lambda order: self._with_node(lambda node: node.close(order["peer"])),
            "lost": self._lost,
            "died": self._learn,
            "leave": lambda order: self._start(self._leave()),
        }
        self._start(self._tell_statistics())

    @property
    def node(self) -> Node | None:
        raise NotImplementedError

    def statistics(self) -> dict[str, Any]:
        raise NotImplementedError

    def told(self) -> dict[str, Any]:
        """Return what the controller is told of the work every second."""
        failure = self.last_failure
        return {**self.statistics(), "failure": None if failure is None else failure.to_json()}

    @property
    def last_failure(self) -> Failure | None:
        raise NotImplementedError

    async def close(self) -> None:
        """Leave all edges."""
        raise NotImplementedError

    def hello(self) -> Message:
        """Return who this is and how it stands."""
        edges = [] if self.node is None else list(self.node.edges.values())
        return {
            "event": "hello",
            "member": self.place.member,
            "stage": self.place.stage,
            "pid": os.getpid(),
            "host": self.host,
            "state": self.state,
            "version": self.version,
            "edges": [{"peer": edge.peer, "as": _role(edge.is_upstream)} for edge in edges],
        }

    def obey(self, order: Message) -> None:
        """Begin to carry an order out."""
        carry_out = self._orders.get(str(order.get("do")))
        if carry_out is None:
            logger.warning("%s does not know the order %r", self.place.member, order.get("do"))
            return
        carry_out(order)

    def tell(self, message: Message) -> None:
        if self.line is not None:
            self.line.tell(message)

    def edge_lost(self, edge: Edge, error: Exception) -> None:
        """Tell the controller; it knows whether the peer is gone or only the way to it."""
        self.tell(
            {
                "event": "edge_broken",
                "peer": edge.peer,
                "as": _role(edge.is_upstream),
                "error": type(error).__name__,
                "text": what_happened(error),
            }
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

    def _connect(self, order: Message) -> None:
        key = (order["peer"], order["as"])
        if key in self._connecting and not self._connecting[key].done():
            return  # told again, by a controller that has come back
        task = self._start(self._connect_to(order["peer"], order["stage"], order["as"]))
        self._connecting[key] = task
        task.add_done_callback(partial(self._has_connected, key))

    def _has_connected(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._connecting.get(key) is task:
            del self._connecting[key]

    async def _connect_to(self, peer: str, stage: str, role: str) -> None:
        news = {"peer": peer, "as": role}
        node = self.node
        if node is None:
            self.tell({"event": "connect_failed", **news, "error": "it has not loaded its work yet"})
            return
        try:
            await node.connect(peer, stage, is_upstream=role == "upstream")
        except MultiworldError as error:
            self.tell({"event": "connect_failed", **news, "error": what_happened(error)})
        else:
            self.tell({"event": "connected", **news})

    def _lost(self, order: Message) -> None:
        for key in [key for key in self._connecting if key[0] == order["peer"]]:
            self._connecting.pop(key).cancel()
        self._with_node(lambda node: node.lost(order["peer"]))

    def _learn(self, order: Message) -> None:
        executing = [bytes.fromhex(id_) for id_ in order["executing"]]
        self._with_node(lambda node: node.learn(order["peer"], executing))

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
            self.tell({"event": "stats", **self.told(), **self._vitals.read()})


class ReplicaMember(Member):
    """One replica of one stage."""

    def __init__(self, manager: WorldManager, place: Place, *, host: str, files: MemberFiles) -> None:
        super().__init__(manager, place, host=host)
        self._files = files
        self._replica: Replica | None = None
        self._batch: Batch | None = None
        self._loading: asyncio.Task[None] | None = None
        self._tried_with: dict[str, str] = {}
        """Whose canary it has passed, or who was asked for one and had none."""
        self._orders |= {
            "load": self._load_anew,
            "donate": lambda order: self._start(self._donate(order["to"])),
            "drain": lambda order: self._start(self._drain()),
            "tune": self._tune,
            "gateways": self._keep_for,
            "where": self._tell_where,
            "canary": lambda order: self._start(self._give_canary(order["to"])),
        }

    @property
    def node(self) -> Node | None:
        return None if self._replica is None else self._replica.node

    def statistics(self) -> dict[str, Any]:
        return {} if self._replica is None else self._replica.statistics()

    @property
    def last_failure(self) -> Failure | None:
        return None if self._replica is None else self._replica.failures.last

    async def close(self) -> None:
        if self._replica is not None:
            await self._replica.aclose()

    def _load_anew(self, order: Message) -> None:
        """Another donor, say: what was under way is given up."""
        if self._replica is not None:  # told again, by a controller that has come back
            loaded = {"event": "loaded", "version": self.version, "took_s": 0.0, "from": "before"}
            self.tell({**loaded, **self._tried_with})
            return
        if self._loading is not None:
            self._loading.cancel()
        self._loading = self._start(self._load(order))

    async def _load(self, order: Message) -> None:
        began = asyncio.get_running_loop().time()
        stage, giver = self.place.graph.stages[self.place.stage], order.get("canary")
        try:
            canary = None
            if giver is not None:
                canary = await take_canary(self.manager, giver, self.place.member, self.place.store, self.place.backend)
        except MultiworldError as error:
            self.tell({"event": "canary_missed", "giver": giver, "error": what_happened(error)})
            return
        is_handing_over = False
        try:
            torch.device(stage.device)  # raises if there is none of that kind
            torch.manual_seed(zlib.crc32(self.place.stage.encode()))  # else replicas that start together would differ
            with self._files.place() as folder:
                await asyncio.to_thread(self._files.fetch_work, stage.name, folder)
                work = await result_of(load_work(stage, folder))
            is_handing_over = order.get("donor") is not None
            weights, source = await self._fetch_weights(order)
            is_handing_over = False
            if weights is not None:
                put_weights(work, weights)
            kept = await self._try_out(stage, work, canary)
            replica = Replica(self.manager, self.place, work, on_edge_lost=self.edge_lost)
        except Exception as error:  # the user's code may raise anything; the controller decides what to do
            self.tell(
                {
                    "event": "load_failed",
                    "donor": order.get("donor"),
                    "error": describe_error(error),
                    "traceback": users_traceback(error),
                    "hand_over_failed": is_handing_over,
                }
            )
            return
        self._replica = replica
        if self._batch is not None:
            self._replica.tune(self._batch)
        self.version, self.state = order["version"], "loaded"
        self._replica.version = self.version
        self._replica.canary.kept = kept
        took_s = asyncio.get_running_loop().time() - began
        if giver is not None:
            self._tried_with = {"asked" if canary is None else "canary": giver}
        self.tell({"event": "loaded", "version": self.version, "took_s": took_s, "from": source, **self._tried_with})

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

    async def _fetch_weights(self, order: Message) -> tuple[Mapping[str, Any] | None, str]:
        """Return the weights, None for those that the work begins with, and where they are from."""
        donor, path = order.get("donor"), order.get("weights")
        if donor is not None:
            weights = await take_weights(self.manager, donor, self.place.member, self.place.store, self.place.backend)
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
        self.tell({"event": "drained"})

    def _tell_where(self, order: Message) -> None:
        """A gateway asks, whose requests will soon have taken too long."""
        known = {} if self._replica is None else self._replica.whereabouts(map(bytes.fromhex, order["ids"]))
        if known:
            at = {id_.hex(): place for id_, place in known.items()}
            self.tell({"event": "at", "asker": order["asker"], "at": at})

    def _keep_for(self, order: Message) -> None:
        self._with_node(lambda node: node.only(order["there"]))

    def _tune(self, order: Message) -> None:
        self._batch = Batch(max_size=order["batch_max_size"], max_wait_s=order["batch_max_wait_s"])
        if self._replica is not None:
            self._replica.tune(self._batch)


class GatewayMember(Member):
    """A gateway: its front takes requests as soon as its edges are open."""

    def __init__(self, manager: WorldManager, place: Place, front: Front, *, host: str) -> None:
        super().__init__(manager, place, host=host)
        self.front = front
        front.on_edge_lost = self.edge_lost
        front.ask_where = lambda ids: self.tell({"event": "where", "ids": [id_.hex() for id_ in ids]})
        self.state = "loaded"
        self.ready = False
        self.why = "the controller has not said yet that all stages are up"
        self.drain_first: Callable[[float], Awaitable[object]] | None = None
        """What asks the front again and again until it has done with what it has begun."""
        self.on_ending: Callable[[], None] | None = None
        """Called when it begins to answer what is open, and to end after that."""
        self.metrics: Callable[[], list[Any]] | None = None
        """What returns its metrics, as JSON; the controller tells the other gateways."""
        self._orders |= {
            "load": lambda order: self.tell({"event": "loaded", "version": 1, "took_s": 0.0, "from": "init"}),
            "readiness": self._hear_readiness,
            "at": lambda order: front.told_where(
                {bytes.fromhex(id_): (place[0], place[1]) for id_, place in order["at"].items()}
            ),
            "drain": lambda order: self._start(self._drain()),
        }

    @property
    def node(self) -> Node | None:
        return self.front.node

    def statistics(self) -> dict[str, Any]:
        return self.front.statistics()

    @property
    def last_failure(self) -> Failure | None:
        return self.front.last_failure

    def told(self) -> dict[str, Any]:
        told = super().told()
        return told if self.metrics is None else {**told, "metrics": self.metrics()}

    async def close(self) -> None:
        await self.front.aclose()

    def _lost(self, order: Message) -> None:
        super()._lost(order)
        if order["peer"].rpartition("-")[0] != GATEWAY:
            self.front.replica_lost()

    def _hear_readiness(self, order: Message) -> None:
        if self.state == "draining":
            return
        self.ready, self.why = bool(order["ready"]), str(order.get("why", ""))

    async def _drain(self) -> None:
        self.state = "draining"
        self.ready, self.why = False, "this gateway stops"
        if self.on_ending is not None:
            self.on_ending()
        until = asyncio.get_running_loop().time() + DRAIN_S
        if self.drain_first is not None:
            await self.drain_first(DRAIN_S)
        await self.front.drain(max(0.0, until - asyncio.get_running_loop().time()))
        self.tell({"event": "drained"})


def place_of(member: str, graph: Graph, store: str, policy: str, backend: str = "auto") -> Place:
    """Return where a member stands, whose name tells its stage."""
    stage = member.rsplit("-", 1)[0]
    return Place(member=member, stage=stage, graph=graph, store=store, policy=policy, backend=backend)


def _role(is_upstream: bool) -> str:
    return "upstream" if is_upstream else "downstream"
