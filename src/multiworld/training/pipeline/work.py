"""Who computes which micro-batches of one step in which order, where inputs come from, and where outputs go. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..planning.operations import Kind
from .assignment import Assignment
from .order import order_of

Place = tuple[int, int]  # pipeline, stage


class Task(NamedTuple):
    """A member's forward or backward of a micro-batch, or the gradients of weights that a split backward puts off.

    ``source``: the member whose output it needs; empty: it needs none. ``destination``: whom its output goes to.
    """

    kind: Kind
    micro_batch: int
    source: str
    destination: str


class Arrivals(NamedTuple):
    """The micro-batches whose outputs come from one member, in the order in which that member sends them."""

    kind: Kind
    source: str
    micro_batches: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one member computes in a step, in order. ``arrivals``: one for each kind and member that it has inputs of.

    A message may come before it is needed: the order of a sender is not that of its receiver.
    """

    tasks: tuple[Task, ...]
    arrivals: tuple[Arrivals, ...]

    @property
    def micro_batches(self) -> tuple[int, ...]:
        """In the order of their forwards."""
        return tuple(each.micro_batch for each in self.tasks if each.kind is Kind.FORWARD)

    @property
    def split(self) -> frozenset[int]:
        """The micro-batches whose backward is split."""
        return frozenset(each.micro_batch for each in self.tasks if each.kind is Kind.WEIGHT)


class _Operation(NamedTuple):
    """``turn``: its micro-batch's place among those of its pipeline."""

    kind: Kind
    pipeline: int
    turn: int


class StepWork:
    """Of one step. ``dealt``: the micro-batches of each pipeline, in order; None: as in every step.

    A pipeline whose members compute for others cannot have more of them than in every step.
    """

    def __init__(self, assignment: Assignment, dealt: Sequence[Sequence[int]] | None = None) -> None:
        self._assignment = assignment
        usual = _usual(assignment)
        self._dealt = usual if dealt is None else [tuple(each) for each in dealt]
        self._turns = [(pipeline, turn) for pipeline, numbers in enumerate(usual) for turn in range(len(numbers))]
        self._peers = {(each.pipeline, each.node): each.peers for each in assignment.reroutes}
        self._shared = {(each.pipeline, each.stage): each.operations for each in assignment.orders}
        for pipeline, _ in self._shared:
            given, most = len(self._dealt[pipeline]), len(usual[pipeline])
            if given > most:
                raise ValueError(f"pipeline {pipeline} has {given} micro-batches: expected at most {most}")

    def micro_batches_of(self, member: str) -> tuple[int, ...]:
        """Return those that this member computes, ascending."""
        role = self._assignment.role_of(member)
        if role is None:
            return ()
        return self._computed[role.pipeline, role.stage]

    @cached_property
    def _computed(self) -> dict[Place, tuple[int, ...]]:
        """The micro-batches that are computed at each place, ascending."""
        found: dict[Place, list[int]] = defaultdict(list)
        for pipeline, numbers in enumerate(self._dealt):
            for stage in range(len(self._assignment.pipelines[pipeline].members)):
                peers = self._peers.get((pipeline, stage))
                if peers is None:
                    found[pipeline, stage] += numbers
                    continue
                for peer, number in zip(peers, numbers, strict=False):
                    found[peer, stage].append(number)
        return {place: tuple(sorted(numbers)) for place, numbers in found.items()}

    def members_of(self, pipeline: int) -> tuple[str, ...]:
        """Return who computes the first micro-batch of a pipeline: together they hold all layers, each layer once."""
        stages = range(len(self._assignment.pipelines[pipeline].members))
        return tuple(self._member(self._place(pipeline, stage, 0)) for stage in stages)

    def of(self, member: str) -> Work:
        role = self._assignment.role_of(member)
        if role is None:
            return Work(tasks=(), arrivals=())
        place, last = (role.pipeline, role.stage), role.num_stages - 1
        tasks: list[Task] = []
        sources: dict[tuple[Kind, Place], None] = {}
        for kind, pipeline, turn in self._order(place):
            if kind is Kind.WEIGHT:
                tasks.append(Task(kind, self._dealt[pipeline][turn], "", ""))
                continue
            step = 1 if kind is Kind.FORWARD else -1
            before, after = (
                self._place(pipeline, stage, turn) if 0 <= stage <= last else None
                for stage in (role.stage - step, role.stage + step)
            )
            if before is not None:
                sources[kind, before] = None
            number = self._dealt[pipeline][turn]
            tasks.append(Task(kind, number, self._member(before), self._member(after)))
        arrivals = [Arrivals(kind, self._member(source), self._sent(kind, source, place)) for kind, source in sources]
        return Work(tasks=tuple(tasks), arrivals=tuple(arrivals))

    def _place(self, pipeline: int, stage: int, turn: int) -> Place:
        """Return where a micro-batch of this pipeline is computed at this stage."""
        peers = self._peers.get((pipeline, stage))
        return (pipeline if peers is None else peers[turn], stage)

    def _member(self, place: Place | None) -> str:
        return "" if place is None else self._assignment.pipelines[place[0]].members[place[1]]

    def _sent(self, kind: Kind, source: Place, destination: Place) -> tuple[int, ...]:
        return tuple(
            self._dealt[pipeline][turn]
            for each, pipeline, turn in self._order(source)
            if each is kind and self._place(pipeline, destination[1], turn) == destination
        )

    def _order(self, place: Place) -> Iterator[_Operation]:
        pipeline, stage = place
        operations = self._shared.get(place)
        if operations is None:
            order = order_of(self._assignment.pipelines[pipeline], stage, len(self._dealt[pipeline]))
            for kind, _, turn in order:
                yield _Operation(kind, pipeline, turn)
            return
        gone_back = set[int]()
        for each in operations:
            of, turn = self._turns[each if each >= 0 else ~each]
            kind = Kind.FORWARD if each >= 0 else Kind.WEIGHT if each in gone_back else Kind.BACKWARD
            if kind is Kind.BACKWARD:
                gone_back.add(each)
            if turn < len(self._dealt[of]):
                yield _Operation(kind, of, turn)


def _usual(assignment: Assignment) -> list[tuple[int, ...]]:
    dealt, begin = [], 0
    for each in assignment.pipelines:
        dealt.append(tuple(range(begin, begin + each.num_micro_batches)))
        begin += each.num_micro_batches
    return dealt
