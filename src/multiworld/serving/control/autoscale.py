"""Feeds the autoscaler with what members say, once a second, and returns what it wants changed. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..graph import GATEWAY, Graph
from ..member.reports import GatewayStatistics, ReplicaStatistics
from .fleet.members import Member
from .fleet.state import FleetState
from .scaling import Autoscaler, ScaleDecision, ScalingPolicy

AT_ONCE = 64  # calls of a coroutine function that a replica makes
MOST_OF_A_THREAD = 2  # calls: one that it makes, and one that waits for it


@dataclass(kw_only=True)
class _Counts:
    """What the members of a stage did since they were asked last."""

    arrived: int = 0
    done: int = 0
    busy_s: float = 0.0
    queue: int = 0
    open: int = 0
    """Requests that are there, waiting or being executed."""
    busy: float = 0.0
    """Replicas that have executed something for a while; of one that makes many calls at once, the share in use."""


class Autoscaling:
    """Members count since their start; here it is by how much the counts grew that matters."""

    def __init__(self, graph: Graph, policy: ScalingPolicy) -> None:
        self._scaler = Autoscaler(graph, policy)
        self._before: dict[tuple[str, int | None], ReplicaStatistics | GatewayStatistics] = {}
        self._desired = {stage.name: stage.replicas for stage in graph}

    def decide(self, state: FleetState, now: float) -> list[ScaleDecision]:
        """Return what is to be changed; decisions for stages that must be left alone now are taken back."""
        for name in (GATEWAY, *state.graph.order):
            counts = _Counts()
            for member in state.of_stage(name):
                self._count(member, counts)
            live = sum(member.is_ready for member in state.of_stage(name))
            self._scaler.observe(
                name,
                now=now,
                arrived=counts.arrived,
                busy_s=counts.busy_s,
                done=counts.done,
                queue=counts.queue,
                live=live,
                is_active=counts.open > 0,
                busy=math.ceil(counts.busy),
            )
        there = {(member.id, member.pid) for member in state.members.values()}
        self._before = {key: counts for key, counts in self._before.items() if key in there}
        for name, plan in state.plans.items():
            if plan.desired != self._desired[name]:  # somebody ordered it
                self._desired[name] = plan.desired
                self._scaler.set(name, plan.desired, now=now)
        return self._wanted(state, now)

    def lost(self, stage: str, now: float) -> None:
        if stage in self._desired:
            self._scaler.lost(stage, now=now)

    def _wanted(self, state: FleetState, now: float) -> list[ScaleDecision]:
        wanted = []
        decisions = self._scaler.decide(now)
        if any(isinstance(each.stats, GatewayStatistics) and each.stats.open for each in state.of_stage(GATEWAY)):
            decisions += self._scaler.wake(now=now)  # it may wait behind a stage that has replicas
        for decision in decisions:
            if state.scaling_suspended(decision.stage, now, wakes=not decision.old):
                self._scaler.set(decision.stage, state.plans[decision.stage].desired, now=now)
            else:
                self._desired[decision.stage] = decision.new
                wanted.append(decision)
        return wanted

    def _count(self, member: Member, counts: _Counts) -> None:
        stats, key = member.stats, (member.id, member.pid)
        if stats is None:
            return
        before = self._before.get(key, stats)  # what it did before it was known is not of the last second
        self._before[key] = stats
        if isinstance(stats, GatewayStatistics) and isinstance(before, GatewayStatistics):
            ended = max(0, _ended(stats) - _ended(before))
            counts.done += ended
            counts.arrived += max(0, ended + stats.open - before.open)
            counts.queue += stats.waiting
            counts.open += stats.open
        elif isinstance(stats, ReplicaStatistics) and isinstance(before, ReplicaStatistics):
            counts.arrived += max(0, stats.arrived - before.arrived)
            counts.done += max(0, stats.done - before.done)
            counts.busy_s += max(0.0, stats.busy_s - before.busy_s)
            counts.queue += stats.queue
            counts.open += stats.in_flight
            if member.works_long:
                counts.busy += stats.executing / AT_ONCE if stats.executing > MOST_OF_A_THREAD else 1


def _ended(stats: GatewayStatistics) -> int:
    return stats.answered + stats.failed + stats.refused
