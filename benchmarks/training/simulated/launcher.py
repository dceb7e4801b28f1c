"""A simulated launcher: an agent on each host, one of which serves the store; after a loss another one does.

Of parted hosts those go on that are more than half, or half with the first host. The others' workers are ended.
"""

from __future__ import annotations

from collections.abc import Callable

from multiworld.wire.messages import encode
from multiworld.wire.progress.operation import Operation
from multiworld.world.launcher.hosts_out import KEY, HostsOut
from multiworld.world.launcher.launched import Place

from .network import LEASE_S, Network
from .stores import Server
from .turns import Process, Turns

ELECT_S = 0.2
"""Mean time until another agent serves a store."""

FENCE_S = 1.0


class Link:
    """A process's link to its agent."""

    def __init__(self, launcher: Launcher, process: Process) -> None:
        self._launcher, self._process = launcher, process

    @property
    def place(self) -> Place:
        return self._launcher.place_on(self._process.host)

    def next_place(self, place: Place | None) -> Operation[None]:
        if self.place != place:
            return Operation.succeeded(None)
        operation: Operation[None] = Operation()
        self._launcher.waiting.append((self._process, place, operation))
        return operation


class Launcher:
    """``hosts``: those that have agents. ``end_workers``: called with hosts whose agent ends its workers."""

    def __init__(
        self, turns: Turns, network: Network, num_hosts: int, end_workers: Callable[[frozenset[str]], None]
    ) -> None:
        self._turns, self._network, self._end_workers = turns, network, end_workers
        self.hosts = [f"host{number}" for number in range(num_hosts)]
        self.out: frozenset[str] = frozenset()
        self.servers: dict[str, Server] = {}
        self.waiting: list[tuple[Process, Place | None, Operation[None]]] = []
        self._places: dict[str, Place] = {}
        self._generation = 0
        self._num_losing = 0
        self._serve(self.hosts[0])

    def place_on(self, host: str) -> Place:
        return self._places[host]

    @property
    def here(self) -> list[str]:
        """The hosts that have a part in the job."""
        return [each for each in self.hosts if each not in self.out]

    def cut(self, apart: frozenset[str]) -> None:
        """Part these hosts from the others."""
        self._network.cut(apart)
        number, hosts = self._network.cut_number, self.here
        sides = [frozenset(each for each in hosts if (each in apart) is is_apart) for is_apart in (True, False)]
        losing = min(sides, key=lambda side: (len(side), hosts[0] in side))

        def find_out() -> None:
            if self._network.cut_number == number:
                self._turns.after(self._turns.random.uniform(0.0, FENCE_S), lambda: self._end_workers(losing))
                self.lose(losing, FENCE_S)

        self._turns.after(LEASE_S, find_out)

    @property
    def is_losing(self) -> bool:
        """Whether hosts are about to have no part any more: that goes on also where the network is whole again."""
        return self._num_losing > 0

    def lose(self, hosts: frozenset[str], after_s: float) -> None:
        """After this time these have no part in the job any more, until they return."""
        self._num_losing += 1
        self._turns.after(after_s, lambda: self._lose(hosts))

    def _lose(self, hosts: frozenset[str]) -> None:
        self._num_losing -= 1
        self.out |= hosts
        server = self.server
        if server.process.host in self.out or not server.process.is_alive:
            self._turns.after(self._turns.some(ELECT_S), lambda: self._serve(self.here[0]))
        else:
            self._tell(server)

    def return_all(self) -> None:
        """All hosts are there again."""
        self.out = frozenset()
        if self.server.process.is_alive:
            self._tell(self.server)

    @property
    def server(self) -> Server:
        """The one that was chosen last."""
        return next(reversed(self.servers.values()))

    def _serve(self, host: str) -> None:
        for each in self.servers.values():
            self._turns.kill(each.process)
        url = f"tcp://{host}:{len(self.servers) + 1}"
        process = Process(f"store of {host}", host)
        server = self.servers[url] = Server(self._turns, self._network, process, url)
        self._tell(server)

    def _tell(self, server: Server) -> None:
        self._generation += 1
        server.put(KEY, encode(HostsOut(hosts=tuple(sorted(self.out)))))
        for rank, host in enumerate(self.hosts):
            if host not in self.out:
                self._places[host] = Place(
                    job="simulated",
                    store=server.url,
                    rank=rank,
                    world_size=len(self.hosts),
                    local_rank=0,
                    generation=self._generation,
                )
        waiting, self.waiting = self.waiting, []
        for process, place, operation in waiting:
            if process.is_alive and self._places[process.host] != place:
                self._turns.at(self._turns.now, lambda operation=operation: operation.succeed(None), process)  # type: ignore[misc]
            elif process.is_alive:
                self.waiting.append((process, place, operation))
