"""Decide when a replica makes its work, and whose weights and whose canary it gets for that. Pure."""

from __future__ import annotations

from dataclasses import replace

from ...member import orders
from .actions import Action, Donate, Send
from .members import CONTROLLER, Member, MemberState
from .stage_plan import StagePlan
from .state import FleetState

LATE_NEWS_S = 1.0  # beyond the lease, for the end of a donor to be heard of


class Loading:
    """Of the replicas of one deployment."""

    def __init__(self, state: FleetState) -> None:
        self._state = state

    def load(self, member: Member, now: float) -> list[Action]:
        """Tell a replica to make its work, with the weights of a live one if there is one."""
        plan = self._state.plans[member.stage]
        if not plan.wants(member.version):
            return []  # its weights are forgotten; it is ended as soon as nobody is awaited any more
        member.load_waits = self._are_others_awaited(member)
        if member.load_waits:
            return []
        takers = [other.donor for other in self._state.members.values()]
        live = self._live(member)
        donors = [other for other in live if other.id not in member.tried]
        path = plan.weights.get(member.version)
        if live and not donors and path is None:
            self._await_donor(member, now)
            return []
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
        elif path is not None and member.address not in self._state.local and CONTROLLER not in member.tried:
            member.donor = CONTROLLER
            actions.append(Donate(member=member.id, path=path))
        if member.donor is not None:
            load = replace(load, donor=member.donor, weights=None)
        return [*actions, Send(member=member.id, message=load)]

    def _await_donor(self, member: Member, now: float) -> None:
        """None of those that serve could give their weights, and those of the beginning may be others than theirs.

        The end of one that failed may be heard of only now; after a while the fault is the replica's.
        """
        member.donor, member.load_waits = None, True
        if member.lacks_donor_since is None:
            member.lacks_donor_since = now

    def is_to_load(self, member: Member) -> bool:
        """Whether it is there, has not loaded yet, and its stage still wants its version."""
        plan = self._state.plans[member.stage]
        return member.attached and member.state is MemberState.LOADING and plan.wants(member.version)

    def waits_in_vain(self, member: Member, now: float) -> str:
        """Return why a replica is given up to which nobody could give its weights; empty: it is not, or not yet."""
        since = member.lacks_donor_since
        if since is None or not member.load_waits or self._are_others_awaited(member):
            return ""
        if not self.is_to_load(member):  # it was dismissed meanwhile, or is awaited
            return ""
        if now - since <= self._state.lease_s + LATE_NEWS_S:
            return ""
        return f"{', '.join(other.id for other in self._live(member))} could not give it the weights"

    def _are_others_awaited(self, member: Member) -> bool:
        """Whether some of its stage, which may have what it needs, are still to come back."""
        return any(other.awaited for other in self._state.of_stage(member.stage))

    def _live(self, member: Member) -> list[Member]:
        """Return the replicas that serve with the weights that it is to have."""
        return [
            other
            for other in self._state.of_stage(member.stage)
            if other.is_ready and other.attached and other.version == member.version
        ]

    def _canary_giver(self, plan: StagePlan, member: Member) -> str | None:
        """Return which replica of the old version tells a new one of an update what it must answer, if there is one."""
        if not self.is_to_be_compared(plan, member):
            return None
        old = [
            other.id
            for other in self._state.of_stage(plan.name)
            if other.is_ready and other.attached and other.version == plan.version and other.id not in member.tried
        ]
        return old[0] if old else None

    def is_to_be_compared(self, plan: StagePlan, member: Member) -> bool:
        is_new = plan.rollout is not None and member.version == plan.rollout.version
        return is_new and self._state.graph.stages[plan.name].canary is not False

    def look_elsewhere(self, gone: str, now: float) -> list[Action]:
        """Let those who were to take their weights from a member that is gone take them elsewhere."""
        actions: list[Action] = []
        for taker in [other for other in self._state.members.values() if other.donor == gone]:
            taker.tried.add(gone)
            actions += self.load(taker, now)
        return actions
