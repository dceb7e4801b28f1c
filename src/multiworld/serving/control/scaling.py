"""Decides how many replicas each stage should have, from what arrives, how long it takes and what waits. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from ..graph import GATEWAY, Graph, Stage


@dataclass(frozen=True, kw_only=True)
class ScalingPolicy:
    """How eagerly an autoscaler acts.

    A stage needs ``(rate + waiting / drain_s) * service time / target_utilization`` replicas, rounded up. It grows once
    it needed more for ``up_after_s``, by the least that it needed in that time; it shrinks once it needed less for
    ``down_after_s``, to the most that it needed in that time (and ``slack`` more, so that a load near a step does not
    go up and down it). ``max_step_up`` and ``max_step_down`` bound one change, ``settle_s`` is the least time between
    two changes of one stage. ``window_s`` is how far back rates and service times are measured.

    For ``cooldown_s`` after a replica was lost, what waits is no reason to grow, and nothing shrinks: the replacement
    will serve it. A stage whose bounds allow 0 replicas goes there when nothing came for ``idle_after_s``.
    """

    target_utilization: float = 0.7
    drain_s: float = 5.0
    up_after_s: float = 1.0
    down_after_s: float = 30.0
    max_step_up: int = 4
    max_step_down: int = 1
    settle_s: float = 2.0
    slack: float = 0.1
    window_s: float = 5.0
    cooldown_s: float = 5.0
    idle_after_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.target_utilization <= 1:
            raise ValueError(f"target_utilization must lie above 0 and be at most 1, got {self.target_utilization!r}")
        for name in ("drain_s", "window_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)!r}")
        for name in ("up_after_s", "down_after_s", "settle_s", "slack", "cooldown_s", "idle_after_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)!r}")
        for name in ("max_step_up", "max_step_down"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class ScaleDecision:
    """A stage is to have ``new`` replicas instead of ``old``; ``reason`` shows the arithmetic."""

    stage: str
    old: int
    new: int
    reason: str


class _Interval(NamedTuple):
    start: float
    end: float
    arrived: int
    busy_s: float
    done: int


class _Need(NamedTuple):
    at: float
    replicas: float
    text: str


@dataclass
class _Load:
    """What is known of one stage, or of the gateways."""

    wanted: int = 0
    heard_at: float | None = None
    arrived_at: float | None = None
    changed_at: float = -math.inf
    lost_at: float = -math.inf
    queue: int = 0
    live: int = 0
    busy: int = 0
    service_s: float = 0.0
    intervals: deque[_Interval] = field(default_factory=deque)
    needs: deque[_Need] = field(default_factory=deque)

    def rate(self) -> float:
        """Return arrivals per second over the measured window; 0 before the second observation."""
        if not self.intervals:
            return 0.0
        span = self.intervals[-1].end - self.intervals[0].start
        return sum(interval.arrived for interval in self.intervals) / span

    def over(self, after_s: float, now: float) -> list[_Need]:
        """Return the needs of the last ``after_s``; none if they do not reach back so far."""
        result: list[_Need] = []
        for need in reversed(self.needs):
            result.append(need)
            if need.at <= now - after_s:
                return result
        return []


class Autoscaler:
    """Keeps each stage of a graph between its bounds, at the number of replicas that its load needs.

    All stages are decided at once: every request passes every stage, so a stage must cope with what arrives anywhere
    before it, though a bottleneck in front may still hold it back. Tell it about ``"gateway"`` too: what arrived there
    (refused requests count) and what waits there.

    With 0 replicas nobody is there to report a request: call ``wake`` when a gateway holds the first one.
    """

    def __init__(self, graph: Graph, policy: ScalingPolicy | None = None) -> None:
        self._graph = graph
        self._policy = policy or ScalingPolicy()
        self._loads = {GATEWAY: _Load()} | {stage.name: _Load(wanted=stage.replicas) for stage in graph}

    @property
    def wanted(self) -> dict[str, int]:
        """How many replicas each stage is to have, by the last decision."""
        return {stage.name: self._loads[stage.name].wanted for stage in self._graph}

    def observe(
        self,
        stage: str,
        *,
        now: float,
        arrived: int,
        busy_s: float,
        done: int,
        queue: int,
        live: int,
        is_active: bool = False,
        busy: int = 0,
    ) -> None:
        """Note what the replicas of a stage did together since the last call for it.

        ``arrived`` and ``done`` count requests, ``busy_s`` sums how much of the replicas' time they took (a share of it
        where a replica executes several at once); ``queue`` requests wait there now, ``live`` replicas serve now. A
        number that fell below ``wanted`` is taken for a loss.
        ``is_active``: whether any request is there, if only one that is being executed; so many replicas as are
        ``busy`` with long work, of which the rates do not tell, are not ended.
        """
        load = self._loads[stage]
        if live < min(load.live, load.wanted):
            load.lost_at = now
        if load.heard_at is not None and now > load.heard_at:
            load.intervals.append(_Interval(load.heard_at, now, arrived, busy_s, done))
        while load.intervals and load.intervals[0].end <= now - self._policy.window_s:
            load.intervals.popleft()
        if arrived or queue or is_active or load.arrived_at is None:
            load.arrived_at = now
        load.heard_at, load.queue, load.live, load.busy = now, queue, live, busy
        served = sum(interval.done for interval in load.intervals)
        if served:
            load.service_s = sum(interval.busy_s for interval in load.intervals) / served

    def lost(self, stage: str, *, now: float) -> None:
        """Note that a replica was lost and is being replaced."""
        self._loads[stage].lost_at = now

    def set(self, stage: str, replicas: int, *, now: float) -> None:
        """Note that somebody else decided the number of replicas; it is left alone as after a decision of our own."""
        load = self._loads[stage]
        load.wanted, load.changed_at = replicas, now
        load.needs.clear()

    def wake(self, *, now: float) -> list[ScaleDecision]:
        """Return the decisions that give each stage without replicas one, at once, because a request waits."""
        return [
            self._change(stage.name, 1, now, "a request waits, and the stage has no replica")
            for stage in self._graph
            if self._loads[stage.name].wanted == 0 and stage.most > 0
        ]

    def decide(self, now: float) -> list[ScaleDecision]:
        """Return what is to change now, in the order of the graph; taken as done. Call it about once a second."""
        rates, waiting = self._flows()
        decisions = self.wake(now=now) if waiting[GATEWAY] else []
        for stage in self._graph:
            load = self._loads[stage.name]
            if load.heard_at is None or (load.live and now - load.heard_at > self._policy.window_s):
                continue  # silence is no idleness: whoever does not report may be busy
            self._note_need(stage.name, rates[stage.name], waiting[stage.name], now)
            decision = self._decide(stage, load, now)
            if decision is not None:
                decisions.append(decision)
        return decisions

    def _flows(self) -> tuple[dict[str, float], dict[str, int]]:
        """Return what arrives per second at each stage, and what waits, there and on the fullest way to it."""
        rates = {GATEWAY: self._loads[GATEWAY].rate()}
        waiting = {GATEWAY: self._loads[GATEWAY].queue}
        for name in self._graph.order:
            load, before = self._loads[name], self._graph.upstream(name)
            rates[name] = max([load.rate(), *(rates[source] for source in before)])
            waiting[name] = load.queue + max(waiting[source] for source in before)
        return rates, waiting

    def _note_need(self, name: str, rate: float, waiting: int, now: float) -> None:
        load, policy = self._loads[name], self._policy
        recovering = load.live < load.wanted or now - load.lost_at < policy.cooldown_s
        counted = 0 if recovering else waiting
        needed = (rate + counted / policy.drain_s) * load.service_s / policy.target_utilization
        text = (
            f"({rate:.4g}/s + {counted} waiting / {policy.drain_s:g} s) * {load.service_s * 1e3:.4g} ms "
            f"/ {policy.target_utilization:g} = {needed:.2f}"
        )
        load.needs.append(_Need(now, needed, text))
        keep = max(policy.up_after_s, policy.down_after_s)
        while len(load.needs) > 1 and load.needs[1].at <= now - keep:
            load.needs.popleft()

    def _decide(self, stage: Stage, load: _Load, now: float) -> ScaleDecision | None:
        policy = self._policy
        if load.wanted == 0 or now - load.changed_at < policy.settle_s:
            return None
        least = min(load.over(policy.up_after_s, now), key=lambda need: need.replicas, default=None)
        if least is not None and (up := self._bounded(stage, _round_up(least.replicas))) > load.wanted:
            new = min(up, load.wanted + policy.max_step_up)
            return self._change(stage.name, new, now, _reason(least, f"for {policy.up_after_s:g} s", stage))
        most = max(load.over(policy.down_after_s, now), key=lambda need: need.replicas, default=None)
        if most is None or now - load.lost_at < policy.cooldown_s:
            return None
        least_left = max(load.busy, 0 if self._idle(now) else 1)
        down = self._bounded(stage, max(_round_up(most.replicas * (1 + policy.slack)), least_left))
        if down >= load.wanted:
            return None
        new = max(down, load.wanted - policy.max_step_down)
        return self._change(stage.name, new, now, _reason(most, f"at most in {policy.down_after_s:g} s", stage))

    def _idle(self, now: float) -> bool:
        last = max((load.arrived_at for load in self._loads.values() if load.arrived_at is not None), default=now)
        return now - last >= self._policy.idle_after_s

    def _bounded(self, stage: Stage, replicas: int) -> int:
        return min(max(replicas, stage.fewest), stage.most)

    def _change(self, name: str, new: int, now: float, reason: str) -> ScaleDecision:
        load = self._loads[name]
        old, load.wanted, load.changed_at = load.wanted, new, now
        return ScaleDecision(name, old, new, reason)


def _round_up(replicas: float) -> int:
    return math.ceil(replicas - 1e-9)


def _reason(need: _Need, how_long: str, stage: Stage) -> str:
    return f"needs {need.text} replicas {how_long}, between {stage.fewest} and {stage.most}"
