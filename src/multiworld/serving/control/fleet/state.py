"""What the controller knows and wants: members, hosts, plans and edges of one deployment, and what is missing. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ....world.liveness import DEFAULT_LEASE_S
from ...errors import UnknownStageError
from ...graph import GATEWAY, Graph
from .members import ENDING, Member, parse_member
from .placement import HostInfo
from .saved import SavedFleet, SavedMember
from .stage_plan import StagePlan
from .wiring import Wiring

GATHER_S = 10.0  # for hosts to come, before those that are there get everything


class FleetState:
    """All members of one deployment.

    ``gateways``: how many to start; ``hosts``: how many to wait for at first, for a while, so that the first one does
    not get all. ``local_addresses``: of hosts that can read files which the controller writes. ``wakes``: there is an
    autoscaler, so a request gets a replica for a stage that sleeps.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        now: float,
        lease_s: float = DEFAULT_LEASE_S,
        gateways: int = 0,
        hosts: int = 1,
        local_addresses: Iterable[str] = ("127.0.0.1", "::1", ""),
        wakes: bool = True,
    ) -> None:
        self.graph = graph
        self._wakes = wakes
        self.members: dict[str, Member] = {}
        self.hosts: dict[str, HostInfo] = {}
        self.plans = {stage.name: StagePlan(name=stage.name, desired=stage.replicas) for stage in graph}
        self.gateways = gateways
        self.gateways_wait_for = ""
        """Why a gateway that is wanted cannot be started; empty as long as no host has shown itself unfit."""
        self.numbers: dict[str, int] = {}
        self.wiring = Wiring(graph)
        self.stopping = False
        self.will_stop = False
        """The controller before was told to: nobody new is started until it is said again."""
        self.unready_since: float | None = now
        self.lease_s = lease_s
        self.local = frozenset(local_addresses)
        self.first_hosts, self.gather_by = hosts, now + GATHER_S
        """How many hosts are waited for at first, and until when."""

    # ---- across restarts of the controller

    def saved(self, *, begun: bool = False) -> SavedFleet:
        """Return what a controller that is started again must know. Members of other processes attach again.

        ``begun``: whether all has come up once.
        """
        return SavedFleet(
            numbers=dict(self.numbers),
            epoch=self.wiring.epoch,
            ready=self.unready_since is None,
            stages={name: plan.saved() for name, plan in self.plans.items()},
            members=tuple(
                SavedMember(
                    id=member.id,
                    stage=member.stage,
                    version=member.version,
                    host=member.host,
                    pid=member.pid,
                    keep=member.keep,
                    was_ready=member.is_ready or (member.awaited and member.was_ready),
                    retiring=member.retiring or ("it was to leave" if member.state in ENDING else ""),
                )
                for member in self.members.values()
                if member.host
            ),
            begun=begun,
            stopping=self.stopping,
        )

    def restore(self, saved: SavedFleet, now: float) -> None:
        """Take over what ``saved`` said: the members are awaited, and nothing is started until they have come."""
        self.numbers = dict(saved.numbers)
        self.wiring.epoch = saved.epoch
        self.unready_since = None if saved.ready else now
        self.will_stop = saved.stopping
        for name in self.plans.keys() & saved.stages.keys():
            self.plans[name] = StagePlan.restored(name, saved.stages[name], now)
        for each in saved.members:
            if each.stage == GATEWAY or each.stage in self.plans:
                self.members[each.id] = Member(born=now, since=now, awaited=True, **vars(each))
        if self.members:  # they were placed: no more hosts are expected than theirs
            self.first_hosts = min(self.first_hosts, len({member.host for member in self.members.values()}))

    # ---- what others may know

    @property
    def resuming(self) -> bool:
        """Whether members that ran before are still awaited."""
        return any(member.awaited for member in self.members.values())

    @property
    def settled(self) -> bool:
        """Whether nothing is under way, so that nothing will change by the passing of time alone."""
        return (
            not self.stopping
            and all(member.is_ready and not member.retiring for member in self.members.values())
            and all(edge.stands for edge in self.wiring.edges.values())
            and all(plan.rollout is None for plan in self.plans.values())
            and all(self.num_counted(name) == plan.desired for name, plan in self.plans.items())
        )

    def of_stage(self, stage: str) -> list[Member]:
        return [member for member in self.members.values() if member.stage == stage]

    def num_counted(self, stage: str) -> int:
        return sum(member.counts for member in self.of_stage(stage))

    def num_open(self, stage: str) -> int:
        """Return how many replicas of a stage take requests now, or will once the stages before it are woken."""
        sources = self.graph.upstream(stage)
        is_behind_sleep = all(name in self.plans and not self.plans[name].desired for name in sources)
        ready = [member for member in self.of_stage(stage) if member.is_ready]
        return sum(is_behind_sleep or self.wiring.is_open(member.id) for member in ready)

    def missing(self) -> str:
        """Return which stages have no replica that takes requests, and what is known of why; empty if all have."""
        parts = []
        for name, plan in self.plans.items():
            sleeps = self._wakes and not plan.desired and not self.graph.stages[name].fewest
            if self.num_open(name) or sleeps:
                continue
            states = ", ".join(f"{member.id} is {member.state.value}" for member in self.of_stage(name))
            reason = plan.waits_for or states or ("it is scaled to 0" if not plan.desired else "none is started yet")
            parts.append(f"stage {name!r} has no replica that takes requests ({reason})")
        return "; ".join(parts)

    @property
    def has_come_up(self) -> bool:
        """Whether every stage that is to have replicas has one that takes requests."""
        return all(self.num_open(name) or not plan.desired for name, plan in self.plans.items())

    def scaling_suspended(self, stage: str, now: float, *, wakes: bool = False) -> str:
        """Return why an autoscaler's wish is not to be followed now; empty if it is.

        ``wakes``: it wants one replica where there are none, for a request that waits.
        """
        plan = self.plan(stage)
        if self.stopping:
            return "the deployment is being stopped"
        if self.resuming:
            return "members are awaited back after a restart of the controller"
        if plan.rollout is not None and not wakes:
            return f"an update to version {plan.rollout.version} is under way"
        if not plan.crash.allows(now=now):
            return "its replicas die young"
        return ""

    def is_on_live_host(self, member: Member) -> bool:
        """Whether somebody will tell of the end of its process."""
        return member.host in self.hosts and self.hosts[member.host].live

    def is_on_leaving_host(self, member: Member) -> bool:
        return member.host in self.hosts and self.hosts[member.host].leaving

    def plan(self, stage: str) -> StagePlan:
        """Raises UnknownStageError."""
        plan = self.plans.get(stage)
        if plan is None:
            raise UnknownStageError(stage, tuple(self.plans))
        return plan

    def is_ours(self, member: str) -> bool:
        parsed = parse_member(member)
        return parsed is not None and (parsed[0] in self.plans or parsed[0] == GATEWAY)

    def note_error(self, member: Member, text: str) -> None:
        if member.stage in self.plans:
            self.plans[member.stage].last_error = text
