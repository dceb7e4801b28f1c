"""Pipelines in one process without sockets: worlds of two that hand over at once, and members that can die."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from multiworld.channel.payload.small_message import SmallMessage
from multiworld.errors import PeerDiedError
from multiworld.serving.graph import GATEWAY, Graph, Stage
from multiworld.serving.ingress.ingress import Ingress
from multiworld.serving.member.member import place_of
from multiworld.serving.replica.replica import Replica
from multiworld.wire.memory.copying import aligned_memory
from multiworld.wire.progress.operation import Operation

SMALL_BYTES = 16 << 10  # leave as bytes, as on a stream


class Delivery:
    """Hands over what comes into an inbox, until an error comes."""

    def __init__(
        self, inbox: asyncio.Queue[Any], deliver: Callable[[Any], None], ended: Callable[[Exception], None]
    ) -> None:
        self._inbox, self._deliver, self._ended = inbox, deliver, ended
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while not isinstance(payload := await self._inbox.get(), Exception):
                self._deliver(payload)
        except Exception as error:  # the callback's: it ends the delivery, as that of a world
            payload = error
        self._ended(payload)

    def stop(self) -> None:
        self._task.cancel()


class Wire:
    """One end of a world of two; what is sent here is in the other's inbox at once."""

    def __init__(self, name: str, rank: int) -> None:
        self.name, self.rank = name, rank
        self.other: Wire | None = None
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.paired = asyncio.Event()

    def start_send_tensors(self, payload: Any, dst: int, tag: int, timeout_s: float | None) -> Operation[None]:
        if self.other is not None:
            self.other.inbox.put_nowait(payload)
        return Operation.succeeded(None)

    def send_bytes(self, packed: bytearray, dst: int, tag: int) -> bool:
        if len(packed) > SMALL_BYTES:
            return False
        if self.other is not None:
            small_message = SmallMessage(aligned_memory(len(packed)))
            small_message.memory[:] = packed
            self.other.inbox.put_nowait(small_message)
        return True

    def deliver(
        self, src: int, deliver: Callable[[Any], None], ended: Callable[[Exception], None], *, as_bytes: bool
    ) -> Delivery:
        assert as_bytes
        return Delivery(self.inbox, deliver, ended)

    def abort(self) -> None:
        if self.other is not None:
            self.other.inbox.put_nowait(PeerDiedError(self.name, 1, self.rank, "it was cut"))
            self.other.other = None
            self.other = None

    async def leave(self, timeout_s: float | None = None) -> None:
        self.abort()


class Wires:
    """Stands in for a WorldManager that all members share."""

    def __init__(self) -> None:
        self._waiting: dict[str, Wire] = {}

    async def join(
        self, name: str, *, rank: int, world_size: int, store: str, timeout_s: float, backend: str = "auto"
    ) -> Wire:
        wire = Wire(name, rank)
        other = self._waiting.pop(name, None)
        if other is None:
            self._waiting[name] = wire
            await wire.paired.wait()
        else:
            wire.other, other.other = other, wire
            other.paired.set()
        return wire


class Plant:
    """A pipeline: its replicas, by name, and one gateway. All on one event loop."""

    def __init__(self, stages: Iterable[Stage], **options: Any) -> None:
        self.graph = Graph(stages)
        self.wires = Wires()
        self.replicas: dict[str, Replica] = {}
        self._options = options
        self.ingress = Ingress(self.wires, self._place(f"{GATEWAY}-1"), **options)  # type: ignore[arg-type]

    def _place(self, member: str) -> Any:
        return place_of(member, self.graph, "nowhere", "shortest-queue")

    async def add(self, name: str, work: Callable[..., Any] | None = None, *, opened: bool = True) -> Replica:
        """Bring a replica up, connected with all there are."""
        stage = name.rsplit("-", 1)[0]
        replica = Replica(self.wires, self._place(name), work or self.graph.stages[stage].work)  # type: ignore[arg-type]
        self.replicas[name] = replica
        for other in [GATEWAY + "-1", *self.replicas]:
            other_stage = other.rsplit("-", 1)[0]
            if stage in self.graph.downstream(other_stage):
                await self.connect(other, name)
            if other_stage in self.graph.downstream(stage):
                await self.connect(name, other)
        if opened:
            self.open(name)
        return replica

    async def connect(self, upstream: str, downstream: str) -> None:
        await asyncio.gather(
            self._node(upstream).connect(downstream, downstream.rsplit("-", 1)[0], is_upstream=True),
            self._node(downstream).connect(upstream, upstream.rsplit("-", 1)[0], is_upstream=False),
        )

    def _node(self, member: str) -> Any:
        return self.ingress.node if member.startswith(GATEWAY) else self.replicas[member].node

    def open(self, name: str, *, only: str | None = None) -> None:
        """Have all senders route to it, and it to all that it is connected with."""
        for node in [self.ingress.node, *(replica.node for replica in self.replicas.values())]:
            if only is None or node.place.member == only:
                node.open(name)
        for peer, is_upstream in list(self._node(name).edges):
            if is_upstream and only is None:
                self._node(name).open(peer)

    def close(self, name: str, *, only: str | None = None) -> None:
        for node in [self.ingress.node, *(replica.node for replica in self.replicas.values())]:
            if only is None or node.place.member == only:
                node.close(name)

    def kill(self, name: str) -> None:
        """It does nothing more, and all its edges break."""
        replica = self.replicas.pop(name)
        replica._tending.cancel()
        replica.executor.close()
        replica.executor._on_done = lambda *_: None
        replica.node.abort()
        self.ingress.replica_lost()

    async def wait_idle(self) -> None:
        """Wait until no request is anywhere, and all credit has come back; AssertionError if that does not come."""
        for _ in range(300):
            if not self._busy():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"still busy: {self._busy()}")

    def _busy(self) -> list[str]:
        nodes = [self.ingress.node, *(replica.node for replica in self.replicas.values())]
        busy = [
            f"{name} has {len(replica._open)} open" for name, replica in self.replicas.items() if not replica.is_idle
        ]
        for node in nodes:
            for stage, in_flight in node.in_flight.items():
                held = {
                    name: peer["in_flight"]
                    for name, peer in in_flight.statistics().replicas.items()
                    if peer["in_flight"]
                }
                if held or len(in_flight):
                    busy.append(f"{node.place.member} has {len(in_flight)} for {stage}, held {held}")
        return busy + ([f"{len(self.ingress.requests)} open"] if len(self.ingress.requests) else [])

    async def aclose(self) -> None:
        await self.ingress.aclose()
        for replica in self.replicas.values():
            await replica.aclose()
