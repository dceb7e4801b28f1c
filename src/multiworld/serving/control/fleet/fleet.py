"""Decide which members a deployment has and what they are told, from what happens to them and what is ordered. Pure.

Every method that takes ``now`` (seconds of the controller's monotonic clock) returns what has to be done, in that
order. Nothing is remembered of what was ordered but what is wanted and what is there: each step compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....errors import PeerLeftError
from ....process.signal_names import how_ended
from ...errors import DeploymentError, UnknownStageError
from ...graces import STOP_S
from ...graph import GATEWAY, Batch
from ...member import orders, reports
from ...member.exit_status import IN_VAIN, starts_again
from ...member.orders import EdgeEnd
from ...member.reports import MemberReport
from .actions import (
    Action,
    CanaryPassed,
    CanarySkipped,
    EdgeLost,
    Emit,
    HostJoined,
    HostLeft,
    HostLost,
    HostsMissing,
    KillProcess,
    LoadFailed,
    PipelineReady,
    PipelineUnready,
    ProcessEnded,
    Scaled,
    Send,
    Tuned,
    UpdateStarted,
)
from .departures import Departures
from .loading import Loading
from .members import CONTROLLER, Member, MemberState, parse_member
from .placement import HostInfo
from .replacement import Replacement
from .rollout import Rollout, check_settle
from .state import GATHER_S, FleetState

START_S = 60.0  # from the order to the first word of a process
LOAD_S = 600.0
DRAIN_S = 60.0  # without work to execute; then it leaves with what it still holds, which is sent elsewhere
LEAVE_S = 6.0
RETURN_S = 3.0  # beyond the lease, for members to come back to a controller that was started again
FORGET_HOST_S = 600.0  # after the link to it ended
MOST_REPLICAS = 1024
FEWEST_MOST, USEFUL_PER_CORE = 16, 8  # replicas of a stage without max_replicas
QUIET = (reports.ReplicaNews, reports.GatewayNews, reports.AskWhere, reports.At)  # changes nothing


class Fleet:
    """All members of one deployment. What it knows and wants is in ``state``, for others to read."""

    def __init__(self, state: FleetState) -> None:
        self.state = state
        self._loading = Loading(state)
        self._departures = Departures(state, self._loading)
        self._replacement = Replacement(state, self._departures)
        self._stop_replicas_at = 0.0

    # ---- hosts and processes

    def host_joined(
        self, name: str, address: str, capacity: int, running: Mapping[str, int | None], now: float
    ) -> list[Action]:
        """There is a link to a host again, or for the first time; ``running``: its members' processes."""
        self.state.hosts[name] = HostInfo(name=name, address=address, capacity=capacity, serves=CONTROLLER in running)
        actions: list[Action] = [Emit(event=HostJoined(host=name, address=address))]
        for member in [member for member in self.state.members.values() if member.host == name]:
            member.pid = running.get(member.id, member.pid)
            if member.id not in running and (member.pid is not None or member.awaited):
                member.keep = False  # a host that does not know it will not start it again
                actions += self._departures.lose(member, "its process has ended", now, blame=False, died=True)
        for running_id, pid in running.items():
            if running_id not in self.state.members and self.state.is_ours(running_id):
                actions.append(KillProcess(member=running_id, host=name, pid=pid))  # it was given up meanwhile
        return actions + self._step(now)

    def host_lost(self, name: str, now: float) -> list[Action]:
        host = self.state.hosts.get(name)
        if host is None or not host.live:
            return []
        host.live, host.lost_at = False, now
        actions: list[Action] = [Emit(event=HostLeft(host=name) if host.leaving else HostLost(host=name))]
        for member in [member for member in self.state.members.values() if member.host == name]:
            if host.leaving:
                actions += self._departures.lose(member, f"host {name} was stopped", now)
            elif member.state is MemberState.LEAVING and not member.attached:
                actions += self._departures.left(member, now)
            elif not (member.attached or member.awaited or member.keep):
                actions += self._departures.lose(member, f"host {name} was lost while it started", now, blame=False)
        return actions + self._step(now)

    def host_stopping(self, name: str, now: float, *, ends_all: bool) -> list[Action]:
        """A host has begun to end its members: they are replaced elsewhere. ``ends_all``: the controller is among them.

        Then nobody is replaced.
        """
        host = self.state.hosts.get(name)
        if host is None or self.state.stopping:
            return []
        host.leaving = True
        for member in [member for member in self.state.members.values() if member.host == name]:
            member.keep = False
            member.retiring = member.retiring or f"host {name} is being stopped"
        if ends_all:
            self.state.stopping = True
            self._stop_replicas_at = math.inf  # the hosts do that
        return self._step(now)

    def started(self, member: str, pid: int, now: float) -> list[Action]:
        if member in self.state.members:
            self.state.members[member].pid = pid
        return []

    def start_failed(self, member: str, error: str, now: float, *, is_excused: bool = False) -> list[Action]:
        """``is_excused``: its host had nothing left for it, which is no fault of the member or of its version."""
        found = self.state.members.get(member)
        if found is None:
            return []
        self.state.note_error(found, f"{found.id} could not be started: {error}")
        found.keep = False  # its host has none of that name
        if found.is_gateway:
            self._replacement.gateway_failed(now)
        why = f"it could not be started: {error}"
        return self._departures.lose(found, why, now, blame=not is_excused, excused=is_excused) + self._step(now)

    def exited(
        self,
        member: str,
        pid: int | None,
        returncode: int | None,
        now: float,
        last_lines: str = "",
        executing: Sequence[str] | None = None,
    ) -> list[Action]:
        """A process ended. Late news of one whose name another process has by now changes nothing.

        ``executing``: the ids of the requests that it was executing then, if that is known.
        """
        found = self.state.members.get(member)
        if found is None:
            return [*self._tell_executing(member, executing), *self._ended(member, returncode, last_lines)]
        if pid is not None and found.pid is not None and pid != found.pid:
            return []
        if found.state is MemberState.LEAVING:
            forgets = self._departures.kill(found) if found.keep else []  # else its host would start it again
            # It may have been given up with requests in hand, long before it left.
            told = self._tell_executing(member, executing)
            return [*told, *forgets, *self._departures.left(found, now), *self._step(now)]
        found.keep = found.keep and starts_again(returncode)  # by its host
        if returncode == IN_VAIN and found.host in self.state.hosts:
            self.state.hosts[found.host].unfit[found.stage] = last_lines.rpartition("\n")[2]
        why = f"its process {how_ended(returncode)}"
        self.state.note_error(found, f"{found.id}: {why}\n{last_lines}".rstrip())
        ended = self._ended(member, returncode, last_lines)
        told = self._tell_executing(member, executing)
        return [*told, *ended, *self._departures.lose(found, why, now, died=True), *self._step(now)]

    def _tell_executing(self, member: str, executing: Sequence[str] | None) -> list[Action]:
        """Tell all who may have sent to a replica what it was executing: else they suspect all that it held."""
        parsed = parse_member(member)
        if executing is None or parsed is None or parsed[0] == GATEWAY or parsed[0] not in self.state.plans:
            return []
        message = orders.MemberDied(peer=member, executing=tuple(executing))
        upstream = self.state.graph.upstream(parsed[0])
        senders = [other for other in self.state.members.values() if other.stage in upstream]
        return self._departures.tell_of_end(senders, message)

    def _ended(self, member: str, returncode: int | None, last_lines: str) -> list[Action]:
        """Return the record of an end that nobody ordered, or that was forced."""
        parsed = parse_member(member)
        if parsed is None or not returncode:
            return []
        event = ProcessEnded(member=member, stage=parsed[0], returncode=returncode, last_lines=last_lines)
        return [Emit(event=event)]

    # ---- members

    def member_attached(self, member: str, now: float) -> list[Action]:
        """A gateway that lives in a process which is not the deployment's own will say hello."""
        parsed = parse_member(member)
        if parsed is None or parsed[0] != GATEWAY or member in self.state.members:
            raise ValueError(f"member={member!r}: expected the unused name of a gateway, as 'gateway-0'")
        self.state.numbers[GATEWAY] = max(self.state.numbers.get(GATEWAY, 0), parsed[1])
        self.state.members[member] = Member(id=member, stage=GATEWAY, version=0, born=now, since=now)
        return []

    def heard(self, member: str, report: MemberReport, now: float) -> list[Action]:
        """A member said something. What a member says that is not one, or after its end, is ignored."""
        found = self.state.members.get(member)
        if found is None or not (found.attached or isinstance(report, reports.Hello)):
            return []
        found.heard_at = now
        actions = self._told(found, report, now)
        return actions if isinstance(report, QUIET) else actions + self._step(now)

    def _told(self, member: Member, report: MemberReport, now: float) -> list[Action]:
        if isinstance(report, reports.Hello):
            return self._hello(member, report, now)
        if isinstance(report, reports.Loaded):
            return self._loaded(member, report, now)
        if isinstance(report, reports.LoadFailure):
            return self._load_failed(member, report, now)
        if isinstance(report, reports.CanaryMissed):
            return self._canary_missed(member, report, now)
        if isinstance(report, reports.Connected):
            self.state.wiring.connected(member.id, report.peer, report.end, now)
            return []
        if isinstance(report, reports.ConnectFailed):
            return self.state.wiring.failed(member.id, report.peer, report.end, report.error, now, broke=False)
        if isinstance(report, reports.EdgeFailure):
            return self._edge_broken(member, report, now)
        if isinstance(report, reports.Drained):
            return self._departures.dismiss(member, now) if member.state is MemberState.DRAINING else []
        if isinstance(report, (reports.ReplicaNews, reports.GatewayNews)):
            self._take_news(member, report, now)
            return []
        return self._where(member, report) if isinstance(report, reports.AskWhere) else self._at(report)

    def lost(self, member: str, why: str, now: float, *, died: bool = False) -> list[Action]:
        """The world shared with a member broke. ``died``: because its process ended, as far as can be told."""
        found = self.state.members.get(member)
        if found is None or (not found.attached and (found.awaited or found.keep)):
            return []  # it comes again by itself
        is_leaving = found.state is MemberState.LEAVING
        if self.state.is_on_live_host(found) and (is_leaving or self.state.is_on_leaving_host(found)):
            found.attached = found.attached and not is_leaving
            return []  # its process's end is what is waited for
        if is_leaving or (self.state.stopping and not found.host):
            return self._departures.left(found, now) + self._step(now)
        return self._departures.lose(found, why, now, blame=died, died=died) + self._step(now)

    def await_back(self, member: str, now: float) -> None:
        """The world with a member broke because this process was away: it serves on, and will say hello again."""
        found = self.state.members.get(member)
        if found is not None and found.host and found.attached:
            found.attached, found.awaited, found.since = False, True, now

    def was_away(self, away_s: float, now: float) -> None:
        """This process heard nothing for a while, whatever was said: nobody has kept it waiting meanwhile."""
        for member in self.state.members.values():
            member.heard_at = now
            member.since = min(member.since + away_s, now)

    def most_replicas(self, stage: str) -> tuple[int, str]:
        """Return how many replicas a stage may have unless more are forced, and why.

        That is the maximum that the pipeline gives to it; without one, what the processors of its hosts can be used by.
        """
        self.state.plan(stage)
        chosen = self.state.graph.stages[stage].max_replicas
        if chosen is not None:
            return chosen, f"max_replicas of stage {stage!r}"
        allowed = self.state.graph.stages[stage].hosts
        cores = sum(host.capacity for host in self.state.hosts.values() if not allowed or host.name in allowed)
        most = min(MOST_REPLICAS, max(FEWEST_MOST, USEFUL_PER_CORE * cores))
        return most, f"what the {cores} cores of its hosts are of use for, as stage {stage!r} has no max_replicas"

    # ---- orders

    def scale(self, stage: str, replicas: int, now: float, *, reason: str = "ordered") -> list[Action]:
        """Want another number of replicas. Raises UnknownStageError, ValueError."""
        plan = self.state.plan(stage)
        if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MOST_REPLICAS:
            raise ValueError(f"replicas={replicas!r}: expected a number from 0 to {MOST_REPLICAS}")
        if replicas == plan.desired:
            return []
        event = Scaled(stage=stage, old=plan.desired, new=replicas, reason=reason)
        plan.causes.extend([f"{reason}: from {plan.desired} to {replicas}"] * max(0, replicas - plan.desired))
        plan.desired = replicas
        plan.crash.forgive()
        for host in self.state.hosts.values():
            host.failures.pop(stage, None)
        return [Emit(event=event), *self._step(now)]

    def drain(self, member: str, now: float, *, scale_down: bool = False) -> list[Action]:
        """Let a replica finish and leave, once another has replaced it; or without, if the stage keeps at least one.

        Raises UnknownStageError, DeploymentError.
        """
        found = self.state.members.get(member)
        if found is None or found.is_gateway:
            known = tuple(each.id for each in self.state.members.values() if not each.is_gateway)
            raise UnknownStageError(member, known)
        plan = self.state.plans[found.stage]
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
        """Bring new weights in, from a file, replica by replica. Raises UnknownStageError, DeploymentError,
        ValueError.
        """
        self.next_version(stage)
        check_settle(settle_s)
        plan = self.state.plans[stage]
        plan.last_version += 1
        plan.weights[plan.last_version] = weights
        plan.rollout = Rollout(
            version=plan.last_version, parallel=parallel, settle_s=settle_s, needs_verdict=needs_verdict
        )
        plan.updating_since = now
        if not plan.desired:
            plan.causes.append(f"version {plan.last_version} proves itself, though no replica is wanted")
        return [Emit(event=UpdateStarted(stage=stage, version=plan.last_version)), *self._step(now)]

    def next_version(self, stage: str) -> int:
        """Return the number of the next update. Raises UnknownStageError, DeploymentError while one is under way."""
        plan = self.state.plan(stage)
        if plan.rollout is not None:
            raise DeploymentError(
                f"stage {stage!r} is being updated to version {plan.rollout.version} already; wait until that is done"
            )
        return plan.last_version + 1

    def judge(self, stage: str, good: bool, reason: str, now: float) -> list[Action]:
        """Say whether what the new replicas of an update answer is right."""
        plan = self.state.plan(stage)
        if plan.rollout is None:
            return []
        if not good:
            return self._departures.roll_back(plan, reason) + self._step(now)
        plan.rollout = replace(plan.rollout, approved=True)
        return self._step(now)

    def tune(self, stage: str, settings: Mapping[str, float], now: float) -> list[Action]:
        """Change how a stage forms its batches, in all replicas and in those to come.

        ``settings``: ``batch_max_size`` and ``batch_max_wait_s``, or one of them. Raises UnknownStageError, ValueError.
        """
        plan = self.state.plan(stage)
        given = self.state.graph.stages[stage].batch
        if given is False:
            raise ValueError(
                f"stage {stage!r} executes one request at a time: its requests cannot be concatenated (batch=False)"
            )
        batch = given or Batch(max_size=1)
        present = plan.tuning or orders.Tune(batch_max_size=batch.max_size, batch_max_wait_s=batch.max_wait_s)
        unknown = settings.keys() - vars(present).keys()
        if unknown:
            raise ValueError(f"unknown settings {sorted(unknown)}; there are {', '.join(vars(present))}")
        tuning = orders.Tune(**{**vars(present), **settings})
        Batch(max_size=tuning.batch_max_size, max_wait_s=tuning.batch_max_wait_s)
        plan.tuning = tuning
        actions: list[Action] = [Emit(event=Tuned(stage=stage, settings=dict(settings)))]
        tuned = [member for member in self.state.of_stage(stage) if member.attached]
        return actions + [Send(member=member.id, message=tuning) for member in tuned]

    def stop(self, now: float, *, gateways_s: float = STOP_S) -> list[Action]:
        """End all members: first the gateways, which may take so long to answer what they hold, then the replicas."""
        if self.state.stopping:
            return []
        self.state.stopping = True
        self._stop_replicas_at = now + gateways_s
        actions: list[Action] = []
        for member in self.state.of_stage(GATEWAY):
            if member.is_ready:
                member.go(MemberState.DRAINING, now)
                actions.append(Send(member=member.id, message=orders.Drain()))
            elif member.state is not MemberState.DRAINING:
                actions += self._departures.dismiss(member, now)
        return actions + self._step(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        self._forget_hosts(now)
        return self._step(now)

    def _forget_hosts(self, now: float) -> None:
        """Those that are gone for good: where hosts come under new names again and again, there would be ever more."""
        known = {member.host for member in self.state.members.values()}
        gone = [host for host in self.state.hosts.values() if not host.live and now - host.lost_at > FORGET_HOST_S]
        for host in gone:
            if host.name not in known:
                del self.state.hosts[host.name]

    # ---- what members say

    def _hello(self, member: Member, hello: reports.Hello, now: float) -> list[Action]:
        is_another = member.keep and member.pid not in (None, hello.pid)
        if member.awaited and is_another and not self.state.stopping:
            # It died while it was awaited, and its host has the next one of that name; of the end we hear later.
            actions = self._departures.lose(member, "its process has ended", now, died=True)
            return actions + self._hello(member, hello, now)
        if member.awaited and member.state is not MemberState.STARTING:
            return self._back(member, hello, now)
        if member.attached or member.state is not MemberState.STARTING:
            return []
        member.attached, member.awaited = True, False
        member.pid = hello.pid
        member.address = hello.host
        self.state.wiring.adopt(member.id, hello.edges, self.state.members, now)
        state = hello.state
        member.told_ready = None
        missed = self._missed_losses(member)
        if member.is_gateway and state == "draining":
            member.keep = False  # its host starts it again, but nobody wants it any more
            member.go(MemberState.DRAINING, now)
            return [*missed, Send(member=member.id, message=orders.Drain())]
        if member.is_gateway:
            member.go(MemberState.READY, now)
            return missed  # whether all is ready it is told at the end of the step
        if state == "starting":
            member.go(MemberState.LOADING, now)
            return missed + self._loading.load(member, now)
        member.version = hello.version or member.version
        if state == "draining":
            member.go(MemberState.DRAINING, now)
            return [*missed, *self._missed(member), Send(member=member.id, message=orders.Drain())]
        member.go(MemberState.READY if state == "ready" or member.was_ready else MemberState.CONNECTING, now)
        return missed + self._missed(member)

    def _back(self, member: Member, hello: reports.Hello, now: float) -> list[Action]:
        """It was here before, and we were away; some of what it said meanwhile is lost."""
        member.attached, member.awaited = True, False
        self.state.wiring.adopt(member.id, hello.edges, self.state.members, now)
        missed = self._missed_losses(member)
        if member.state is MemberState.LOADING:
            if hello.state == "starting":
                return missed + self._loading.load(member, now)
            member.donor, member.load_waits = None, False
            member.go(MemberState.CONNECTING, now)
        member.told_ready = None
        if not member.is_gateway:
            missed += self._missed(member)
        if member.state is MemberState.DRAINING:
            missed.append(Send(member=member.id, message=orders.Drain()))
        return missed

    def _missed_losses(self, member: Member) -> list[Action]:
        messages, member.missed = member.missed, []
        return [Send(member=member.id, message=message) for message in messages]

    def _missed(self, member: Member) -> list[Action]:
        """Return what a replica may have missed: that gateways are gone for which it has answers, and its tuning."""
        gateways = tuple(gateway.id for gateway in self.state.of_stage(GATEWAY))
        return [Send(member=member.id, message=orders.KeepFor(there=gateways)), *self._tuning(member)]

    def _tuning(self, member: Member) -> list[Action]:
        """Return what it is told of how its stage batches now."""
        tuning = self.state.plans[member.stage].tuning
        return [] if tuning is None else [Send(member=member.id, message=tuning)]

    def _loaded(self, member: Member, loaded: reports.Loaded, now: float) -> list[Action]:
        if member.state is not MemberState.LOADING:
            return []
        member.donor, member.load_waits = None, False
        member.go(MemberState.CONNECTING, now)
        plan = self.state.plans[member.stage]
        actions = self._tuning(member)
        stage, version = member.stage, member.version
        if loaded.canary:
            passed = CanaryPassed(member=member.id, stage=stage, version=version, giver=loaded.canary)
            actions.append(Emit(event=passed))
        elif self._loading.is_to_be_compared(plan, member):
            reason = f"{loaded.asked} has kept none" if loaded.asked else "no old replica could be asked"
            skipped = CanarySkipped(member=member.id, stage=stage, version=version, reason=reason)
            actions.append(Emit(event=skipped))
        return actions

    def _canary_missed(self, member: Member, missed: reports.CanaryMissed, now: float) -> list[Action]:
        """Whoever was to tell it what to answer is gone: another one is asked."""
        if member.state is not MemberState.LOADING:
            return []
        member.tried.add(missed.giver)
        return self._loading.load(member, now)

    def _load_failed(self, member: Member, failure: reports.LoadFailure, now: float) -> list[Action]:
        source = member.donor or ""
        if member.state is not MemberState.LOADING or (failure.donor or "") != source:
            return []  # of an attempt that another has replaced
        error, traceback = failure.error, failure.traceback
        event = LoadFailed(member=member.id, stage=member.stage, source=source, error=error, traceback=traceback)
        if source and failure.hand_over_failed:  # else the weights came: from elsewhere they would be the same
            member.tried.add(source)
            return [Emit(event=event), *self._loading.load(member, now)]
        self.state.note_error(member, f"{member.id} could not load: {error}\n{traceback}".rstrip())
        return [Emit(event=event), *self._departures.lose(member, f"it could not load: {error}", now)]

    def _edge_broken(self, member: Member, broken: reports.EdgeFailure, now: float) -> list[Action]:
        peer, error = broken.peer, broken.error
        actions: list[Action] = []
        other = self.state.members.get(peer)
        if error != PeerLeftError.__name__ or (other is not None and other.state is not MemberState.LEAVING):
            upstream, downstream = (member.id, peer) if broken.end is EdgeEnd.UPSTREAM else (peer, member.id)
            event = EdgeLost(upstream=upstream, downstream=downstream, member=member.id, error=error, text=broken.text)
            actions.append(Emit(event=event))
        why = f"{error}: {broken.text}"
        return actions + self.state.wiring.failed(member.id, peer, broken.end, why, now, broke=True)

    def _take_news(self, member: Member, news: reports.ReplicaNews | reports.GatewayNews, now: float) -> None:
        member.stats, member.failure = news.statistics, news.failure
        if isinstance(news, reports.GatewayNews):
            member.metrics = news.metrics
        if member.is_at_work:
            member.worked_at = now

    def _where(self, member: Member, asked: reports.AskWhere) -> list[Action]:
        """A gateway asks where requests are. All replicas are asked; those that have one answer by ``At``."""
        question = orders.TellWhere(ids=asked.ids, asker=member.id)
        replicas = [other for other in self.state.members.values() if other.attached and not other.is_gateway]
        return [Send(member=other.id, message=question) for other in replicas]

    def _at(self, told: reports.At) -> list[Action]:
        asker = self.state.members.get(told.asker)
        if asker is None or not asker.attached:
            return []
        return [Send(member=asker.id, message=orders.Whereabouts(at=told.at))]

    # ---- the step: compare what is wanted with what is there

    def _step(self, now: float) -> list[Action]:
        actions = self._expire(now)
        if self.state.stopping:
            return actions + self._stop_replicas(now)
        for member in [member for member in self.state.members.values() if member.load_waits]:
            if self._loading.is_to_load(member):
                actions += self._loading.load(member, now)
        for member in list(self.state.members.values()):
            if why := self._loading.waits_in_vain(member, now):
                self.state.note_error(member, f"{member.id}: {why}")
                actions += self._departures.lose(member, why, now)
        for name, reason in self.state.wiring.cut_off(self.state.members).items():
            actions += self._departures.give_up(self.state.members[name], reason, now)
        actions += self.state.wiring.step(self.state.members, now)
        asleep = {name for name, plan in self.state.plans.items() if not plan.desired}
        for member in list(self.state.members.values()):
            if member.state is not MemberState.CONNECTING or not self.state.plans[member.stage].wants(member.version):
                continue
            if self.state.wiring.is_wired(member, self.state.members, now, asleep):
                actions += self._replacement.serve(member, now)
        actions += self.state.wiring.route(self.state.members, now)
        if (
            not self.state.resuming
            and not self.state.will_stop
            and (len(self.state.hosts) >= self.state.first_hosts or now >= self.state.gather_by)
        ):
            actions += self._end_gathering()
            actions += self._replacement.want_gateways(now)
            for plan in self.state.plans.values():
                actions += self._replacement.want(plan, now)
        actions += self.state.wiring.route(self.state.members, now)
        return actions + self._departures.drain_orders() + self._report_readiness(now)

    def _end_gathering(self) -> list[Action]:
        """Wait for no more hosts; say so if they are fewer than were expected."""
        expected, self.state.first_hosts = self.state.first_hosts, 0
        present = sum(host.live for host in self.state.hosts.values())
        if present >= expected:
            return []
        return [Emit(event=HostsMissing(expected=expected, present=present, waited_s=GATHER_S))]

    def _expire(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for member in list(self.state.members.values()):
            waited = now - member.since
            if member.awaited:
                if waited > self.state.lease_s + RETURN_S:
                    why = "it did not come back to the controller, which was started again"
                    actions += self._departures.lose(member, why, now, blame=False)
            elif not member.is_gateway and member.hangs(limit_s := self.state.graph.stages[member.stage].limit_s, now):
                actions += self._departures.lose(member, f"its work has not returned within {limit_s:g} s", now)
            elif member.state is MemberState.STARTING and member.host and waited > START_S:
                member.keep = False  # another one, under another name, instead of waiting for this one again
                actions += self._departures.lose(member, f"it said nothing within {START_S:g} s of its start", now)
            elif member.state is MemberState.LOADING and waited > LOAD_S:
                actions += self._departures.lose(member, f"it did not load within {LOAD_S:g} s", now)
            elif member.state is MemberState.DRAINING and member.drains_in_vain_s(now) > DRAIN_S:
                actions += self._departures.dismiss(member, now)  # with what it holds
                actions += self._departures.tell_lost(member)
            elif member.state is MemberState.LEAVING and waited > LEAVE_S:
                actions += [*self._departures.kill(member), *self._departures.left(member, now)]
        return actions

    def _stop_replicas(self, now: float) -> list[Action]:
        if now < self._stop_replicas_at and self.state.of_stage(GATEWAY):
            return []
        actions: list[Action] = []
        for member in list(self.state.members.values()):
            actions += self._departures.dismiss(member, now)
        return actions

    def _report_readiness(self, now: float) -> list[Action]:
        if self.state.resuming:
            return []
        missing = self.state.missing()
        actions: list[Action] = []
        for gateway in self.state.of_stage(GATEWAY):
            if gateway.attached and gateway.told_ready != (not missing):
                gateway.told_ready = not missing
                actions.append(Send(member=gateway.id, message=orders.Readiness(ready=not missing, why=missing)))
        if bool(missing) == (self.state.unready_since is not None):
            return actions
        if missing or self.state.unready_since is None:
            self.state.unready_since = now
            return [*actions, Emit(event=PipelineUnready(missing=missing))]
        after_s, self.state.unready_since = now - self.state.unready_since, None
        return [*actions, Emit(event=PipelineReady(after_s=after_s))]
