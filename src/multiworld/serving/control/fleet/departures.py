"""Decide how members end (drained, dismissed, given up or lost), and which others hear of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ...member import orders
from ...member.orders import MemberOrder
from .actions import (
    Action,
    BackedOff,
    Emit,
    KillProcess,
    ReplicaDraining,
    ReplicaLeft,
    ReplicaLost,
    Send,
    UpdateRolledBack,
)
from .loading import Loading
from .members import COMING, Member, MemberState
from .stage_plan import StagePlan
from .state import FleetState


class Departures:
    """Of the members of one deployment."""

    def __init__(self, state: FleetState, loading: Loading) -> None:
        self._state, self._loading = state, loading
        self._to_drain: list[Member] = []

    def drain(self, member: Member, reason: str, now: float) -> list[Action]:
        """Let a member finish what it holds; ``drain_orders`` tells it. One that does not serve is dismissed."""
        if not member.is_ready:
            return self.dismiss(member, now)
        member.go(MemberState.DRAINING, now)
        self._to_drain.append(member)
        return [Emit(event=ReplicaDraining(member=member.id, stage=member.stage, reason=reason))]

    def drain_orders(self) -> list[Action]:
        """Return what those are told that drain since it was asked last: after the ways to them have been closed."""
        members, self._to_drain = self._to_drain, []
        return [Send(member=member.id, message=orders.Drain()) for member in members]

    def dismiss(self, member: Member, now: float) -> list[Action]:
        """Tell a member to leave; one that cannot be told yet is ended."""
        if member.state is MemberState.LEAVING:
            return []
        if not member.attached:
            return [*self.kill(member), *self.left(member, now)]
        member.go(MemberState.LEAVING, now)
        return [Send(member=member.id, message=orders.Leave())]

    def left(self, member: Member, now: float) -> list[Action]:
        self._forget(member)
        event = ReplicaLeft(member=member.id, stage=member.stage)
        return [Emit(event=event), *self._loading.look_elsewhere(member.id, now)]

    def lose(
        self, member: Member, why: str, now: float, *, blame: bool = True, died: bool = False, excused: bool = False
    ) -> list[Action]:
        """A member is gone without having been told to. ``blame``: it may be its own fault, which delays the next.

        ``excused``: it has never run, for want of something on its host. Its version is not to blame either.
        """
        leaves = self._state.is_on_leaving_host(member)
        blame = blame and not leaves
        young, counted = blame and member.died_young(now), member.counts
        was_known = member.attached or member.awaited or member.state is not MemberState.STARTING
        rollout = self._state.plans[member.stage].rollout if member.stage in self._state.plans else None
        is_new = rollout is not None and member.version == rollout.version  # then the weights may be to blame
        if blame and not (member.is_gateway or is_new) and member.host in self._state.hosts and member.state in COMING:
            self._state.hosts[member.host].failed(member.stage)
        if excused and not member.is_gateway and member.host in self._state.hosts:
            self._state.hosts[member.host].failed(member.stage)  # another host may have what this one lacks
        was_settled = excused or (rollout is not None and rollout.has_settled(member, now))
        lost = ReplicaLost(member=member.id, stage=member.stage, why=why)
        actions: list[Action] = [Emit(event=ReplicaLeft(member=member.id, stage=member.stage) if leaves else lost)]
        if not (died and (member.keep or leaves)):  # its host has started the next one of that name by now
            actions = [*self.kill(member), *actions]
        if member.keep and not self._state.stopping:
            if member.state is not MemberState.STARTING:
                member.go(MemberState.STARTING, now)
            member.since, member.attached, member.awaited, member.pid = now, False, False, None
            member.stats, member.failure = None, None
            self._state.wiring.forget(member.id)
        else:
            self._forget(member)
        if was_known:
            actions += self.tell_lost(member)
        actions += self._loading.look_elsewhere(member.id, now)
        if not member.is_gateway and not self._state.stopping:
            actions += self._note_loss(member, was_settled, why) if counted else []
            if young:
                actions += self._back_off(member, now)
            elif blame:
                self._state.plans[member.stage].crash.forgive()  # it did serve: that is no crash loop
        return actions

    def give_up(self, member: Member, reason: str, now: float) -> list[Action]:
        """Replace a member that is cut off from others, which may go on with what it still can until then."""
        plan, counted = self._state.plans[member.stage], member.counts
        was_settled = plan.rollout is not None and plan.rollout.has_settled(member, now)
        member.retiring = reason
        actions = self._note_loss(member, was_settled, reason) if counted else []
        if member.is_ready:
            return actions
        if member.host in self._state.hosts:  # the way to it is to blame, whichever weights it has
            self._state.hosts[member.host].failed(member.stage)
        return actions + self._back_off(member, now)

    def roll_back(self, plan: StagePlan, reason: str) -> list[Action]:
        """End the update that is under way: the old weights serve on, and the replicas with new ones are replaced."""
        assert plan.rollout is not None
        version, plan.rollout = plan.rollout.version, None
        plan.weights.pop(version, None)
        for member in self._state.of_stage(plan.name):
            if member.version == version and not member.retiring:
                member.retiring = f"version {version} was rolled back"
        event = UpdateRolledBack(stage=plan.name, version=version, previous=plan.version, reason=reason)
        return [Emit(event=event)]

    def kill(self, member: Member) -> list[Action]:
        if not member.host:
            return []
        restarts = member.keep and not self._state.stopping
        return [KillProcess(member=member.id, host=member.host, pid=member.pid, restarts=restarts)]

    def tell_lost(self, member: Member) -> list[Action]:
        others = [other for other in self._state.members.values() if other is not member]
        return self.tell_of_end(others, orders.MemberLost(peer=member.id))

    def tell_of_end(self, members: Iterable[Member], message: MemberOrder) -> list[Action]:
        """Those that are away hear of it when they are back."""
        actions: list[Action] = []
        for member in members:
            if member.awaited:
                member.missed.append(message)
            elif member.attached:
                actions.append(Send(member=member.id, message=message))
        return actions

    def _note_loss(self, member: Member, was_settled: bool, why: str) -> list[Action]:
        """Note why another one will be started; new weights that had not proved themselves are rolled back instead."""
        plan = self._state.plans[member.stage]
        rollout = plan.rollout
        if rollout is not None and member.version == rollout.version and not was_settled:
            return self.roll_back(plan, f"{member.id}: {why}")
        plan.causes.append(f"replaces {member.id}: {why}")
        return []

    def _back_off(self, member: Member, now: float) -> list[Action]:
        """Let the next replicas of its stage wait, unless what it died of may be a version that nobody starts again."""
        plan = self._state.plans[member.stage]
        if not plan.wants(member.version):
            return []
        delay_s = plan.crash.died_young(now=now)
        return [Emit(event=BackedOff(stage=plan.name, deaths=plan.crash.deaths, delay_s=delay_s))] if delay_s else []

    def _forget(self, member: Member) -> None:
        del self._state.members[member.id]
        self._state.wiring.forget(member.id)
        if member.state is not MemberState.GONE:
            member.state = MemberState.GONE
        member.attached = False
