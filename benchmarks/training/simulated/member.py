"""A simulated world as one of its members sees it: when it breaks there, and what has arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from multiworld.errors import PeerLeftError, StaleGenerationError, WorldBrokenError, WorldClosedError, again
from multiworld.wire.progress.operation import Operation
from multiworld.world.state import WorldChange, WorldState, advance, allows

from .clock import waited
from .turns import Process

if TYPE_CHECKING:
    from .worlds import Formation, Worlds

T = TypeVar("T")
SEEN_S = 0.003
"""Mean time until a process is told that a connection was closed."""

LEAVE_S = 5.0
NEWS, DATA = "news", "data"
Tensors = list[Tensor]


@dataclass
class _Collective:
    kind: str
    operation: Operation[None]
    finish: Callable[[list[Tensors]], None]


@dataclass
class _Inbox:
    came: dict[tuple[int, int], deque[Tensors]] = field(default_factory=dict)
    wanted: dict[tuple[int, int], deque[Operation[Tensors]]] = field(default_factory=dict)
    collectives: dict[int, dict[int, tuple[str, Tensors]]] = field(default_factory=dict)
    """By number and rank: what has come of collectives."""


class Member:
    """A world as one of its members sees it: what training uses of ``World``."""

    device = torch.device("cpu")
    generation = 1

    def __init__(self, worlds: Worlds, formation: Formation, rank: int, process: Process) -> None:
        self.name, self.rank, self.world_size, self.process = formation.name, rank, formation.size, process
        self.state = WorldState.FORMING
        self.error: WorldBrokenError | None = None
        self.losses: tuple[WorldBrokenError, ...] = ()
        self._worlds, self._turns, self._network = worlds, worlds.turns, worlds.network
        self._formation = formation
        self._inbox = _Inbox()
        self._pending: dict[Operation[Any], None] = {}
        self._under_way: dict[int, _Collective] = {}
        self._num_collectives = 0
        self._leaving: dict[int, tuple[int, int]] = {}
        """By peer: which rank has left as it says, and how many collectives it has taken part in."""
        self._on_broken: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<{self.name} rank {self.rank} of {self.world_size}: {self.state.value}>"

    def others(self) -> list[Member]:
        return [each for each in self._formation.members if each is not self]

    def process_of(self, rank: int) -> Process:
        return self._formation.members[rank].process

    @property
    def blocking(self) -> Blocking:
        return Blocking(self)

    # ---- point to point

    def start_send_tensors(self, payload: Sequence[Tensor], rank: int, tag: int, _: None) -> Operation[None]:
        content = [each.detach().clone() for each in payload]
        self._check_open()
        operation: Operation[None] = self._started(Operation())
        departs = self._send(rank, lambda other: other._arrived(self.rank, tag, content))
        self._turns.at(departs, lambda: self._succeed(operation, None), self.process)
        return operation

    def start_recv_tensors(self, rank: int, tag: int, _: None) -> Operation[Tensors]:
        came = self._inbox.came.get((rank, tag))
        if came:
            return Operation.succeeded(came.popleft())
        self._check_open()
        operation: Operation[Tensors] = self._started(Operation())
        self._inbox.wanted.setdefault((rank, tag), deque()).append(operation)
        return operation

    def _arrived(self, rank: int, tag: int, content: Tensors) -> None:
        wanted = self._inbox.wanted.get((rank, tag))
        while wanted:
            operation = wanted.popleft()
            if not operation.done:
                self._succeed(operation, content)
                return
        self._inbox.came.setdefault((rank, tag), deque()).append(content)

    # ---- collectives

    def start_all_reduce(self, tensor: Tensor, _: Any, timeout_s: None) -> Operation[None]:
        def finish(rows: list[Tensors]) -> None:
            total = rows[0][0].clone()
            for row in rows[1:]:
                total += row[0]
            tensor.copy_(total)

        return self._start(f"all-reduce {tuple(tensor.shape)} {tensor.dtype}", [[tensor]] * self.world_size, finish)

    def start_all_gather(self, tensors: Tensors, tensor: Tensor, _: None) -> Operation[None]:
        def finish(rows: list[Tensors]) -> None:
            for target, row in zip(tensors, rows, strict=True):
                target.copy_(row[0])

        return self._start(f"all-gather {tuple(tensor.shape)} {tensor.dtype}", [[tensor]] * self.world_size, finish)

    def start_all_to_all(self, outputs: Tensors, inputs: Tensors, _: None) -> Operation[None]:
        def finish(rows: list[Tensors]) -> None:
            for target, row in zip(outputs, rows, strict=True):
                target.copy_(row[0])

        return self._start("all-to-all", [[each] for each in inputs], finish)

    def start_barrier(self) -> Operation[None]:
        return self._start("barrier", [[]] * self.world_size, lambda rows: None)

    def _start(self, kind: str, for_ranks: list[Tensors], finish: Callable[[list[Tensors]], None]) -> Operation[None]:
        self._check_open()
        self._num_collectives += 1
        self.process.phase = "meet" if kind == "barrier" else "facts" if kind.endswith("uint8") else "reduce"
        number = self._num_collectives
        operation: Operation[None] = self._started(Operation())
        self._under_way[number] = _Collective(kind, operation, finish)
        copies = [[each.detach().clone() for each in content] for content in for_ranks]  # before the result is there
        for rank, copy in enumerate(copies):
            if rank != self.rank:
                self._send(rank, partial(_contribute, number, self.rank, kind, copy))
        self._contributed(number, self.rank, kind, copies[self.rank])
        return operation

    def _contributed(self, number: int, rank: int, kind: str, content: Tensors) -> None:
        self._inbox.collectives.setdefault(number, {})[rank] = kind, content
        self._end_collectives()

    def _end_collectives(self) -> None:
        for number, collective in list(self._under_way.items()):
            came = self._inbox.collectives.get(number, {})
            kinds = {kind for kind, _ in came.values()}
            assert kinds <= {collective.kind}, (
                f"{self.name}: {kinds} in collective {number}, which is {collective.kind}"
            )
            if len(came) == self.world_size and not collective.operation.done:
                collective.finish([came[rank][1] for rank in range(self.world_size)])
                del self._under_way[number], self._inbox.collectives[number]
                self._succeed(collective.operation, None)
        self._look_who_left()

    # ---- waiting

    def wait_thread(self, operation: Operation[T], peer: int | None, timeout_s: None) -> T:
        return waited(self._turns, operation)

    def _check_open(self) -> None:
        self._turns.check_alive()
        if self.state is WorldState.ACTIVE:
            return
        if self.error is not None and self.state is WorldState.BROKEN:
            raise again(self.error)
        raise WorldClosedError(self.name, self.generation)

    def _started(self, operation: Operation[T]) -> Operation[T]:
        self._pending[operation] = None
        return operation

    def _succeed(self, operation: Operation[T], value: T) -> None:
        if self._pending.pop(operation, self) is None:
            operation.succeed(value)

    def _send(self, rank: int, arrive: Callable[[Member], None]) -> float:
        other = self._formation.members[rank]

        def come() -> None:
            if other.state in (WorldState.FORMING, WorldState.ACTIVE):
                arrive(other)

        return self._network.carry(self.process, other.process, (self._formation, DATA), come)

    # ---- life

    def activate(self) -> bool:
        if not allows(self.state, WorldChange.FORMED):
            return False
        self.state = advance(self.state, WorldChange.FORMED)
        return True

    def start_beside(self, name: str, rank: int, world_size: int, timeout_s: float) -> Operation[Member]:
        self._turns.check_alive()
        return self._worlds.join(self.process, self._formation.store, name, rank, world_size, timeout_s)

    def on_broken(self, call: Callable[[], None]) -> None:
        if self.state in (WorldState.FORMING, WorldState.ACTIVE):
            self._on_broken.append(call)
        else:
            call()

    def loses(self, rank: int, cause: type[WorldBrokenError]) -> None:
        """This process has lost that member."""
        error = cause(self.name, self.generation, rank, "simulated")
        if rank not in self._leaving:
            self.break_with(error)
        if self.state is not WorldState.CLOSED:
            self.losses += (error,)

    def break_with(self, error: WorldBrokenError) -> None:
        if not allows(self.state, WorldChange.BROKE):
            return
        self.error, self.state = error, advance(self.state, WorldChange.BROKE)
        if isinstance(error, PeerLeftError):
            self._say_left(error.rank)
        else:
            self._revoke(self.rank if isinstance(error, StaleGenerationError) else error.rank, type(error))
        self._end(error)

    def abort(self) -> None:
        self._turns.check_alive()
        if self.state in (WorldState.FORMING, WorldState.ACTIVE):
            self._revoke(self.rank, WorldBrokenError)
        self._close()

    def leave(self, timeout_s: float | None) -> None:
        if self.state is WorldState.ACTIVE:
            self.state = advance(self.state, WorldChange.LEFT)
            self._turns.pause(SEEN_S)  # what was sent goes out
            if self.state is WorldState.LEFT:
                self._say_left(self.rank)
        self._close()

    def _revoke(self, rank: int, cause: type[WorldBrokenError]) -> None:
        for other in self.others():
            self._tell(other, NEWS, partial(_revoked, other, rank, cause, self.rank))

    def _say_left(self, rank: int) -> None:
        for other in self.others():
            self._tell(other, DATA, partial(_left, other, self.rank, rank, self._num_collectives))

    def _tell(self, other: Member, lane: str, call: Callable[[], None]) -> None:
        self._network.carry(self.process, other.process, (self._formation, lane), call)

    def peer_left(self, peer: int, rank: int, num_collectives: int) -> None:
        """A peer has left as ``rank`` has. What it took part in may still end."""
        if peer in self._leaving or self.state is not WorldState.ACTIVE:
            return
        self._leaving[peer] = rank, num_collectives
        self._turns.after(LEAVE_S, lambda: self._break_as_left(rank), self.process)
        self._look_who_left()

    def _look_who_left(self) -> None:
        for rank, num_collectives in self._leaving.values():
            if all(number > num_collectives for number in self._under_way):
                self._turns.after(0.0, partial(self._break_as_left, rank), self.process)

    def _break_as_left(self, rank: int) -> None:
        self.break_with(PeerLeftError(self.name, self.generation, rank, "it called leave()"))

    def _close(self) -> None:
        if self.state is WorldState.CLOSED:
            return
        was_open = self.state is not WorldState.BROKEN
        self.state = advance(self.state, WorldChange.CLOSED)
        if self in self._worlds.standing:
            self._worlds.standing.remove(self)
        if was_open:
            self._end(WorldClosedError(self.name, self.generation))

    def _end(self, error: WorldBrokenError | WorldClosedError) -> None:
        pending, self._pending = list(self._pending), {}
        self._under_way.clear()
        self._inbox = _Inbox()
        for operation in pending:
            operation.fail(error)
        calls, self._on_broken = self._on_broken, []
        for call in calls:
            call()


class Blocking:
    """See ``World.blocking``."""

    def __init__(self, world: Member) -> None:
        self._world = world

    def barrier(self) -> None:
        self._world.wait_thread(self._world.start_barrier(), None, None)

    def leave(self, timeout_s: float | None = None) -> None:
        self._world.leave(timeout_s)


def _contribute(number: int, rank: int, kind: str, content: Tensors, other: Member) -> None:
    other._contributed(number, rank, kind, content)


def _revoked(world: Member, rank: int, cause: type[WorldBrokenError], by: int) -> None:
    if rank == world.rank:
        world.break_with(StaleGenerationError(world.name, world.generation, by, "simulated"))
    else:
        world.break_with(cause(world.name, world.generation, rank, "simulated"))


def _left(world: Member, peer: int, rank: int, num_collectives: int) -> None:
    world.peer_left(peer, peer if rank == world.rank else rank, num_collectives)
