"""What a step takes in which nodes of some pipelines also compute for others, and in which order they compute.

An event-driven simulation. A node that is free takes what can be done now: a backward before a forward, and a forward
only while it holds no more micro-batches than it may. With a split backward, gradients of weights come last, where
nothing else can be done: they fill the bubbles. The order of the simulation is one that cannot deadlock, so nodes
may follow it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ..operations import Kind
from ..timing import Timing

Place = tuple[int, int]  # pipeline, node


class SharedOperation(NamedTuple):
    """``pipeline``: the one whose micro-batch it is; its node may be one of another pipeline."""

    kind: Kind
    pipeline: int
    stage: int
    micro_batch: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class SharedStep:
    """A step of pipelines of one template. ``counts``: micro-batches of each.

    ``peers``: for each place that was lost, the pipeline that computes there, by micro-batch. ``limits``: micro-batches
    in flight of each (pipeline, stage), at most.
    """

    timing: Timing
    counts: Mapping[int, int]
    peers: Mapping[Place, Sequence[int]]
    limits: Mapping[tuple[int, int], int]
    split_backward: bool = False

    def simulated(self) -> Mapping[Place, tuple[SharedOperation, ...]]:
        """Return what each place that is left computes, in order."""
        return self._simulated

    @cached_property
    def _simulated(self) -> dict[Place, tuple[SharedOperation, ...]]:
        return _Run(self).run()

    @property
    def num_operations(self) -> int:
        """How many are simulated."""
        return (3 if self.split_backward else 2) * self.timing.template.num_stages * sum(self.counts.values())

    def least_s(self) -> float:
        """Return what a step takes at least: that of the busiest place, with what comes before and behind it."""
        loads: dict[tuple[int, int], int] = defaultdict(int)
        stages = range(self.timing.template.num_stages)
        for pipeline, count in self.counts.items():
            for stage in stages:
                for micro_batch in range(count):
                    loads[self.place_of(pipeline, stage, micro_batch)[0], stage] += 1
        forward_s, backward_s = self.timing.forward_s, self.timing.backward_s
        behind_s = [0.0 if self.split_backward else sum(backward_s[:stage]) for stage in stages]
        return max(
            sum(forward_s[:stage]) + load * (forward_s[stage] + backward_s[stage]) + behind_s[stage]
            for (_, stage), load in loads.items()
        )

    def iteration_s(self) -> float:
        return max(each[-1].end_s for each in self.simulated().values() if each)

    def place_of(self, pipeline: int, stage: int, micro_batch: int) -> Place:
        node = self.timing.template.stages[stage].node
        peers = self.peers.get((pipeline, node))
        return (pipeline if peers is None else peers[micro_batch], node)


PREFERENCE = (Kind.BACKWARD, Kind.FORWARD, Kind.WEIGHT)
Waiting = tuple[float, int, int, int]  # progress of the micro-batch in its pipeline, pipeline, stage, micro-batch


class _Run:
    """One simulation. ``_ready``: what could begin now."""

    def __init__(self, step: SharedStep) -> None:
        self._step = step
        timing = step.timing
        self._last = timing.template.num_stages - 1
        self._stages_on: dict[int, list[int]] = defaultdict(list)
        for stage, each in enumerate(timing.template.stages):
            self._stages_on[each.node].append(stage)
        weight_s = timing.weight_backward_s if step.split_backward else (0.0,) * (self._last + 1)
        self._durations_s = {
            Kind.FORWARD: timing.forward_s,
            Kind.BACKWARD: tuple(all_s - part_s for all_s, part_s in zip(timing.backward_s, weight_s, strict=True)),
            Kind.WEIGHT: weight_s,
        }
        self._ready: dict[tuple[int, int, Kind], list[Waiting]] = defaultdict(list)  # pipeline that computes, stage
        self._in_flight: dict[tuple[int, int], int] = defaultdict(int)
        self._is_busy: dict[Place, bool] = defaultdict(bool)
        self._done: dict[Place, list[SharedOperation]] = defaultdict(list)
        self._events: list[tuple[float, int, int, Kind, Waiting, Place]] = []  # the second: 0 ends, 1 arrives
        self._number = 0

    def run(self) -> dict[Place, tuple[SharedOperation, ...]]:
        for pipeline, count in self._step.counts.items():
            for micro_batch in range(count):
                self._arrive(0.0, Kind.FORWARD, pipeline, 0, micro_batch)
        while self._events:
            now = self._events[0][0]
            touched = set()
            while self._events and self._events[0][0] == now:
                _, is_arrival, _, kind, waiting, place = heapq.heappop(self._events)
                touched.add(place)
                if is_arrival:
                    heapq.heappush(self._ready[place[0], waiting[2], kind], waiting)
                else:
                    self._end(now, kind, waiting, place)
            for place in sorted(touched):
                self._begin(now, place)
        return {place: tuple(done) for place, done in sorted(self._done.items())}

    def _push(self, at_s: float, is_arrival: int, kind: Kind, waiting: Waiting, place: Place) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, is_arrival, self._number, kind, waiting, place))

    def _arrive(self, at_s: float, kind: Kind, pipeline: int, stage: int, micro_batch: int) -> None:
        progress = micro_batch / self._step.counts[pipeline]
        place = self._step.place_of(pipeline, stage, micro_batch)
        self._push(at_s, 1, kind, (progress, pipeline, stage, micro_batch), place)

    def _begin(self, now: float, place: Place) -> None:
        if self._is_busy[place]:
            return
        kind = next((each for each in PREFERENCE if self._heaps(place, each)), None)
        if kind is None:
            return
        _, pipeline, stage, micro_batch = waiting = heapq.heappop(
            min(self._heaps(place, kind), key=lambda each: each[0])
        )
        if kind is Kind.FORWARD:
            self._in_flight[place[0], stage] += 1
        end_s = now + self._durations_s[kind][stage]
        self._done[place].append(SharedOperation(kind, pipeline, stage, micro_batch, now, end_s))
        self._is_busy[place] = True
        self._push(end_s, 0, kind, waiting, place)

    def _heaps(self, place: Place, kind: Kind) -> list[list[Waiting]]:
        """Return what the stages on this node could begin, those that may."""
        pipeline, node = place
        return [
            heap
            for stage in self._stages_on[node]
            if (heap := self._ready[pipeline, stage, kind])
            and (kind is not Kind.FORWARD or self._in_flight[pipeline, stage] < self._step.limits[pipeline, stage])
        ]

    def _end(self, now: float, kind: Kind, waiting: Waiting, place: Place) -> None:
        self._is_busy[place] = False
        _, pipeline, stage, micro_batch = waiting
        transfers_s = self._step.timing.transfers_s
        if kind is Kind.FORWARD and stage == self._last:
            self._arrive(now, Kind.BACKWARD, pipeline, stage, micro_batch)
        elif kind is Kind.FORWARD:
            self._arrive(now + transfers_s[stage], Kind.FORWARD, pipeline, stage + 1, micro_batch)
        elif kind is Kind.BACKWARD:
            if stage:
                self._arrive(now + transfers_s[stage - 1], Kind.BACKWARD, pipeline, stage - 1, micro_batch)
            if self._durations_s[Kind.WEIGHT][stage] > 0:
                self._arrive(now, Kind.WEIGHT, pipeline, stage, micro_batch)
                return
        if kind is not Kind.FORWARD:
            self._in_flight[place[0], stage] -= 1
