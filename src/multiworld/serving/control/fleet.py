"""Decide which members a deployment has and what they are told, from what happens to them and what is ordered. Pure.

Every method that takes ``now`` (seconds of the controller's monotonic clock) returns what has to be done, in that
order. Nothing is remembered of what was ordered but what is wanted and what is there: each step compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import DeploymentError, UnknownStageError
from ..graph import GATEWAY, Batch, Graph
from .actions import (
    Action,
    BackedOff,
    Donate,
    Emit,
    HostJoined,
    HostLost,
    KillProcess,
    LoadFailed,
    PipelineReady,
    PipelineUnready,
    ReplicaDraining,
    ReplicaLeft,
    ReplicaLost,
    ReplicaReady,
    ReplicaStarted,
    Scaled,
    Send,
    StageWaits,
    StartProcess,
    Tuned,
    UpdateFinished,
    UpdateRolledBack,
    UpdateStarted,
)
from .members import CONTROLLER, Member, MemberState, member_id, parse_member
from .placement import HostInfo, place
from .rollout import Rollout
from .stage_plan import StagePlan
from .wiring import Wiring

__all__ = ["Fleet"]

START_S = 60.0  # from the order to the first word of a process
LOAD_S = 600.0
DRAIN_S = 60.0  # then it leaves with what it still holds, which is sent elsewhere
LEAVE_S = 6.0
RETURN_S = 3.0  # beyond the lease, for members to come back to a controller that was started again
GATHER_S = 10.0  # for hosts to come, before those that are there get everything
GATEWAY_STOP_S = 15.0  # for gateways to answer what they hold before the replicas leave


class Fleet:
    """All members of one deployment.

    ``gateways``: how many to start; ``hosts``: how many to wait for at first, for a while, so that the first one does
    not get all. ``local_addresses``: of hosts that can read files which the controller writes.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        now: float,
        lease_s: float = 2.0,
        gateways: int = 0,
        hosts: int = 1,
        local_addresses: Iterable[str] = ("127.0.0.1", "::1", ""),
    ) -> None:
        self.graph = graph
        self.members: dict[str, Member] = {}
        self.hosts: dict[str, HostInfo] = {}
        self.plans = {stage.name: StagePlan(name=stage.name, desired=stage.replicas) for stage in graph}
        self.gateways = gateways
        self.numbers: dict[str, int] = {}
        self.wiring = Wiring(graph)
        self.stopping = False
        self.unready_since: float | None = now
        self._lease_s = lease_s
        self._local = frozenset(local_addresses)
        self._stop_replicas_at = 0.0
        self._first_hosts, self._gather_by = hosts, now + GATHER_S
        self._to_drain: list[Member] = []
        self._events: dict[str, Callable[[Member, Mapping[str, Any], float], list[Action]]] = {
            "hello": self._hello,
            "loaded": self._loaded,
            "load_failed": self._load_failed,
            "connected": self._connected,
            "connect_failed": self._connect_failed,
            "edge_broken": self._edge_broken,
            "drained": self._drained,
            "stats": self._stats,
        }

    # ---- across restarts of the controller

    def to_json(self) -> dict[str, Any]:
        """Return what a controller that is started again must know. Members of other processes attach again."""
        return {
            "numbers": self.numbers,
            "epoch": self.wiring.epoch,
            "ready": self.unready_since is None,
            "stages": {name: plan.to_json() for name, plan in self.plans.items()},
            "members": [
                {
                    "id": member.id,
                    "stage": member.stage,
                    "version": member.version,
                    "host": member.host,
                    "pid": member.pid,
                    "keep": member.keep,
                    "was_ready": member.is_ready or (member.awaited and member.was_ready),
                    "retiring": member.retiring or ("it was to leave" if member.state in LAST else ""),
                }
                for member in self.members.values()
                if member.host
            ],
        }

    def restore(self, saved: Mapping[str, Any], now: float) -> None:
        """Take over what ``to_json`` said: the members are awaited, and nothing is started until they have come."""
        self.numbers = {str(stage): int(number) for stage, number in saved["numbers"].items()}
        self.wiring.epoch = int(saved["epoch"])
        self.unready_since = None if saved["ready"] else now
        for name in self.plans.keys() & saved["stages"].keys():
            self.plans[name] = StagePlan.from_json(name, saved["stages"][name], now)
        for fields in saved["members"]:
            if fields["stage"] == GATEWAY or fields["stage"] in self.plans:
                member = Member(born=now, since=now, awaited=True, **fields)
                self.members[member.id] = member

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
        """Return how many replicas of a stage take requests now."""
        return sum(member.is_ready and self.wiring.is_open(member.id) for member in self.of_stage(stage))

    def missing(self) -> str:
        """Return which stages have no replica that takes requests, and what is known of why; empty if all have."""
        parts = []
        for name, plan in self.plans.items():
            if self.num_open(name):
                continue
            states = ", ".join(f"{member.id} is {member.state.value}" for member in self.of_stage(name))
            reason = plan.waits_for or states or ("it is scaled to 0" if not plan.desired else "none is started yet")
            parts.append(f"stage {name!r} has no replica that takes requests ({reason})")
        return "; ".join(parts)

    def scaling_suspended(self, stage: str, now: float) -> str:
        """Return why an autoscaler's wish is not to be followed now; empty if it is."""
        plan = self._plan(stage)
        if self.stopping:
            return "the deployment is being stopped"
        if self.resuming:
            return "members are awaited back after a restart of the controller"
        if plan.rollout is not None:
            return f"an update to version {plan.rollout.version} is under way"
        if not plan.crash.allows(now=now):
            return "its replicas die young"
        return ""

    # ---- hosts and processes

    def host_joined(
        self, name: str, address: str, capacity: int, running: Mapping[str, int | None], now: float
    ) -> list[Action]:
        """There is a link to a host again, or for the first time; ``running``: its members' processes."""
        self.hosts[name] = HostInfo(name=name, address=address, capacity=capacity)
        actions: list[Action] = [Emit(event=HostJoined(host=name, address=address))]
        for member in [member for member in self.members.values() if member.host == name]:
            if member.id not in running and (member.pid is not None or member.awaited):
                member.keep = False  # a host that does not know it will not start it again
                actions += self._lose(member, "its process has ended", now, blame=False, died=True)
        for running_id, pid in running.items():
            if running_id not in self.members and self._is_ours(running_id):
                actions.append(KillProcess(member=running_id, host=name, pid=pid))  # it was given up meanwhile
        return actions + self._step(now)

    def host_lost(self, name: str, now: float) -> list[Action]:
        host = self.hosts.get(name)
        if host is None or not host.live:
            return []
        host.live = False
        actions: list[Action] = [Emit(event=HostLost(host=name))]
        for member in [member for member in self.members.values() if member.host == name and not member.attached]:
            if not member.awaited and not member.keep:
                actions += self._lose(member, f"host {name} was lost while it started", now, blame=False)
        return actions + self._step(now)

    def started(self, member: str, pid: int, now: float) -> list[Action]:
        if member in self.members:
            self.members[member].pid = pid
        return []

    def start_failed(self, member: str, error: str, now: float) -> list[Action]:
        found = self.members.get(member)
        if found is None:
            return []
        self._note_error(found, f"{found.id} could not be started: {error}")
        return self._lose(found, f"it could not be started: {error}", now) + self._step(now)

    def exited(
        self, member: str, pid: int | None, returncode: int | None, now: float, last_lines: str = ""
    ) -> list[Action]:
        """A process ended. Late news of one whose name another process has by now changes nothing."""
        found = self.members.get(member)
        if found is None or (pid is not None and found.pid is not None and pid != found.pid):
            return []
        if found.state is MemberState.LEAVING:
            forgets = self._kill(found) if found.keep else []  # else its host would start it again
            return [*forgets, *self._left(found), *self._step(now)]
        found.keep = found.keep and returncode != 0  # its host starts it again only after a failure
        why = f"its process ended with {returncode}"
        self._note_error(found, f"{found.id}: {why}\n{last_lines}".rstrip())
        return self._lose(found, why, now, died=True) + self._step(now)

    # ---- members

    def member_attached(self, member: str, now: float) -> list[Action]:
        """A gateway that lives in a process which is not the deployment's own will say hello."""
        parsed = parse_member(member)
        if parsed is None or parsed[0] != GATEWAY or member in self.members:
            raise ValueError(f"member={member!r}: expected the unused name of a gateway, as 'gateway-0'")
        self.members[member] = Member(id=member, stage=GATEWAY, version=0, born=now, since=now)
        return []

    def heard(self, member: str, message: Mapping[str, Any], now: float) -> list[Action]:
        """A member said something. What a member says that is not one, or after its end, is ignored."""
        found = self.members.get(member)
        handle = self._events.get(str(message.get("event")))
        if found is None or handle is None or (not found.attached and message["event"] != "hello"):
            return []
        actions = handle(found, message, now)
        return actions if message["event"] == "stats" else actions + self._step(now)

    def lost(self, member: str, why: str, now: float, *, died: bool = False) -> list[Action]:
        """The world shared with a member broke. ``died``: because its process ended, as far as can be told."""
        found = self.members.get(member)
        if found is None or (not found.attached and (found.awaited or found.keep)):
            return []  # it comes again by itself
        if found.state is MemberState.LEAVING and found.host:
            return []  # its process's end is what is waited for
        if found.state is MemberState.LEAVING:
            return self._left(found) + self._step(now)
        return self._lose(found, why, now, blame=died, died=died) + self._step(now)

    # ---- orders

    def scale(self, stage: str, replicas: int, now: float, *, reason: str = "ordered") -> list[Action]:
        """Want another number of replicas. Raises UnknownStageError, ValueError."""
        plan = self._plan(stage)
        if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MOST_REPLICAS:
            raise ValueError(f"replicas={replicas!r}: expected a number from 0 to {MOST_REPLICAS}")
        if replicas == plan.desired:
            return []
        event = Scaled(stage=stage, old=plan.desired, new=replicas, reason=reason)
        plan.causes.extend([f"{reason}: from {plan.desired} to {replicas}"] * max(0, replicas - plan.desired))
        plan.desired = replicas
        plan.crash.forgive()
        return [Emit(event=event), *self._step(now)]

    def drain(self, member: str, now: float, *, scale_down: bool = False) -> list[Action]:
        """Let a replica finish and leave, once another has replaced it; or without, if the stage keeps at least one.

        Raises UnknownStageError, DeploymentError.
        """
        found = self.members.get(member)
        if found is None or found.is_gateway:
            known = tuple(each.id for each in self.members.values() if not each.is_gateway)
            raise UnknownStageError(member, known)
        plan = self.plans[found.stage]
        if found.retiring or not found.counts:
            return []
        if scale_down:
            if plan.desired <= 1:
                raise DeploymentError(f"{member} is the last replica of stage {found.stage!r}, which is to have one")
            plan.desired -= 1
        found.retiring = "ordered"
        return self._step(now)

    def update(
        self,
        stage: str,
        weights: str,
        now: float,
        *,
        parallel: bool = False,
        settle_s: float = 1.0,
        needs_verdict: bool = False,
    ) -> list[Action]:
        """Bring new weights in, from a file, replica by replica. Raises UnknownStageError, DeploymentError."""
        plan = self._plan(stage)
        if plan.rollout is not None:
            raise DeploymentError(
                f"stage {stage!r} is being updated to version {plan.rollout.version} already; wait until that is done"
            )
        plan.last_version += 1
        plan.weights[plan.last_version] = weights
        plan.rollout = Rollout(
            version=plan.last_version,
            started_at=now,
            parallel=parallel,
            settle_s=settle_s,
            needs_verdict=needs_verdict,
        )
        return [Emit(event=UpdateStarted(stage=stage, version=plan.last_version)), *self._step(now)]

    def judge(self, stage: str, good: bool, reason: str, now: float) -> list[Action]:
        """Say whether what the new replicas of an update answer is right."""
        plan = self._plan(stage)
        if plan.rollout is None:
            return []
        if not good:
            return self._roll_back(plan, reason) + self._step(now)
        plan.rollout.approved = True
        return self._step(now)

    def tune(self, stage: str, settings: Mapping[str, Any], now: float) -> list[Action]:
        """Change how a stage forms its batches, in all replicas and in those to come.

        ``settings``: ``batch_max_size`` and ``batch_max_wait_s``, or one of them. Raises UnknownStageError, ValueError.
        """
        plan = self._plan(stage)
        batch = self.graph.stages[stage].batch or Batch(max_size=1)
        present = plan.tuning or {"batch_max_size": batch.max_size, "batch_max_wait_s": batch.max_wait_s}
        unknown = settings.keys() - present.keys()
        if unknown:
            raise ValueError(f"unknown settings {sorted(unknown)}; there are {', '.join(present)}")
        tuning = present | dict(settings)
        Batch(max_size=tuning["batch_max_size"], max_wait_s=tuning["batch_max_wait_s"])
        plan.tuning = tuning
        actions: list[Action] = [Emit(event=Tuned(stage=stage, settings=dict(settings)))]
        tuned = [member for member in self.of_stage(stage) if member.attached]
        return actions + [Send(member=member.id, message={"do": "tune", **plan.tuning}) for member in tuned]

    def stop(self, now: float) -> list[Action]:
        """End all members: gateways first, as they hold requests, then the replicas."""
        if self.stopping:
            return []
        self.stopping = True
        self._stop_replicas_at = now + GATEWAY_STOP_S
        actions: list[Action] = []
        for member in [member for member in self.members.values() if member.is_gateway]:
            actions += self._left(member) if not member.host else self._dismiss(member, now)
        return actions + self._step(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        return self._step(now)

    # ---- what members say

    def _hello(self, member: Member, message: Mapping[str, Any], now: float) -> list[Action]:
        if member.attached or member.state is not MemberState.STARTING:
            return []
        member.attached, member.awaited = True, False
        member.pid = int(message["pid"]) if member.pid is None else member.pid
        member.address = str(message.get("host", ""))
        self.wiring.adopt(member.id, message.get("edges") or (), self.members, now)
        state = message.get("state")
        if member.is_gateway:
            member.go(MemberState.READY, now)
            return [] if self.resuming else [self._readiness(member, self.missing())]
        if state == "starting":
            member.go(MemberState.LOADING, now)
            return self._load(member)
        member.version = int(message.get("version") or member.version)
        if state == "draining":
            member.go(MemberState.DRAINING, now)
            return [Send(member=member.id, message={"do": "drain"})]
        member.go(MemberState.READY if state == "ready" or member.was_ready else MemberState.CONNECTING, now)
        return []

    def _loaded(self, member: Member, message: Mapping[str, Any], now: float) -> list[Action]:
        if member.state is not MemberState.LOADING:
            return []
        member.donor = None
        member.go(MemberState.CONNECTING, now)
        tuning = self.plans[member.stage].tuning
        return [Send(member=member.id, message={"do": "tune", **tuning})] if tuning else []

    def _load_failed(self, member: Member, message: Mapping[str, Any], now: float) -> list[Action]:
        source = member.donor or ""
        if member.state is not MemberState.LOADING or (message.get("donor", member.donor) or "") != source:
            return []  # of an attempt that another has replaced
        error, traceback = str(message.get("error", "")), str(message.get("traceback", ""))
        event = LoadFailed(member=member.id, stage=member.stage, source=source, error=error, traceback=traceback)
        if source:
            member.tried.add(source)
            return [Emit(event=event), *self._load(member)]
        self._note_error(member, f"{member.id} could not load: {error}\n{traceback}".rstrip())
        return [Emit(event=event), *self._lose(member, f"it could not load: {error}", now)]

    def _load(self, member: Member) -> list[Action]:
        """Tell a replica to make its work, with the weights of a live one if there is one."""
        plan = self.plans[member.stage]
        takers = [other.donor for other in self.members.values()]
        donors = [
            other
            for other in self.of_stage(member.stage)
            if other.is_ready and other.version == member.version and other.id not in member.tried
        ]
        path = plan.weights.get(member.version)
        load: dict[str, Any] = {"do": "load", "version": member.version, "donor": None, "weights": path}
        if donors:
            donor = min(donors, key=lambda other: takers.count(other.id)).id
            member.donor = donor
            return [
                Send(member=donor, message={"do": "donate", "to": member.id}),
                Send(member=member.id, message={**load, "donor": donor, "weights": None}),
            ]
        if path is not None and member.address not in self._local and CONTROLLER not in member.tried:
            member.donor = CONTROLLER
            message = {**load, "donor": CONTROLLER, "weights": None}
            return [Donate(member=member.id, path=path), Send(member=member.id, message=message)]
        member.donor = None
        return [Send(member=member.id, message=load)]

    def _connected(self, member: Member, message: Mapping[str, Any], now: float) -> list[Action]:
        self.wiring.connected(member.id, str(message["peer"]), str(message["as"]), now)
        return []

    def _connect_failed(self, member: Member, message: Mapping[str, Any], now: float) -> list[Action]:
        error = str(message.get("error", ""))
        return self.wiring.failed(member.id, str(message["peer"]), str(message["as"]), error, now, broke=False)

    def _edge_broken(self, member: Member, message: Mapping[str, Any], now: float) -> list[Action]:
        error = f"{message.get('error', '')}: {message.get('text', '')}"
        return self.wiring.failed(member.id, str(message["peer"]), str(message["as"]), error, now, broke=True)

    def _drained(self, member: Member, message: Mapping[str, Any], now: float) -> list[Action]:
        return self._dismiss(member, now) if member.state is MemberState.DRAINING else []

    def _stats(self, member: Member, message: Mapping[str, Any], now: float) -> list[Action]:
        member.stats = {key: value for key, value in message.items() if key != "event"}
        return []

    # ---- the step: compare what is wanted with what is there

    def _step(self, now: float) -> list[Action]:
        actions = self._expire(now)
        if self.stopping:
            return actions + self._stop_replicas(now)
        for name, reason in self.wiring.cut_off(self.members).items():
            actions += self._give_up(self.members[name], reason, now)
        actions += self.wiring.step(self.members, now)
        for member in list(self.members.values()):
            if member.state is MemberState.CONNECTING and self.wiring.is_wired(member, self.members, now):
                actions += self._serve(member, now)
        actions += self.wiring.route(self.members, now)
        if not self.resuming and (len(self.hosts) >= self._first_hosts or now >= self._gather_by):
            actions += self._want_gateways(now)
            for plan in self.plans.values():
                actions += self._want(plan, now)
        actions += self.wiring.route(self.members, now)
        actions += [Send(member=member.id, message={"do": "drain"}) for member in self._to_drain]
        self._to_drain.clear()
        return actions + self._report_readiness(now)

    def _expire(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for member in list(self.members.values()):
            waited = now - member.since
            if member.awaited:
                if waited > self._lease_s + RETURN_S:
                    why = "it did not come back to the controller, which was started again"
                    actions += self._lose(member, why, now, blame=False)
            elif member.state is MemberState.STARTING and member.host and waited > START_S:
                actions += self._lose(member, f"it said nothing within {START_S:g} s of its start", now)
            elif member.state is MemberState.LOADING and waited > LOAD_S:
                actions += self._lose(member, f"it did not load within {LOAD_S:g} s", now)
            elif member.state is MemberState.DRAINING and waited > DRAIN_S:
                actions += self._dismiss(member, now)
            elif member.state is MemberState.LEAVING and waited > LEAVE_S:
                actions += [*self._kill(member), *self._left(member)]
        return actions

    def _give_up(self, member: Member, reason: str, now: float) -> list[Action]:
        """Replace a member that is cut off from others, which may go on with what it still can until then."""
        plan = self.plans[member.stage]
        if member.counts:
            plan.causes.append(f"replaces {member.id}: {reason}")
        member.retiring = reason
        return [] if member.is_ready else self._back_off(plan, now)

    def _serve(self, member: Member, now: float) -> list[Action]:
        member.go(MemberState.READY, now)
        self.plans[member.stage].waits_for = ""
        took_s = now - member.born
        event = ReplicaReady(member=member.id, stage=member.stage, version=member.version, took_s=took_s)
        return [Emit(event=event)]

    def _want_gateways(self, now: float) -> list[Action]:
        actions: list[Action] = []
        there = [member for member in self.of_stage(GATEWAY) if member.host]
        for _ in range(self.gateways - len(there)):
            host = place(GATEWAY, (), self.hosts.values(), self.members.values())
            if host is not None:
                actions += self._start(GATEWAY, 0, host, now, "gateways are wanted", keep=True)
        return actions

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
        actions = self._start_more(plan, plan.version, step.start_old, now)
        actions += self._start_more(plan, rollout.version, step.start_new, now)
        for member in step.drain:
            actions += self._drain(member, f"version {rollout.version} has replaced it", now)
        if step.done:
            plan.version, plan.rollout = rollout.version, None
            plan.weights = {version: path for version, path in plan.weights.items() if version == plan.version}
            took_s = now - rollout.started_at
            actions.append(Emit(event=UpdateFinished(stage=plan.name, version=plan.version, took_s=took_s)))
        return actions

    def _roll_back(self, plan: StagePlan, reason: str) -> list[Action]:
        assert plan.rollout is not None
        version, plan.rollout = plan.rollout.version, None
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
            reason = plan.causes.popleft() if plan.causes else f"{plan.desired} wanted, version {version}"
            actions += self._start(plan.name, version, host, now, reason)
        if missing > 0 and actions:
            plan.waits_for = ""
        return actions

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
        """End the newest of too many, before all those that do not serve yet; one that serves always stays."""
        actions: list[Action] = []
        surplus = len(counted) - plan.desired
        for member in sorted(counted, key=lambda member: (member.is_ready, -member.born))[: max(surplus, 0)]:
            num_ready = sum(other.is_ready and other.counts for other in counted)
            if not member.is_ready or num_ready > 1 or plan.desired == 0:
                actions += self._drain(member, f"{plan.desired} are wanted", now)
        return actions

    def _retire(self, plan: StagePlan, now: float) -> list[Action]:
        """Drain those that are to go, as soon as as many as wanted serve without them."""
        members = self.of_stage(plan.name)
        num_ready = sum(member.is_ready and member.counts for member in members)
        actions: list[Action] = []
        for member in members:
            if member.retiring and member.state in SERVING and (not member.is_ready or num_ready >= plan.desired):
                actions += self._drain(member, member.retiring, now)
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
            return [*self._kill(member), *self._left(member)]
        member.go(MemberState.LEAVING, now)
        return [Send(member=member.id, message={"do": "leave"})]

    def _left(self, member: Member) -> list[Action]:
        self._forget(member)
        return [Emit(event=ReplicaLeft(member=member.id, stage=member.stage)), *self._other_donors(member.id)]

    def _other_donors(self, gone: str) -> list[Action]:
        """Let those who were to take their weights from a member that is gone take them elsewhere."""
        actions: list[Action] = []
        for taker in [other for other in self.members.values() if other.donor == gone]:
            taker.tried.add(gone)
            actions += self._load(taker)
        return actions

    def _lose(self, member: Member, why: str, now: float, *, blame: bool = True, died: bool = False) -> list[Action]:
        """A member is gone without having been told to. ``blame``: it may be its own fault, which delays the next."""
        young, counted = blame and member.died_young(now), member.counts
        rollout = self.plans[member.stage].rollout if member.stage in self.plans else None
        was_settled = rollout is not None and rollout.has_settled(member, now)
        actions: list[Action] = [Emit(event=ReplicaLost(member=member.id, stage=member.stage, why=why))]
        if not (member.keep and died):  # its host has started the next one of that name by now
            actions = [*self._kill(member), *actions]
        if member.keep and not self.stopping:
            if member.state is not MemberState.STARTING:
                member.go(MemberState.STARTING, now)
            member.since, member.attached, member.awaited, member.pid = now, False, False, None
            self.wiring.forget(member.id)
        else:
            self._forget(member)
        others = [other for other in self.members.values() if other.attached]
        actions += [Send(member=other.id, message={"do": "lost", "peer": member.id}) for other in others]
        actions += self._other_donors(member.id)
        if not member.is_gateway and not self.stopping:
            actions += self._mourn(member, was_settled, why) if counted else []
            actions += self._back_off(self.plans[member.stage], now) if young else []
        return actions

    def _mourn(self, member: Member, was_settled: bool, why: str) -> list[Action]:
        plan = self.plans[member.stage]
        rollout = plan.rollout
        if rollout is not None and member.version == rollout.version and not was_settled:
            return self._roll_back(plan, f"{member.id}: {why}")
        plan.causes.append(f"replaces {member.id}: {why}")
        return []

    def _back_off(self, plan: StagePlan, now: float) -> list[Action]:
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

    def _stop_replicas(self, now: float) -> list[Action]:
        if now < self._stop_replicas_at and self.of_stage(GATEWAY):
            return []
        actions: list[Action] = []
        for member in list(self.members.values()):
            actions += self._dismiss(member, now)
        return actions

    # ---- below

    def _report_readiness(self, now: float) -> list[Action]:
        missing = self.missing()
        if self.resuming or bool(missing) == (self.unready_since is not None):
            return []
        gateways = [member for member in self.of_stage(GATEWAY) if member.attached]
        actions: list[Action] = [self._readiness(member, missing) for member in gateways]
        if missing or self.unready_since is None:
            self.unready_since = now
            return [*actions, Emit(event=PipelineUnready(missing=missing))]
        after_s, self.unready_since = now - self.unready_since, None
        return [*actions, Emit(event=PipelineReady(after_s=after_s))]

    @staticmethod
    def _readiness(gateway: Member, missing: str) -> Send:
        return Send(member=gateway.id, message={"do": "readiness", "ready": not missing, "why": missing})

    def _note_error(self, member: Member, text: str) -> None:
        if member.stage in self.plans:
            self.plans[member.stage].last_error = text

    def _plan(self, stage: str) -> StagePlan:
        plan = self.plans.get(stage)
        if plan is None:
            raise UnknownStageError(stage, tuple(self.plans))
        return plan

    def _is_ours(self, member: str) -> bool:
        parsed = parse_member(member)
        return parsed is not None and (parsed[0] in self.plans or parsed[0] == GATEWAY)


LAST = (MemberState.DRAINING, MemberState.LEAVING)
SERVING = (MemberState.STARTING, MemberState.LOADING, MemberState.CONNECTING, MemberState.READY)
MOST_REPLICAS = 1024
