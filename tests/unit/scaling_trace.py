"""Plays a trace of arrivals against an autoscaler: what it would have decided, and how long requests would wait. Pure.

A fluid model: requests are amounts that pass the stages first come, first served, in steps of ``tick_s``. A stage of n
live replicas serves at most ``n * tick_s / service_s`` requests in a step, and a stage with several inputs has what all
of them have finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multiworld.serving.control.scaling import Autoscaler, ScaleDecision, ScalingPolicy
from multiworld.serving.graph import GATEWAY, Graph


@dataclass
class ScalingTrace:
    """What happened: one entry per tick in ``times`` and ``live``."""

    times: list[float] = field(default_factory=list)
    live: dict[str, list[int]] = field(default_factory=dict)
    decisions: list[tuple[float, ScaleDecision]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    """How long requests waited, and how many did, in the order of their answers."""
    unanswered: float = 0.0

    def wait_s(self, quantile: float = 0.99) -> float:
        """Return what the given part of the answered requests waited at most; 0 if there were none."""
        total = sum(amount for _, amount in self.waits)
        seen = 0.0
        for wait, amount in sorted(self.waits):
            seen += amount
            if seen >= quantile * total:
                return wait
        return 0.0


@dataclass
class _Simulated:
    """One stage: its replicas, those on their way, and what went through."""

    live: int
    coming: list[float] = field(default_factory=list)
    arrived: float = 0.0
    served: float = 0.0
    busy_s: float = 0.0
    told: tuple[int, int, float] = (0, 0, 0.0)

    def serve(self, arrived: float, service_s: float, tick_s: float) -> None:
        self.arrived = max(self.arrived, arrived)
        amount = min(self.arrived - self.served, self.live * tick_s / service_s)
        self.served += amount
        self.busy_s += amount * service_s

    def since_told(self) -> tuple[int, int, float]:
        now = (int(self.arrived), int(self.served), self.busy_s)
        before, self.told = self.told, now
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]


def simulate(
    graph: Graph,
    policy: ScalingPolicy,
    arrivals: Sequence[float],
    service_s: Mapping[str, float],
    *,
    tick_s: float = 0.1,
    start_s: float = 1.0,
    decide_every: int = 10,
    losses: Sequence[tuple[float, str]] = (),
) -> ScalingTrace:
    """Return what an autoscaler makes of ``arrivals`` (requests in each tick).

    ``service_s``: seconds per request of each stage. A new replica serves ``start_s`` after the decision. ``losses``:
    when which stage loses a replica, which is replaced after ``start_s``. The autoscaler decides every so many ticks.
    """
    scaler = Autoscaler(graph, policy)
    stages = {stage.name: _Simulated(stage.replicas) for stage in graph}
    trace = ScalingTrace(live={name: [] for name in stages})
    pending = _Pending()
    lost = sorted(losses)
    for tick, amount in enumerate(arrivals):
        now = tick * tick_s
        while lost and lost[0][0] <= now:
            _lose(stages[lost.pop(0)[1]], now + start_s)
        pending.arrive(amount, now)
        _pass_on(graph, stages, pending.arrived, service_s, now, tick_s)
        pending.answer(min(stages[name].served for name in graph.outputs), now, trace)
        if tick % decide_every == 0:
            _tell(scaler, stages, pending, now)
            for decision in scaler.decide(now):
                trace.decisions.append((now, decision))
                _apply(stages[decision.stage], decision, now + start_s)
        trace.times.append(now)
        for name, stage in stages.items():
            trace.live[name].append(stage.live)
    trace.unanswered = pending.arrived - pending.answered
    return trace


class _Pending:
    """Requests between their arrival and their answer."""

    def __init__(self) -> None:
        self.arrived = self.answered = 0.0
        self._told = 0
        self._cohorts: list[tuple[float, float]] = []
        self._first = 0

    def arrive(self, amount: float, now: float) -> None:
        self.arrived += amount
        if amount:
            self._cohorts.append((now, self.arrived))

    def answer(self, answered: float, now: float, trace: ScalingTrace) -> None:
        while self.answered < answered and self._first < len(self._cohorts):
            at, until = self._cohorts[self._first]
            upto = min(until, answered)
            trace.waits.append((now - at, upto - self.answered))
            self.answered = upto
            if upto < until:
                break
            self._first += 1

    def since_told(self) -> int:
        before, self._told = self._told, int(self.arrived)
        return self._told - before


def _pass_on(
    graph: Graph,
    stages: Mapping[str, _Simulated],
    arrived: float,
    service_s: Mapping[str, float],
    now: float,
    tick_s: float,
) -> None:
    for name in graph.order:
        stage = stages[name]
        stage.live += sum(at <= now for at in stage.coming)
        stage.coming = [at for at in stage.coming if at > now]
        sources = (arrived if source == GATEWAY else stages[source].served for source in graph.upstream(name))
        stage.serve(min(sources), service_s[name], tick_s)


def _tell(scaler: Autoscaler, stages: Mapping[str, _Simulated], pending: _Pending, now: float) -> None:
    # With no replica at all, requests stay in the gateways, which is where their waiting is seen.
    stuck = int(pending.arrived - pending.answered) if any(stage.live == 0 for stage in stages.values()) else 0
    scaler.observe(GATEWAY, now=now, arrived=pending.since_told(), busy_s=0.0, done=0, queue=stuck, live=1)
    for name, stage in stages.items():
        arrived, done, busy_s = stage.since_told()
        queue = 0 if stuck else int(stage.arrived - stage.served)
        scaler.observe(name, now=now, arrived=arrived, busy_s=busy_s, done=done, queue=queue, live=stage.live)


def _apply(stage: _Simulated, decision: ScaleDecision, ready_at: float) -> None:
    change = decision.new - stage.live - len(stage.coming)
    if change > 0:
        stage.coming += [ready_at] * change
    else:
        from_coming = min(-change, len(stage.coming))
        stage.coming = stage.coming[: len(stage.coming) - from_coming]
        stage.live += change + from_coming


def _lose(stage: _Simulated, replaced_at: float) -> None:
    if stage.live:
        stage.live -= 1
        stage.coming.append(replaced_at)
