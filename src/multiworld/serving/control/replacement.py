"""Decide which members are started, drained, ended and replaced, so that each stage has what is wanted of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ..graph import GATEWAY
from . import orders
from .actions import (
    Action,
    BackedOff,
    Donate,
    Emit,
    KillProcess,
    ReplicaDraining,
    ReplicaLeft,
    ReplicaLost,
    ReplicaReady,
    ReplicaStarted,
    Send,
    StageWaits,
    StartProcess,
    UpdateFinished,
    UpdateRolledBack,
)
from .fleet_state import Roster
from .members import CONTROLLER, ENDING, Member, MemberState, member_id
from .orders import MemberOrder
from .placement import HostInfo, place
from .rollout import Rollout
from .stage_plan import StagePlan

__all__ = ["Staffing"]

REST_S = 0.25  # after one has begun to end, before the next begins or ends
LATE_NEWS_S = 1.0  # beyond the lease, for the end of a donor to be heard of
AT_ONCE = 16  # so many times as many as may end at once are to go: 200 in some seconds
FEWEST_AT_ONCE, PER_CORE = 8, 4  # members that begin on one host at a time
COMING = (MemberState.STARTING, MemberState.LOADING, MemberState.CONNECTING)
SERVING = (*COMING, MemberState.READY)


class Staffing(Roster):
    """The part of the fleet that compares what is wanted of the stages with who is there."""

    def _want_gateways(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if now < self._no_gateway_before:
            return actions
        there = [member for member in self.of_stage(GATEWAY) if member.host and not member.retiring]
        is_local_there = any(host.live and host.address in self._local for host in self.hosts.values())
        for _ in range(self.gateways - len(there)):
            hosts, members = self.hosts.values(), self.members.values()
            # Where the controller is: there is the address that clients know.
            own = [host for host in hosts if host.serves]  # what a gateway says is read there
            host = place(GATEWAY, (), own, members) or place(GATEWAY, self._local, hosts, members)
            if host is None and not is_local_there and now < self._gather_by:
                return actions  # it is about to come
            host = host or place(GATEWAY, (), hosts, members)
            if host is None:
                return [*actions, *self._wait_for_fit_host()]
            actions += self._start(GATEWAY, 0, host, now, "gateways are wanted", keep=True)
        if actions:
            self.gateways_wait_for = ""
        return actions

    def _wait_for_fit_host(self) -> list[Action]:
        reasons = sorted(
            f"not on {host.name}: {host.unfit[GATEWAY]}" for host in self.hosts.values() if GATEWAY in host.unfit
        )
        where = "; ".join(reasons)
        if self.gateways_wait_for == where:
            return []
        self.gateways_wait_for = where
        return [Emit(event=StageWaits(stage=GATEWAY, reason=where))]

    def _want(self, plan: StagePlan, now: float) -> list[Action]:
        if plan.rollout is None:
            counted = [member for member in self.of_stage(plan.name) if member.counts]
            actions = self._start_more(plan, plan.version, plan.desired - len(counted), now)
            actions += self._drop_surplus(plan, counted, now)
        else:
            actions = self._roll(plan, plan.rollout, now)
        return actions + self._retire(plan, now)

    def _roll(self, plan: StagePlan, rollout: Rollout, now: float) -> list[Action]:
        counted = [member for member in self.of_stage(plan.name) if member.counts]
        step = rollout.step(counted, plan.desired, now)
        actions: list[Action] = []
        for member in step.drain:
            actions += self._drain(member, f"version {rollout.version} has replaced it", now)
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
        return sum(member.state in ENDING and now - member.since < REST_S for member in self.of_stage(plan.name))

    def _roll_back(self, plan: StagePlan, reason: str) -> list[Action]:
        assert plan.rollout is not None
        version, plan.rollout = plan.rollout.version, None
        plan.weights.pop(version, None)
        for member in self.of_stage(plan.name):
            if member.version == version and not member.retiring:
                member.retiring = f"version {version} was rolled back"
        event = UpdateRolledBack(stage=plan.name, version=version, previous=plan.version, reason=reason)
        return [Emit(event=event)]

    def _start_more(self, plan: StagePlan, version: int, missing: int, now: float) -> list[Action]:
        actions: list[Action] = []
        for _ in range(missing):
            if not plan.crash.allows(now=now):
                break
            stage = self.graph.stages[plan.name]
            host = place(plan.name, stage.hosts, self.hosts.values(), self.members.values())
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
        return sum(member.host == host and member.state in COMING for member in self.members.values())

    def _wait_for_host(self, plan: StagePlan, allowed: tuple[str, ...]) -> list[Action]:
        where = f"none of the hosts {', '.join(allowed)} is there" if allowed else "no host is there"
        if plan.waits_for == where:
            return []
        plan.waits_for = where
        return [Emit(event=StageWaits(stage=plan.name, reason=where))]

    def _start(
        self, stage: str, version: int, host: HostInfo, now: float, reason: str, *, keep: bool = False
    ) -> list[Action]:
        number = self.numbers[stage] = self.numbers.get(stage, 0) + 1
        member = Member(
            id=member_id(stage, number), stage=stage, version=version, born=now, since=now, host=host.name, keep=keep
        )
        self.members[member.id] = member
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
                actions += self._drain(member, f"{plan.desired} are wanted", now)
        return actions

    def _retire(self, plan: StagePlan, now: float) -> list[Action]:
        """Drain those that are to go, as soon as as many as wanted serve without them: one after the other, of very
        many some at once, but those of a host that is being stopped at once.
        """
        members = self.of_stage(plan.name)
        num_ready = sum(member.is_ready and member.counts for member in members)
        going = [member for member in members if member.retiring and member.state in SERVING]
        actions: list[Action] = []
        for member in going:
            is_crowded = self._num_ending(plan, now) >= max(1, len(going) // AT_ONCE)
            must_wait = num_ready < plan.desired or (is_crowded and not self._is_on_leaving_host(member))
            if not (member.is_ready and must_wait):
                actions += self._drain(member, member.retiring, now)
        return actions

    def _give_up(self, member: Member, reason: str, now: float) -> list[Action]:
        """Replace a member that is cut off from others, which may go on with what it still can until then."""
        plan, counted = self.plans[member.stage], member.counts
        was_settled = plan.rollout is not None and plan.rollout.has_settled(member, now)
        member.retiring = reason
        actions = self._mourn(member, was_settled, reason) if counted else []
        if member.is_ready:
            return actions
        if member.host in self.hosts:  # the way to it is to blame, whichever weights it has
            self.hosts[member.host].failed(member.stage)
        return actions + self._back_off(member, now)

    def _serve(self, member: Member, now: float) -> list[Action]:
        member.go(MemberState.READY, now)
        self.plans[member.stage].waits_for = ""
        if member.host in self.hosts:
            self.hosts[member.host].failures.pop(member.stage, None)
        took_s = now - member.born
        event = ReplicaReady(member=member.id, stage=member.stage, version=member.version, took_s=took_s)
        return [Emit(event=event)]

    # ---- where weights come from

    def _load(self, member: Member, now: float) -> list[Action]:
        """Tell a replica to make its work, with the weights of a live one if there is one."""
        plan = self.plans[member.stage]
        if not plan.wants(member.version):
            return []  # its weights are forgotten; it is ended as soon as nobody is awaited any more
        member.load_waits = any(other.awaited for other in self.of_stage(member.stage))
        if member.load_waits:
            return []
        takers = [other.donor for other in self.members.values()]
        live = [
            other
            for other in self.of_stage(member.stage)
            if other.is_ready and other.attached and other.version == member.version
        ]
        donors = [other for other in live if other.id not in member.tried]
        path = plan.weights.get(member.version)
        if live and not donors and path is None:
            return self._await_donor(member, live, now)
        member.lacks_donor_since = None
        giver = self._canary_giver(plan, member)
        load = orders.Load(version=member.version, weights=path, canary=giver)
        actions: list[Action] = []
        if giver is not None:
            actions.append(Send(member=giver, message=orders.GiveCanary(to=member.id)))
        member.donor = None
        if donors:
            member.donor = min(donors, key=lambda other: takers.count(other.id)).id
            actions.append(Send(member=member.donor, message=orders.GiveWeights(to=member.id)))
        elif path is not None and member.address not in self._local and CONTROLLER not in member.tried:
            member.donor = CONTROLLER
            actions.append(Donate(member=member.id, path=path))
        if member.donor is not None:
            load = replace(load, donor=member.donor, weights=None)
        return [*actions, Send(member=member.id, message=load)]

    def _await_donor(self, member: Member, tried: list[Member], now: float) -> list[Action]:
        """None of those that serve could give their weights, and those of the beginning may be others than theirs.

        The end of one that failed may be heard of only now; after a while the fault is the replica's.
        """
        member.donor, member.load_waits = None, True
        if member.lacks_donor_since is None:
            member.lacks_donor_since = now
        if now - member.lacks_donor_since <= self._lease_s + LATE_NEWS_S:
            return []
        why = f"{', '.join(other.id for other in tried)} could not give it the weights"
        self._note_error(member, f"{member.id}: {why}")
        return self._lose(member, why, now)

    def _canary_giver(self, plan: StagePlan, member: Member) -> str | None:
        """Return which replica of the old version tells a new one of an update what it must answer, if there is one."""
        if not self._is_to_be_compared(plan, member):
            return None
        old = [
            other.id
            for other in self.of_stage(plan.name)
            if other.is_ready and other.attached and other.version == plan.version and other.id not in member.tried
        ]
        return old[0] if old else None

    def _is_to_be_compared(self, plan: StagePlan, member: Member) -> bool:
        is_new = plan.rollout is not None and member.version == plan.rollout.version
        return is_new and self.graph.stages[plan.name].canary is not False

    def _other_donors(self, gone: str, now: float) -> list[Action]:
        """Let those who were to take their weights from a member that is gone take them elsewhere."""
        actions: list[Action] = []
        for taker in [other for other in self.members.values() if other.donor == gone]:
            taker.tried.add(gone)
            actions += self._load(taker, now)
        return actions

    # ---- the end of members

    def _drain(self, member: Member, reason: str, now: float) -> list[Action]:
        if not member.is_ready:
            return self._dismiss(member, now)
        member.go(MemberState.DRAINING, now)
        self._to_drain.append(member)
        return [Emit(event=ReplicaDraining(member=member.id, stage=member.stage, reason=reason))]

    def _dismiss(self, member: Member, now: float) -> list[Action]:
        """Tell a member to leave; one that cannot be told yet is ended."""
        if member.state is MemberState.LEAVING:
            return []
        if not member.attached:
            return [*self._kill(member), *self._left(member, now)]
        member.go(MemberState.LEAVING, now)
        return [Send(member=member.id, message=orders.Leave())]

    def _left(self, member: Member, now: float) -> list[Action]:
        self._forget(member)
        return [Emit(event=ReplicaLeft(member=member.id, stage=member.stage)), *self._other_donors(member.id, now)]

    def _lose(
        self, member: Member, why: str, now: float, *, blame: bool = True, died: bool = False, excused: bool = False
    ) -> list[Action]:
        """A member is gone without having been told to. ``blame``: it may be its own fault, which delays the next.

        ``excused``: it has never run, for want of something on its host. Its version is not to blame either.
        """
        leaves = self._is_on_leaving_host(member)
        blame = blame and not leaves
        young, counted = blame and member.died_young(now), member.counts
        was_known = member.attached or member.awaited or member.state is not MemberState.STARTING
        rollout = self.plans[member.stage].rollout if member.stage in self.plans else None
        is_new = rollout is not None and member.version == rollout.version  # then the weights may be to blame
        if blame and not (member.is_gateway or is_new) and member.host in self.hosts and member.state in COMING:
            self.hosts[member.host].failed(member.stage)
        if excused and not member.is_gateway and member.host in self.hosts:
            self.hosts[member.host].failed(member.stage)  # another host may have what this one lacks
        was_settled = excused or (rollout is not None and rollout.has_settled(member, now))
        lost = ReplicaLost(member=member.id, stage=member.stage, why=why)
        actions: list[Action] = [Emit(event=ReplicaLeft(member=member.id, stage=member.stage) if leaves else lost)]
        if not (died and (member.keep or leaves)):  # its host has started the next one of that name by now
            actions = [*self._kill(member), *actions]
        if member.keep and not self.stopping:
            if member.state is not MemberState.STARTING:
                member.go(MemberState.STARTING, now)
            member.since, member.attached, member.awaited, member.pid = now, False, False, None
            member.stats, member.failure = None, None
            self.wiring.forget(member.id)
        else:
            self._forget(member)
        if was_known:
            actions += self._tell_lost(member)
        actions += self._other_donors(member.id, now)
        if not member.is_gateway and not self.stopping:
            actions += self._mourn(member, was_settled, why) if counted else []
            if young:
                actions += self._back_off(member, now)
            elif blame:
                self.plans[member.stage].crash.forgive()  # it did serve: that is no crash loop
        return actions

    def _tell_lost(self, member: Member) -> list[Action]:
        others = [other for other in self.members.values() if other is not member]
        return self._tell_of_end(others, orders.MemberLost(peer=member.id))

    def _tell_of_end(self, members: Iterable[Member], message: MemberOrder) -> list[Action]:
        """Those that are away hear of it when they are back."""
        actions: list[Action] = []
        for member in members:
            if member.awaited:
                member.missed.append(message)
            elif member.attached:
                actions.append(Send(member=member.id, message=message))
        return actions

    def _mourn(self, member: Member, was_settled: bool, why: str) -> list[Action]:
        plan = self.plans[member.stage]
        rollout = plan.rollout
        if rollout is not None and member.version == rollout.version and not was_settled:
            return self._roll_back(plan, f"{member.id}: {why}")
        plan.causes.append(f"replaces {member.id}: {why}")
        return []

    def _back_off(self, member: Member, now: float) -> list[Action]:
        """Let the next replicas of its stage wait, unless what it died of may be a version that nobody starts again."""
        plan = self.plans[member.stage]
        if not plan.wants(member.version):
            return []
        delay_s = plan.crash.died_young(now=now)
        return [Emit(event=BackedOff(stage=plan.name, deaths=plan.crash.deaths, delay_s=delay_s))] if delay_s else []

    def _forget(self, member: Member) -> None:
        del self.members[member.id]
        self.wiring.forget(member.id)
        if member.state is not MemberState.GONE:
            member.state = MemberState.GONE
        member.attached = False

    def _kill(self, member: Member) -> list[Action]:
        if not member.host:
            return []
        restarts = member.keep and not self.stopping
        return [KillProcess(member=member.id, host=member.host, pid=member.pid, restarts=restarts)]
