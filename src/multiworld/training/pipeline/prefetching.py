"""Carry out the moves of a coming assignment beside the steps.

In each step a source copies some layers as they are before it, and sends them while the step is computed. Who gets them
takes part in the reduction of their gradients without computing any. If they are here when the step counts, its
optimizer does the step for them as for its other layers. If they are late, the process keeps what counts meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from ...errors import WorldBrokenError, WorldClosedError
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import run_in_thread, wait_blocking
from ...world.world import World
from ..engine.facts import Facts
from ..recovery.records import Generation
from ..recovery.transfer import DamagedStateError, Receiving, Sending
from ..state import StateDict
from .assignment import LayerMove
from .growing import MAX_MISSED, Deliveries, Pace
from .holdings import Holdings
from .missed import Missed

logger = logging.getLogger(__name__)

Received = Callable[[int, int, float], None]
"""Hears (bytes, sources, seconds) once this member has all."""

Arrival = Operation[tuple[StateDict, int]]
"""The state of some layers, and its size in bytes."""


@dataclass(frozen=True)
class _Sent:
    size_bytes: int
    took_s: float


@dataclass(frozen=True)
class _Late:
    """What was begun in a step and is not here yet."""

    arrival: Arrival
    num_moves: int
    missed: Missed


@dataclass
class _Source:
    """``arrivals``: one for each shipment, of which there are as many as layers, at most."""

    arrivals: list[Arrival]
    num_shipments: int = 0
    """That were begun."""

    def next_arrival(self) -> Arrival:
        self.num_shipments += 1
        return self.arrivals[self.num_shipments - 1]


@dataclass
class _Got:
    """By this member."""

    num_moves: int = 0
    size_bytes: int = 0
    began: float = field(default_factory=lambda: time.monotonic())


class Prefetching:
    """Of one member, in one generation. Belongs to the training thread."""

    def __init__(self, generation: Generation, world: World, holdings: Holdings, me: str, received: Received) -> None:
        assert generation.coming is not None, "nothing is prefetched without a coming assignment"
        self._moves = generation.coming.moves
        self._to_me = [each for each in self._moves if each.destination == me]
        self.num_sent = 0
        """Of this member's moves: those that it has begun to send."""
        self._world, self._holdings, self._me, self._place_of = world, holdings, me, generation.place_of
        self._deliveries = Deliveries(self._moves, [each.id for each in generation.members])
        self._pace = Pace()
        self._sending: Operation[_Sent] | None = None
        self._received, self._got, self._late = received, _Got(), list[_Late]()
        mine = [(move.source, layer) for move in self._to_me for layer in range(move.first, move.end)]
        self._sources: dict[str, _Source] = {}
        for source, _ in mine:
            self._sources.setdefault(source, _Source([])).arrivals.append(Operation())
        for source, of_source in self._sources.items():
            first = Receiving(world, [generation.place_of(source)])
            work = partial(_receive, world, generation.place_of(source), first, of_source.arrivals)
            run_in_thread(work, "multiworld-training-receive")

    @property
    def num_got(self) -> int:
        """How many moves to this member have ended."""
        return self._got.num_moves

    def is_over(self, facts: Sequence[Facts]) -> bool:
        """Whether all members had all that they get when they said this: the same on all."""
        return sum(each.got for each in facts) == len(self._moves)

    # ---- a source

    def begin_step(self) -> None:
        """Copy what is sent in this step, and begin to send it."""
        self._pace.step_begins(time.monotonic())
        if self._sending is not None:
            if not self._sending.done:
                return
            if self._sending.error is None:
                sent = self._sending.result()
                self._pace.sent(sent.size_bytes, sent.took_s)
        chosen = self._chosen()
        if chosen:
            self._sending = self._send(chosen)
            self.num_sent += len(chosen)

    def _chosen(self) -> list[LayerMove]:
        """Return what fits into a step, and at least one move, if any is left."""
        chosen: list[LayerMove] = []
        size_bytes = 0
        for move in self._deliveries.left(self._me):
            size_bytes += self._holdings.size_bytes_of(range(move.first, move.end))
            if chosen and size_bytes > self._pace.most_bytes:
                break
            chosen.append(move)
        return chosen

    def _send(self, moves: Sequence[LayerMove]) -> Operation[_Sent]:
        layers: dict[str, list[int]] = {}
        for move in moves:
            layers.setdefault(move.destination, []).extend(range(move.first, move.end))
        began, me = time.monotonic(), self._world.rank
        sendings = [
            Sending(self._world, self._holdings.capture(each), [me], [self._place_of(destination)])
            for destination, each in layers.items()
        ]
        return run_in_thread(partial(_sent, sendings, began), "multiworld-training-prefetch")

    # ---- a receiver

    def step_counts(self, facts: Sequence[Facts]) -> None:
        """Before the step's gradients are applied: hear what was sent in it, and take what has come of that."""
        begun: dict[str, list[LayerMove]] = {}
        for move in self._deliveries.hear([each.sent for each in facts]):
            if move.destination == self._me:
                begun.setdefault(move.source, []).append(move)
        for source, moves in begun.items():
            layers = [layer for each in moves for layer in range(each.first, each.end)]
            self._late.append(_Late(self._sources[source].next_arrival(), len(moves), self._holdings.miss(layers)))
        for late in list(self._late):
            if late.arrival.done or late.missed.num_steps >= MAX_MISSED:
                if not self._take(late):
                    return  # another generation follows, which says who gets what
                self._late.remove(late)

    def _take(self, late: _Late) -> bool:
        try:
            state, size_bytes = wait_blocking(late.arrival)
        except (WorldBrokenError, WorldClosedError) as error:
            logger.info("layers did not come beside the steps: %s", error)
            return False
        except DamagedStateError as damaged:
            logger.warning("%s; it is asked for again", damaged)
            self._world.abort()
            return False
        self._holdings.take(state, late.missed)
        got = self._got
        got.num_moves, got.size_bytes = got.num_moves + late.num_moves, got.size_bytes + size_bytes
        if got.num_moves == len(self._to_me):
            self._received(got.size_bytes, len(self._sources), time.monotonic() - got.began)
        return True

    def keep(self, changes: Mapping[str, Tensor]) -> None:
        """The step counts, and has added these means to buffers: layers that are late need them, too."""
        for late in self._late:
            late.missed.step_counts(changes)


def _sent(sendings: Sequence[Sending], began: float) -> _Sent:
    for each in sendings:
        each.wait()
    return _Sent(sum(each.size_bytes for each in sendings), time.monotonic() - began)


def _receive(world: World, place: int, receiving: Receiving, arrivals: Sequence[Arrival]) -> None:
    """Receive one shipment after the other, until as many layers are here as there are arrivals."""
    num_got = 0
    try:
        for arrival in arrivals:
            receiving.wait()
            state, size_bytes = receiving.state({})
            num_got += len(state["layers"])
            if num_got < len(arrivals):
                receiving = Receiving(world, [place])
            arrival.succeed((state, size_bytes))
            if num_got == len(arrivals):
                return
    except (WorldBrokenError, WorldClosedError, DamagedStateError) as error:
        for arrival in arrivals:
            if not arrival.done:
                arrival.fail(error)
