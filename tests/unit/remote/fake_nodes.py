"""Several nodes in this process that meet each other: the worlds between them are queues in memory, too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from multiworld.channel.base import Payload
from multiworld.errors import JoinTimeoutError, PeerDiedError, WorldBrokenError, WorldClosedError
from multiworld.remote.between.worlds import Between
from multiworld.remote.master.node import Node
from multiworld.remote.protocol.messages import Meet
from multiworld.remote.session import open_connections
from multiworld.remote.session.open_connections import Covering
from multiworld.remote.session.session import Session
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.waiting import run_in_thread
from multiworld.world.world import World

from .fake_node import PATIENCE_S, FakeNode, FakeWorld, fake_pair

Run = Callable[[list[Any]], None]


class Rounds:
    """Collectives of one world: each runs once all ranks have come to it."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._lock = threading.Lock()
        self._came: dict[int, dict[int, tuple[Any, Operation[None]]]] = {}
        self._lost: WorldBrokenError | None = None

    def come(self, number: int, rank: int, part: Any, run: Run) -> Operation[None]:
        operation: Operation[None] = Operation()
        with self._lock:
            if self._lost is not None:
                operation.fail(self._lost)
                return operation
            came = self._came.setdefault(number, {})
            came[rank] = part, operation
            if len(came) < self._world_size:
                return operation
            del self._came[number]
        run([came[each][0] for each in range(self._world_size)])
        for _, each in came.values():
            each.succeed(None)
        return operation

    def lose(self, error: WorldBrokenError) -> None:
        with self._lock:
            self._lost = error
            pending = [each for came in self._came.values() for _, each in came.values()]
        for operation in pending:
            operation.fail(error)


class FakePeerWorld:
    """One rank of a world of several nodes."""

    generation = 0

    def __init__(self, name: str, rank: int, world_size: int, rounds: Rounds) -> None:
        self.name, self.rank, self.world_size = name, rank, world_size
        self.links: dict[int, FakeWorld] = {}
        self.error: WorldBrokenError | None = None
        self.is_left = False
        self._rounds, self._num_rounds = rounds, 0
        self._ended: Operation[None] = Operation()

    # ---- copies

    def start_send(self, tensor: Tensor, dst: int, tag: int, timeout_s: float | None) -> Operation[None]:
        return self._open(dst).start_send_tensors(tensor, dst, tag, timeout_s)

    start_send_tensors = start_send

    def start_recv(self, tensor: Tensor, src: int, tag: int, timeout_s: float | None) -> Operation[None]:
        return self._open(src).start_recv(tensor, src, tag, timeout_s)

    def start_recv_bytes(self, src: int, tag: int, timeout_s: float | None) -> Operation[Payload]:
        return self._open(src).start_recv_bytes(src, tag, timeout_s)

    def wait_thread(self, operation: Operation[Any], peer: int | None, timeout_s: float | None) -> Any:
        done = threading.Event()
        operation.add_callback(lambda _: done.set())
        assert done.wait(PATIENCE_S), "another node does not come"
        return operation.result()

    # ---- collectives

    def start_all_reduce(self, tensor: Tensor, op: Any, timeout_s: float | None) -> Operation[None]:
        def run(parts: list[Tensor]) -> None:
            reduced = _reduced(parts, op)
            for each in parts:
                each.copy_(reduced)

        return self._come(tensor, run)

    def start_reduce(self, tensor: Tensor, dst: int, op: Any, timeout_s: float | None) -> Operation[None]:
        return self._come(tensor, lambda parts: parts[dst].copy_(_reduced(parts, op)))

    def start_broadcast(self, tensor: Tensor, src: int, timeout_s: float | None) -> Operation[None]:
        return self._come(tensor, lambda parts: [each.copy_(parts[src]) for each in parts])

    def start_all_gather(self, into: list[Tensor], tensor: Tensor, timeout_s: float | None) -> Operation[None]:
        def run(parts: list[Any]) -> None:
            for into, _ in parts:
                _copy(into, [each for _, each in parts])

        return self._come((into, tensor), run)

    def start_gather(self, tensor: Tensor, into: Any, dst: int, timeout_s: float | None) -> Operation[None]:
        def run(parts: list[Any]) -> None:
            _copy(parts[dst][1], [each for each, _ in parts])

        return self._come((tensor, into), run)

    def start_scatter(self, tensor: Tensor, source: Any, src: int, timeout_s: float | None) -> Operation[None]:
        return self._come((tensor, source), lambda parts: _copy([each for each, _ in parts], parts[src][1]))

    def start_reduce_scatter(
        self, output: Tensor, source: list[Tensor], op: Any, timeout_s: float | None
    ) -> Operation[None]:
        def run(parts: list[Any]) -> None:
            for rank, (into, _) in enumerate(parts):
                into.copy_(_reduced([each[rank] for _, each in parts], op))

        return self._come((output, source), run)

    def start_all_to_all(self, into: list[Tensor], source: list[Tensor], timeout_s: float | None) -> Operation[None]:
        def run(parts: list[Any]) -> None:
            for rank, (into, _) in enumerate(parts):
                _copy(into, [each[rank] for _, each in parts])

        return self._come((into, source), run)

    def _come(self, part: Any, run: Callable[[list[Any]], object]) -> Operation[None]:
        self._check_open()
        number, self._num_rounds = self._num_rounds, self._num_rounds + 1
        return self._rounds.come(number, self.rank, part, run)  # type: ignore[arg-type]

    # ---- its end

    @property
    def blocking(self) -> FakePeerWorld:
        return self

    def leave(self, timeout_s: float) -> None:
        self.is_left = True
        self._ended.succeed(None)

    def on_broken(self, call: Callable[[], None]) -> None:
        self._ended.add_callback(lambda _: call())

    def abort(self) -> None:
        if self.error is None:
            self._break(WorldBrokenError(self.name, 0, self.rank, "the rank aborted it"))
            self._ended.succeed(None)

    def lose(self, rank: int) -> None:
        """That rank has died."""
        self._break(PeerDiedError(self.name, 0, rank, "its process has ended"))

    def _break(self, error: WorldBrokenError) -> None:
        theirs = {peer: link.peer.owner for peer, link in self.links.items()}  # type: ignore[attr-defined]
        for world in (self, *theirs.values()):  # all have it before one hears of it, and aborts in turn
            if world.error is None:
                world.error = error
        self._rounds.lose(error)
        for peer, link in self.links.items():
            link.lose(error.cause)
            link.peer.lose(error.cause)
            assert peer != self.rank
            theirs[peer]._ended.succeed(None)

    def _open(self, peer: int) -> FakeWorld:
        self._check_open()
        return self.links[peer]

    def _check_open(self) -> None:
        if self.error is not None:
            raise self.error
        if self.is_left:
            raise WorldClosedError(self.name, 0)


def _reduced(parts: list[Tensor], op: Any) -> Tensor:
    stacked = torch.stack([each.clone() for each in parts])
    by_op: dict[Any, Callable[[Tensor], Tensor]] = {
        dist.ReduceOp.SUM: lambda all_: all_.sum(0),
        dist.ReduceOp.AVG: lambda all_: all_.mean(0),
        dist.ReduceOp.PRODUCT: lambda all_: all_.prod(0),
        dist.ReduceOp.MIN: lambda all_: all_.amin(0),
        dist.ReduceOp.MAX: lambda all_: all_.amax(0),
    }
    return by_op[op](stacked)


def _copy(into: list[Tensor], source: list[Tensor]) -> None:
    for there, here in zip(into, source, strict=True):
        there.copy_(here)


class FakeMeeting:
    """Where the nodes form worlds: one stands as soon as all members have come. ``names``: of all that were formed.

    ``missing``: numbers of nodes that never join.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.missing: set[int] = set()
        self.worlds: list[dict[int, FakePeerWorld]] = []
        self._lock = threading.Lock()
        self._joining: dict[str, dict[int, Operation[World]]] = {}

    def join(self, said: Meet) -> Operation[World]:
        if said.nodes[said.rank] in self.missing:
            return run_in_thread(partial(_fail, said.name), "join")  # never before the master has told all
        operation: Operation[World] = Operation()
        with self._lock:
            came = self._joining.setdefault(said.name, {})
            came[said.rank] = operation
            if len(came) < len(said.nodes):
                return operation
            self.names.append(said.name)
            worlds = _worlds_of(said)
            self.worlds.append({said.nodes[rank]: world for rank, world in worlds.items()})
        for rank, each in came.items():
            each.succeed(cast("World", worlds[rank]))
        return operation

    def lose(self, number: int) -> None:
        """A node has died: its peers notice."""
        for worlds in self.worlds:
            if number in worlds:
                worlds[number].lose(worlds[number].rank)


def _fail(name: str) -> World:
    raise JoinTimeoutError(name, "it does not come")


def _worlds_of(said: Meet) -> dict[int, FakePeerWorld]:
    size = len(said.nodes)
    rounds = Rounds(size)
    worlds = {rank: FakePeerWorld(said.name, rank, size, rounds) for rank in range(size)}
    for rank, world in worlds.items():
        for other in range(rank + 1, size):
            here, there = fake_pair()
            here.owner, there.owner = world, worlds[other]  # type: ignore[attr-defined]
            world.links[other], worlds[other].links[rank] = here, there
    return worlds


class FakeNodes(Mapping[int, Node]):
    """``fakes``: the nodes by number, from 1. A context manager; it is the open connection of this process."""

    def __init__(self, num_nodes: int) -> None:
        self.meeting = FakeMeeting()
        self.between = Between("auto")
        self.fakes = {number: FakeNode(number, join=self.meeting.join) for number in range(1, num_nodes + 1)}
        for fake in self.fakes.values():
            self.between.add(fake.session, None)
        open_connections.opened(self)

    def __getitem__(self, number: int) -> Node:
        return self.fakes[number].node

    def __iter__(self) -> Any:
        return iter(self.fakes)

    def __len__(self) -> int:
        return len(self.fakes)

    @property
    def numbers(self) -> list[int]:
        return list(self.fakes)

    def session_of(self, number: int) -> Session:
        return self.fakes[number].node.session()

    def alive_sessions(self) -> list[Session]:
        return [fake.session for fake in self.fakes.values() if not fake.session.is_over]

    def keep_recoverable(self, covering: Covering) -> None:
        raise AssertionError("no test of several nodes makes them anew")

    def lose(self, number: int) -> None:
        """A node is gone: its master and the other nodes notice."""
        fake = self.fakes[number]
        self.meeting.lose(number)
        fake.lose()
        self.between.lost(fake.session)

    def __enter__(self) -> FakeNodes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        open_connections.closed(self)
        for fake in self.fakes.values():
            fake.close()
        if kind is None:
            for fake in self.fakes.values():
                if fake.failure is not None:
                    raise fake.failure
