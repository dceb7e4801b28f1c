"""A network in memory for collectives: one thread, and whatever may happen next is chosen by a seed.

It is as mean as the rules of ``Port`` allow: sent memory is read as late as possible, received memory holds garbage
until the message is there, arithmetic runs whenever it likes.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from multiworld.channel.collectives import SharedWork
from multiworld.channel.collectives.doubling import dissemination_barrier
from multiworld.wire.progress.operation import Operation, drive

Steps = Coroutine[Operation[Any], None, None]
GARBAGE = 0x5A


@dataclass(frozen=True)
class Each:
    """An argument that differs between ranks."""

    values: Sequence[object]


def each(values: Sequence[object]) -> Each:
    return Each(values)


def only(root: int, value: object, size: int) -> Each:
    """Return an argument that only one rank gives."""
    return Each([value if rank == root else None for rank in range(size)])


class FakeFailure(Exception):
    """What a message fails with on request."""


@dataclass
class FakeRoute:
    """What is under way from one rank to another. ``sent`` waits in the sender's memory, ``taken`` in the network's."""

    sent: deque[tuple[Tensor, Operation[None]]] = field(default_factory=deque)
    taken: deque[Tensor] = field(default_factory=deque)
    receives: deque[tuple[Tensor, Operation[None]]] = field(default_factory=deque)

    def is_empty(self) -> bool:
        return not (self.sent or self.taken or self.receives)


class FakeNetwork:
    """Connects ``size`` ranks. ``seed`` None: in the order of the calls.

    ``rendezvous``: a send is done only when its message is received; otherwise the network may take it before.
    ``shares``: whether the ranks share memory.
    """

    def __init__(self, size: int, *, seed: int | None = None, rendezvous: bool = False, shares: bool = True) -> None:
        self.size, self.rendezvous = size, rendezvous
        self.num_messages = 0
        self.fail_message: int | None = None
        self._random = None if seed is None else random.Random(seed)
        self._routes: dict[tuple[int, int], FakeRoute] = defaultdict(FakeRoute)
        self._work: list[tuple[Callable[[], None], Operation[None]]] = []
        self.ports = [FakePort(self, rank) for rank in range(size)]
        self.areas = FakeAreas(size) if shares else None

    def run(self, call: Callable[..., Steps], *args: object, **options: object) -> None:
        """Run ``call(port, *args)`` on all ranks to the end: all must succeed, and nothing be left."""
        operations = self.start(call, *args, **options)
        stuck = [rank for rank, operation in enumerate(operations) if not operation.done]
        assert not stuck, f"ranks {stuck} wait for ever"
        for operation in operations:
            operation.result()
        left = [pair for pair, route in self._routes.items() if not route.is_empty()]
        assert not left, f"messages or receives left between {left}"

    def start(self, call: Callable[..., Steps], *args: object, **options: object) -> list[Operation[None]]:
        """Run ``call(port, *args)`` on all ranks until nothing more can happen; of an ``Each``, each gets its own."""
        order = list(self.ports)
        if self._random is not None:
            self._random.shuffle(order)
        started: dict[int, Operation[None]] = {}
        for port in order:
            own = [arg.values[port.rank] if isinstance(arg, Each) else arg for arg in args]
            started[port.rank] = drive(call(port, *own, **options))
        while events := self._events():
            event = events[0] if self._random is None else self._random.choice(events)
            event()
        return [started[rank] for rank in range(self.size)]

    def route(self, src: int, dst: int) -> FakeRoute:
        return self._routes[src, dst]

    def add_work(self, work: Callable[[], None], operation: Operation[None]) -> None:
        self._work.append((work, operation))

    def _events(self) -> list[Callable[[], None]]:
        events: list[Callable[[], None]] = [lambda item=item: self._compute(item) for item in self._work]  # type: ignore[misc]
        for route in self._routes.values():
            if route.receives and (route.sent or route.taken):
                events.append(lambda route=route: self._deliver(route))  # type: ignore[misc]
            if route.sent and not self.rendezvous:
                events.append(lambda route=route: self._take(route))  # type: ignore[misc]
        return events

    def _compute(self, item: tuple[Callable[[], None], Operation[None]]) -> None:
        self._work.remove(item)
        work, operation = item
        work()
        operation.succeed(None)

    def _take(self, route: FakeRoute) -> None:
        source, operation = route.sent.popleft()
        route.taken.append(source.clone())
        operation.succeed(None)

    def _deliver(self, route: FakeRoute) -> None:
        target, received = route.receives.popleft()
        source, sent = (route.taken.popleft(), None) if route.taken else route.sent.popleft()
        self.num_messages += 1
        if self.num_messages - 1 == self.fail_message:
            received.fail(FakeFailure())
            return
        assert (source.dtype, source.shape) == (target.dtype, target.shape), "a receive that does not fit its message"
        with torch.inference_mode():
            target.copy_(source)
        if sent is not None:
            sent.succeed(None)
        received.succeed(None)


class FakeAreas:
    """Memory that all ranks share, small enough that the tests need several pieces; it begins as garbage."""

    def __init__(self, size: int) -> None:
        self.half_bytes = 64 * max(size, 3)
        self.halves = [0] * size  # that each rank fills
        self.memory = torch.full((size, 2, self.half_bytes), GARBAGE, dtype=torch.uint8)


class FakeSpace:
    """The shared memory as one call of one rank sees it; the ranks meet by messages."""

    def __init__(self, port: FakePort, areas: FakeAreas) -> None:
        self.rank, self.size, self.half_bytes = port.rank, port.size, areas.half_bytes
        self._port, self._areas = port, areas
        self._halves = list(areas.halves)

    def begin_piece(self) -> None:
        self._areas.halves[self.rank] = self._halves[self.rank] = 1 - self._areas.halves[self.rank]

    async def show(self) -> None:
        half = self._halves[self.rank]
        await self.meet()
        self._halves = [half] * self.size

    async def meet(self) -> None:
        await dissemination_barrier(self._port)

    def area(self, rank: int, like: Tensor, offset_bytes: int = 0) -> Tensor:
        assert offset_bytes % 64 == 0, f"an offset of {offset_bytes}"
        assert offset_bytes + like.nbytes <= self.half_bytes, "a piece that is larger than its half"
        return self._areas.memory[rank, self._halves[rank], offset_bytes : offset_bytes + like.nbytes].view(like.dtype)


class FakePort:
    """One rank's side of one collective call."""

    def __init__(self, network: FakeNetwork, rank: int) -> None:
        self._network = network
        self.rank, self.size = rank, network.size
        self.received_into: list[Tensor] = []

    def send(self, tensor: Tensor, dst: int) -> Operation[None]:
        self._check(tensor, dst)
        operation: Operation[None] = Operation()
        self._network.route(self.rank, dst).sent.append((tensor, operation))
        return operation

    def recv(self, tensor: Tensor, src: int) -> Operation[None]:
        self._check(tensor, src)
        self.received_into.append(tensor)
        with torch.inference_mode():
            tensor.view(torch.uint8).fill_(GARBAGE)
        operation: Operation[None] = Operation()
        self._network.route(src, self.rank).receives.append((tensor, operation))
        return operation

    async def share(self, work: SharedWork, size_bytes: int) -> bool:
        areas = self._network.areas
        if areas is not None:
            await work(FakeSpace(self, areas))
        return areas is not None

    def compute(self, work: Callable[[], None], size_bytes: int) -> Operation[None]:
        operation: Operation[None] = Operation()
        if size_bytes == 0:
            work()
            operation.succeed(None)
        else:
            self._network.add_work(work, operation)
        return operation

    def temporary_bytes(self, *own: Tensor) -> int:
        """Return the bytes of all memory that was received into and is none of the caller's tensors."""
        owned = {tensor.untyped_storage().data_ptr() for tensor in own}
        storages = [tensor.untyped_storage() for tensor in self.received_into]
        return sum({s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in owned}.values())

    def _check(self, tensor: Tensor, peer: int) -> None:
        assert tensor.is_contiguous(), "a tensor that is not contiguous"
        assert tensor.device.type == "cpu", "a tensor that is not on the CPU"
        assert 0 <= peer < self.size, f"rank {peer} of {self.size}"
        assert peer != self.rank, "a message to itself"


class FakeLender:
    """The stream to a peer that takes descriptors, or cannot. They are whoever's that looks at ``lent``."""

    def __init__(self, *, can: bool = True) -> None:
        self.can = can
        self.lent: list[int] = []
        self.said: list[bool] = []

    def can_lend(self) -> bool:
        return self.can

    def lend(self, descriptor: int) -> None:
        self.lent.append(descriptor)

    def say_mapped(self, *, by_all: bool) -> None:
        self.said.append(by_all)

    def say_unused(self, seq: int) -> None: ...
