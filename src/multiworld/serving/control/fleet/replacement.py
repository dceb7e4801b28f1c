"""Decide which members are started and which are too many, so that each stage has what is wanted of it. Pure.

So a replica that was lost is started again, under another name; a gateway is started again by its host.
"""

from __future__ import annotations

from ...graph import GATEWAY
from .actions import Action, Emit, ReplicaReady, ReplicaStarted, StageWaits, StartProcess, UpdateFinished
from .departures import Departures
from .members import COMING, COUNTED, ENDING, Member, MemberState, member_id
from .placement import HostInfo, place
from .rollout import Rollout
from .stage_plan import StagePlan
from .state import FleetState

REST_S = 0.25  # after one has begun to end, before the next begins or ends
AT_ONCE = 16  # so many times as many as may end at once are to go: 200 in some seconds
FEWEST_AT_ONCE, PER_CORE = 8, 4  # members that begin on one host at a time
GATEWAY_AGAIN_S = 1.0  # after one could not be started


class Replacement:
    """Compares what is wanted of the stages with who is there."""

    def __init__(self, state: FleetState, departures: Departures) -> None:
        self._state, self._departures = state, departures
        self._no_gateway_before = float("-inf")

    def gateway_failed(self, now: float) -> None:
        """One could not be started: the next one is not tried at once."""
        self._no_gateway_before = now + GATEWAY_AGAIN_S

    def want_gateways(self, now: float) -> list[Action]:
        """Start the gateways that are missing."""
        actions: list[Action] = []
        if now < self._no_gateway_before:
            return actions
        there = [member for member in self._state.of_stage(GATEWAY) if member.host and not member.retiring]
        is_local_there = any(host.live and host.address in self._state.local for host in self._state.hosts.values())
        for _ in range(self._state.gateways - len(there)):
            hosts, members = self._state.hosts.values(), self._state.members.values()
            # Where the controller is: there is the address that clients know.
            own = [host for host in hosts if host.serves]  # what a gateway says is read there
            host = place(GATEWAY, (), own, members) or place(GATEWAY, self._state.local, hosts, members)
            if host is None and not is_local_there and now < self._state.gather_by:
                return actions  # it is about to come
            host = host or place(GATEWAY, (), hosts, members)
            if host is None:
                return [*actions, *self._wait_for_fit_host()]
            actions += self._start(GATEWAY, 0, host, now, "gateways are wanted", keep=True)
        if actions:
            self._state.gateways_wait_for = ""
        return actions

    def _wait_for_fit_host(self) -> list[Action]:
        reasons = sorted(
            f"not on {host.name}: {host.unfit[GATEWAY]}" for host in self._state.hosts.values() if GATEWAY in host.unfit
        )
        where = "; ".join(reasons)
        if self._state.gateways_wait_for == where:
            return []
        self._state.gateways_wait_for = where
        return [Emit(event=StageWaits(stage=GATEWAY, reason=where))]

    def want(self, plan: StagePlan, now: float) -> list[Action]:
        """Start the replicas that are missing of a stage, and drain those that are too many, old, or to go."""
        if plan.rollout is None:
            counted = [member for member in self._state.of_stage(plan.name) if member.counts]
            actions = self._start_more(plan, plan.version, plan.desired - len(counted), now)
            actions += self._drop_surplus(plan, counted, now)
        else:
            actions = self._roll(plan, plan.rollout, now)
        return actions + self._retire(plan, now)

    def _roll(self, plan: StagePlan, rollout: Rollout, now: float) -> list[Action]:
        counted = [member for member in self._state.of_stage(plan.name) if member.counts]
        step = rollout.step(counted, plan.desired, now)
        actions: list[Action] = []
        for member in step.drain:
            actions += self._departures.drain(member, f"version {rollout.version} has replaced it", now)
        start_new = step.start_new
        if not rollout.parallel and self._num_ending(plan, now):
            start_new = min(start_new, max(plan.desired - len(counted) + len(step.drain), 0))
        actions += self._start_more(plan, plan.version, step.start_old, now)
        actions += self._start_more(plan, rollout.version, start_new, now)
        if step.done:
            plan.version, plan.rollout = rollout.version, None
            plan.weights = {version: path for version, path in plan.weights.items() if version == plan.version}
            took_s = now - plan.updating_since
            actions.append(Emit(event=UpdateFinished(stage=plan.name, version=plan.version, took_s=took_s)))
        return actions

    def _num_ending(self, plan: StagePlan, now: float) -> int:
        """How many replicas are just ending: that takes processors from those that serve, as a beginning does."""
        return sum(member.state in ENDING and now - member.since < REST_S for member in self._state.of_stage(plan.name))

    def _start_more(self, plan: StagePlan, version: int, missing: int, now: float) -> list[Action]:
        actions: list[Action] = []
        for _ in range(missing):
            if not plan.crash.allows(now=now):
                break
            stage = self._state.graph.stages[plan.name]
            host = place(plan.name, stage.hosts, self._state.hosts.values(), self._state.members.values())
            if host is None:
                return [*actions, *self._wait_for_host(plan, stage.hosts)]
            if self._num_coming(host.name) >= max(FEWEST_AT_ONCE, PER_CORE * host.capacity):
                break  # the next ones begin as these serve: all at once would starve each other, and be given up
            reason = plan.causes.popleft() if plan.causes else f"{plan.desired} wanted, version {version}"
            actions += self._start(plan.name, version, host, now, reason)
        if missing > 0 and actions:
            plan.waits_for = ""
        return actions

    def _num_coming(self, host: str) -> int:
        return sum(member.host == host and member.state in COMING for member in self._state.members.values())

    def _wait_for_host(self, plan: StagePlan, allowed: tuple[str, ...]) -> list[Action]:
        where = f"none of the hosts {', '.join(allowed)} is there" if allowed else "no host is there"
        if plan.waits_for == where:
            return []
        plan.waits_for = where
        return [Emit(event=StageWaits(stage=plan.name, reason=where))]

    def _start(
        self, stage: str, version: int, host: HostInfo, now: float, reason: str, *, keep: bool = False
    ) -> list[Action]:
        number = self._state.numbers[stage] = self._state.numbers.get(stage, 0) + 1
        member = Member(
            id=member_id(stage, number), stage=stage, version=version, born=now, since=now, host=host.name, keep=keep
        )
        self._state.members[member.id] = member
        event = ReplicaStarted(member=member.id, stage=stage, host=host.name, version=version, reason=reason)
        return [StartProcess(member=member.id, stage=stage, host=host.name, keep=keep), Emit(event=event)]

    def _drop_surplus(self, plan: StagePlan, counted: list[Member], now: float) -> list[Action]:
        """End the newest of too many: first those that do not serve yet, last those that have worked at something for
        long. One that serves always stays.

        Those that serve end one after the other, of very many some at once, and none waits long for another's work.
        """
        actions: list[Action] = []
        surplus = len(counted) - plan.desired
        counted = sorted(counted, key=lambda member: (member.is_ready, member.works_long, -member.born))
        for member in counted[: max(surplus, 0)]:
            num_ready = sum(other.is_ready and other.counts for other in counted)
            if member.is_ready and self._num_ending(plan, now) >= max(1, surplus // AT_ONCE):
                break
            if not member.is_ready or num_ready > 1 or plan.desired == 0:
                actions += self._departures.drain(member, f"{plan.desired} are wanted", now)
        return actions

    def _retire(self, plan: StagePlan, now: float) -> list[Action]:
        """Drain those that are to go, as soon as as many as wanted serve without them: one after the other, of very
        many some at once, but those of a host that is being stopped at once.
        """
        members = self._state.of_stage(plan.name)
        num_ready = sum(member.is_ready and member.counts for member in members)
        going = [member for member in members if member.retiring and member.state in COUNTED]
        actions: list[Action] = []
        for member in going:
            is_crowded = self._num_ending(plan, now) >= max(1, len(going) // AT_ONCE)
            must_wait = num_ready < plan.desired or (is_crowded and not self._state.is_on_leaving_host(member))
            if not (member.is_ready and must_wait):
                actions += self._departures.drain(member, member.retiring, now)
        return actions

    def serve(self, member: Member, now: float) -> list[Action]:
        """A replica has all that it needs to take requests."""
        member.go(MemberState.READY, now)
        self._state.plans[member.stage].waits_for = ""
        if member.host in self._state.hosts:
            self._state.hosts[member.host].failures.pop(member.stage, None)
        took_s = now - member.born
        event = ReplicaReady(member=member.id, stage=member.stage, version=member.version, took_s=took_s)
        return [Emit(event=event)]
