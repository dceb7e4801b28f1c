"""Move layers between the members of a generation: each source sends what its destinations lack, all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...world.world import World
from ..recovery.transfer import Receiving, Sending
from ..state import StateDict
from .assignment import LayerMove
from .partial_step import HandedSums


@dataclass
class Shipment:
    """What one member gets from another: ``layers``, and with them what is the same on all members (``is_first``).

    ``sums``: the layers of which it gets what micro-batches of the present step gave, to add it to its own.
    """

    member: str
    layers: list[int] = field(default_factory=list)
    is_first: bool = False
    sums: list[int] = field(default_factory=list)


def shipments(
    moves: Sequence[LayerMove],
    stateless: Sequence[str],
    first_source: str,
    member: str,
    *,
    outgoing: bool,
    handed: Sequence[HandedSums] = (),
) -> list[Shipment]:
    """Return what ``member`` sends or gets, one shipment for each other member, in one order on all. Pure.

    ``first_source`` sends each of ``stateless`` what is no layer: the step, schedulers, rates, random numbers.
    """
    by_pair: dict[tuple[str, str], Shipment] = {}
    for destination in stateless:
        if destination != first_source:
            by_pair[first_source, destination] = Shipment(destination if outgoing else first_source, is_first=True)
    for move in moves:
        pair = (move.source, move.destination)
        shipment = by_pair.setdefault(pair, Shipment(move.destination if outgoing else move.source))
        shipment.layers.extend(range(move.first, move.end))
    for each in handed:
        pair = (each.source, each.destination)
        shipment = by_pair.setdefault(pair, Shipment(each.destination if outgoing else each.source))
        shipment.sums.extend(layer for sums in each.sums for layer in range(sums.first, sums.end))
    end = 0 if outgoing else 1
    return [shipment for pair, shipment in by_pair.items() if pair[end] == member]


class Moving:
    """The shipments of this member in one generation."""

    def __init__(
        self,
        world: World,
        place_of: Callable[[str], int],
        sent: Sequence[Shipment],
        got: Sequence[Shipment],
        capture: Callable[[Shipment], StateDict],
    ) -> None:
        """``capture``: the state of a shipment, as references; it is copied before this returns."""
        me = world.rank
        self.size_bytes = 0
        self._receivings = [Receiving(world, [place_of(each.member)]) for each in got]
        self._sendings = [Sending(world, capture(each), [me], [place_of(each.member)]) for each in sent]

    def wait(self) -> list[StateDict]:
        """Return the states that have come. Raises the world's error, DamagedStateError."""
        states = []
        for receiving in self._receivings:
            receiving.wait()
            state, size_bytes = receiving.state({})
            self.size_bytes += size_bytes
            states.append(state)
        for sending in self._sendings:
            sending.wait()
        return states
