"""MPI in memory: every process of a job is a ``FakeTransport``. It reads what is sent as late as MPI may."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from dataclasses import dataclass, field

from multiworld.channel.mpi.pump import Found


class FakeRequest:
    """Open until ``end``; ``failure`` is what ``Test`` raises."""

    def __init__(self) -> None:
        self.done = False
        self.failure: Exception | None = None

    def Test(self) -> bool:  # noqa: N802 - as in mpi4py
        if self.failure is not None:
            raise self.failure
        return self.done


@dataclass
class FakeMessage:
    """``data`` stays in the sender's memory until it is received."""

    data: memoryview
    source: int
    request: FakeRequest
    network: FakeNetwork

    def receive(self, target: memoryview) -> FakeRequest:
        receiving = FakeRequest()
        if self.network.receive_failure is not None:
            receiving.failure = self.network.receive_failure
        elif not self.network.stuck:
            target[:] = self.data
            receiving.done = True
            self.request.done = True
        return receiving


@dataclass
class FakeNetwork:
    """What is under way between the processes of a job."""

    size: int = 1
    allowed: int | None = None
    """How many messages can still be found; None: all."""
    stuck: bool = False
    """A message that is found never comes to its end, as if its sender were gone."""
    send_failure: Exception | None = None
    receive_failure: Exception | None = None
    num_looks: int = 0
    num_found: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.queues: list[deque[FakeMessage]] = [deque() for _ in range(self.size)]
        self.transports = [FakeTransport(self, rank) for rank in range(self.size)]

    def allow(self, number: int | None) -> None:
        with self.lock:
            self.allowed = number

    def inject(self, data: bytes, source: int, destination: int) -> FakeRequest:
        """Send something that is none of ours, or of an older time."""
        request = FakeRequest()
        with self.lock:
            self.queues[destination].append(FakeMessage(memoryview(data), source, request, self))
        return request


class FakeTransport:
    def __init__(self, network: FakeNetwork, rank: int) -> None:
        self._network, self._rank = network, rank
        self._numbers = itertools.count()

    def send(self, message: memoryview, destination: int) -> FakeRequest:
        if self._network.send_failure is not None:
            raise self._network.send_failure
        request = FakeRequest()
        with self._network.lock:
            self._network.queues[destination].append(FakeMessage(message, self._rank, request, self._network))
        return request

    def find(self) -> Found | None:
        network = self._network
        with network.lock:
            network.num_looks += 1
            if network.allowed == 0 or not network.queues[self._rank]:
                return None
            if network.allowed is not None:
                network.allowed -= 1
            network.num_found += 1
            message = network.queues[self._rank].popleft()
        return Found(message, len(message.data), message.source)
