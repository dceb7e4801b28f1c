"""Messages between simulated processes: each pair has an order, what a dead process has not sent yet is lost."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from .turns import Process, Turns

SEND_S, TRAVEL_S = 0.0001, 0.0003
"""Mean times of a message: until it has left its process, and until it is at the other one."""

LEASE_S = 1.0
"""A process that was not heard for so long is lost."""


@dataclass
class _Lane:
    departs: float = 0.0
    arrives: float = 0.0
    held: list[Callable[[], None]] = field(default_factory=list)


class Network:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._lanes: dict[Hashable, _Lane] = {}
        self.apart: frozenset[str] = frozenset()
        self.cut_number = 0
        """How often it was cut or healed."""

    @property
    def is_cut(self) -> bool:
        return bool(self.apart)

    def cut(self, hosts: frozenset[str]) -> None:
        """These hosts reach each other, and no others."""
        self.heal()
        self.apart = hosts
        self.cut_number += 1

    def heal(self) -> None:
        self.apart = frozenset()
        self.cut_number += 1
        for lane in self._lanes.values():
            held, lane.held = lane.held, []
            for come in held:
                self._turns.after(TRAVEL_S, come)

    def reaches(self, one: Process, other: Process) -> bool:
        return (one.host in self.apart) == (other.host in self.apart)

    def carry(self, source: Process, destination: Process, lane: Hashable, arrive: Callable[[], None]) -> float:
        """Have something arrive in its order on that lane. Returns when it will have left its source."""
        turns, way = self._turns, self._lanes.setdefault((source, destination, lane), _Lane())
        departs = way.departs = max(way.departs, turns.now + turns.some(SEND_S))
        way.arrives = max(way.arrives, departs + turns.some(TRAVEL_S))

        def come() -> None:
            if source.died_at < departs:
                return
            if way.held or not self.reaches(source, destination):
                way.held.append(come)
            else:
                turns.at(turns.now, arrive, destination)

        turns.at(way.arrives, come)
        return departs

    def forget(self, source: Process, destination: Process, lane: Hashable) -> None:
        """What is held there never comes: the connection was given up."""
        self._lanes.pop((source, destination, lane), None)
