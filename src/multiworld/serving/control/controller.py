"""The controller of one deployment: it carries out what the fleet decides, and tells the fleet what happens."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ...errors import MultiworldError
from ...process.facts import process_space
from ...wire.messages import Json
from ...world.manager import WorldManager
from ..errors import DeploymentError, HostExhaustedError, what_happened
from ..graces import STOP_S
from ..graph import GATEWAY
from ..hosts.host import Host
from ..hosts.logs.recent_lines import LinesTold
from ..hosts.order import Order
from ..hosts.orphans import end_orphans
from ..member.exit_status import Ending
from ..member.hand_over import donate_weights
from ..member.orders import MemberOrder
from ..member.reports import MemberReport
from .autoscale import Autoscaling
from .client.questions import ControllerAnswer, ControllerQuestion
from .fleet import actions
from .fleet.fleet import RETURN_S, Fleet
from .fleet.members import CONTROLLER, parse_member
from .fleet.state import FleetState
from .history import History
from .lines import AttachedLine, WorldLine
from .operations import Operations
from .reception import Reception
from .spec import DeploymentSpec
from .state_file import StateFile
from .status import ControllerStatus, describe
from .weights_store import WeightsStore

logger = logging.getLogger(__name__)

BUSY_TICK_S, IDLE_TICK_S = 0.05, 1.0
SCALE_EVERY_S = 1.0
STATE_FILE = "controller.json"
STOP_MARGIN_S = 2.0
AWAY_SHARE = 0.6  # of the lease, after which others may have given this process up
AWAY_S = 2.0  # within it, all is told that happened while this process was away
GATEWAYS_SHARE = 2 / 3
OTHERS_S = 30.0  # for the gateways of a host that is stopped to answer what they hold
LOOPBACK = ("127.0.0.1", "::1", "")


AnswerOf = Callable[["Controller", ControllerQuestion], Awaitable[ControllerAnswer]]
"""Answers a question with what a controller knows, or does; raises what it refuses."""


class Controller:
    """On one event loop, from ``start`` to ``stop``; losing it costs no request, and another may take over.

    ``manager``: of the process in which it runs, with the job, token and lease of the deployment. ``keeps_state``:
    write what a successor must know, and take over what a predecessor wrote. ``answer``: answers what commands ask.
    """

    def __init__(
        self, spec: DeploymentSpec, *, manager: WorldManager, answer: AnswerOf, keeps_state: bool = True
    ) -> None:
        self.spec = spec
        self.store, self.address = spec.store, spec.address
        """The URL of the store and the address of the reception: with their real ports once it was started."""
        self.history = History()
        self.on_event: Callable[[actions.FleetEvent], None] | None = None
        """Called with each event, as it is recorded."""
        self.stop_asked = asyncio.Event()
        """Set when a command asked to end the deployment; whoever runs the controller does it."""
        self._manager = manager
        local = (*LOOPBACK, *([spec.address[0]] if spec.address[0] else []))
        self._state = FleetState(
            spec.graph,
            now=time.monotonic(),
            lease_s=spec.lease_s,
            gateways=spec.gateways,
            hosts=spec.hosts,
            local_addresses=local,
            wakes=spec.scaling is not None,
        )
        self._fleet = Fleet(self._state)
        self._file = StateFile(spec.folder / STATE_FILE) if keeps_state else None
        self._weights = WeightsStore(spec.folder)
        self.operations = Operations(
            self._fleet, weights=self._weights, history=self.history, now=self._now, do=self._do
        )
        self._scaling = None if spec.scaling is None else Autoscaling(spec.graph, spec.scaling)
        self._reception = Reception(spec.token, on_host=self._host_came, on_request=partial(answer, self), job=spec.job)
        self._hosts: dict[str, Host] = {}
        self._kills: dict[str, dict[str, actions.KillProcess]] = {}  # for hosts that are not there
        self._pids: dict[str, int] = {}  # as the hosts say, in the order in which they say it
        self._lines: dict[str, WorldLine] = {}
        self._attached: dict[str, AttachedLine] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self._looked_at = time.monotonic()
        self._away_until = 0.0
        self._has_begun = False
        """Whether all has come up once: before that nothing is idle."""
        self._closed = False

    async def start(self) -> None:
        """Serve the store, let hosts in, and begin. Raises StoreError, OSError, ValueError."""
        self.store = self._manager.serve_store(self.spec.store)
        saved = None if self._file is None else self._file.read()
        if saved is not None:
            self._state.restore(saved, time.monotonic())
            self._has_begun = saved.begun
            logger.info("taking over %d members", len(self._state.members))
        port = await self._reception.start(self.spec.address)
        self.address = (self.spec.address[0], port)
        self._follow_members()
        self._looked_at = time.monotonic()
        self._ticking = asyncio.get_running_loop().create_task(self._tick())
        if saved is not None and saved.stopping:
            self._spawn(self._stop_again())

    async def _stop_again(self) -> None:
        """The one before was told to end the deployment; what it had told members already, they go on with."""
        hosts = {member.host for member in self._state.members.values() if member.host}
        time_s = self.spec.lease_s + RETURN_S
        await self.operations.until(lambda: not self._state.resuming and hosts <= self._hosts.keys(), time_s)
        self.stop_asked.set()

    async def stop(self, grace_s: float = STOP_S) -> None:
        """End the deployment: gateways, which answer what they hold, then replicas, then the host processes.

        Bounded by little more than ``grace_s``, of which gateways may take two thirds.
        """
        self._do(self._fleet.stop(self._now(), gateways_s=grace_s * GATEWAYS_SHARE))
        try:
            await self.operations.until(lambda: not self._state.members, grace_s)
            if self._file is not None:
                self._file.remove()  # before the hosts end: this process may be a member of one
        finally:
            hosts = [asyncio.ensure_future(host.stop(STOP_MARGIN_S)) for host in self._hosts.values()]
            try:
                if hosts:
                    await asyncio.wait(hosts)
            finally:
                await self.aclose()

    async def aclose(self) -> None:
        """End the controller alone; the deployment serves on. Idempotent."""
        self._closed = True
        ending = [*self._tasks, *(line.close() for line in self._lines.values())]
        if self._ticking is not None:
            ending.append(self._ticking)
        for task in ending:
            task.cancel()
        self._lines.clear()
        await self._reception.aclose()
        if ending:
            await asyncio.wait(ending)

    def attach(self, member: str, on_order: Callable[[MemberOrder], None]) -> AttachedLine:
        """Take in a gateway of this very process, without a world; its first word must be ``hello``.

        Raises ValueError for a name that is not that of a gateway, or taken.
        """
        self._do(self._fleet.member_attached(member, self._now()))
        line = AttachedLine(self, member, on_order)
        self._attached[member] = line
        return line

    def status(self) -> ControllerStatus:
        """Return how all stands."""
        return replace(
            describe(self._state, time.monotonic()),
            name=self.spec.name,
            store=self.store,
            address=self.address,
            num_events=self.history.num_seen,
        )

    def gateway_metrics(self) -> dict[str, tuple[Json, ...]]:
        """Return what each gateway told last of its metrics, as JSON."""
        return {
            member.id: member.metrics
            for member in self._state.members.values()
            if member.is_gateway and member.metrics is not None
        }

    async def lines(
        self, of: str = "", *, since: Mapping[str, int] | None = None, last: int | None = None
    ) -> dict[str, LinesTold]:
        """Return what members wrote: all, those of a stage, or one, which may have ended; by name.

        After as many lines as ``since`` says; of members that are not in it the ``last`` lines, or all with None.
        Raises DeploymentError if none is meant. What a host does not tell in time is left out.
        """
        known = since or {}
        asked = [
            (host, member)
            for host in self._hosts.values()
            for member in host.members
            if not of or of in (member, _stage_of(member))
        ]
        if not asked and of not in self._state.plans:
            asked = [(host, of) for host in self._hosts.values()]  # it may have ended
        answers = await asyncio.gather(
            *(
                host.lines(member, since=known.get(member, 0 if last is None else None), last=last or 0)
                for host, member in asked
            ),
            return_exceptions=True,
        )
        told: dict[str, LinesTold] = {}
        for (host, member), lines in zip(asked, answers, strict=True):
            if isinstance(lines, OSError):
                logger.info("host %s does not tell what %s wrote: %s", host.name, member, lines)
            elif isinstance(lines, BaseException):
                raise lines
            elif lines is not None:
                told[member] = lines
        if of and not told and of not in self._state.plans and of not in self._state.members:
            stages = ", ".join(self._state.plans)
            raise DeploymentError(f"there is no replica {of!r}, and no stage of that name; the stages are {stages}")
        return told

    # ---- what happens

    def member_said(self, member: str, report: MemberReport) -> None:
        self._do(self._fleet.heard(member, report, self._now()))

    def member_lost(self, member: str, why: str, died: bool) -> None:
        now = self._now()
        if now < self._away_until:
            self._fleet.await_back(member, now)
        self._do(self._fleet.lost(member, why, now, died=died))

    def _host_came(self, host: Host) -> None:
        name = host.name
        self._hosts[name] = host
        host.on_exit, host.on_started = self._process_ended, self._process_started
        host.on_stopping = lambda: self._host_stops(host)
        host.on_lost = lambda: self._host_went(host)
        for kill in self._kills.pop(name, {}).values():
            self._kill(kill)
        self._pids.update(host.members)
        now = self._now()
        self._do(self._fleet.host_joined(name, host.address, host.capacity, dict(host.members), now))
        if host.is_stopping:
            self._host_stops(host)

    def _process_started(self, member: str, pid: int) -> None:
        self._pids[member] = pid
        self._do(self._fleet.started(member, pid, self._now()))

    def _process_ended(self, member: str, ending: Ending) -> None:
        pid = self._pids.pop(member, None)
        last_lines = "\n".join(ending.last_lines)
        self._do(self._fleet.exited(member, pid, ending.returncode, self._now(), last_lines, ending.executing))

    def _host_stops(self, host: Host) -> None:
        ends_all = CONTROLLER in host.members and not self._state.stopping
        self._do(self._fleet.host_stopping(host.name, self._now(), ends_all=ends_all))
        if ends_all:  # this process is one of its members, and will be ended after the others
            self._spawn(self._stop_others(host))

    async def _stop_others(self, own: Host) -> None:
        """Have the other hosts end once the gateways of this one have answered all: nobody would tell them later."""
        own_gateways = {gateway.id for gateway in self._state.of_stage(GATEWAY) if gateway.host == own.name}
        try:
            await self.operations.until(lambda: not any(name in self._state.members for name in own_gateways), OTHERS_S)
        finally:  # at the latest when this process is told to end
            if self._file is not None:
                self._file.remove()
            for host in list(self._hosts.values()):
                if host is not own:
                    host.ask_to_stop(STOP_MARGIN_S)

    def _host_went(self, host: Host) -> None:
        if self._hosts.get(host.name) is host:
            del self._hosts[host.name]
            if self._closed:  # we lost it ourselves
                return
            self._do(self._fleet.host_lost(host.name, self._now()))
            if host.process_space and host.process_space == process_space() and not self._state.stopping:
                self._spawn(self._end_orphans(host.pid, list(host.members.values())))

    async def _end_orphans(self, host: int, members: list[int]) -> None:
        """If a host process was killed, its members were with it: what they had started themselves was not."""
        killed = await asyncio.to_thread(end_orphans, host, members)
        if killed:
            logger.warning("killed %d processes that members of a killed host process had started", len(killed))

    def _now(self) -> float:
        """Return the time; whatever is heard first after an absence, the absence is noticed before it."""
        now = time.monotonic()
        away_s, self._looked_at = now - self._looked_at, now
        if away_s > AWAY_SHARE * self.spec.lease_s:  # stopped, or starved: then others, who live, may have given it up
            logger.warning("this controller was away for %.1f s; its members are awaited back", away_s)
            self._away_until = now + AWAY_S
            self._fleet.was_away(away_s, now)
        return now

    async def _tick(self) -> None:
        idle_s = min(IDLE_TICK_S, self.spec.lease_s / 4)
        scale_at = 0.0
        while True:
            await asyncio.sleep(idle_s if self._state.settled else BUSY_TICK_S)
            try:
                now = self._now()
                self._do(self._fleet.tick(now))
                self._forget_kills()
                self._has_begun = self._has_begun or self._state.has_come_up
                if self._has_begun and self._scaling is not None and now >= scale_at and not self._state.stopping:
                    scale_at = now + SCALE_EVERY_S
                    for wish in self._scaling.decide(self._state, now):
                        self._do(self._fleet.scale(wish.stage, wish.new, now, reason=wish.reason))
            except Exception:  # a defect of ours: the next tick may go well, and without ticks nothing heals
                logger.exception("a tick of the controller failed")

    # ---- carrying out

    def _do(self, decided: list[actions.Action]) -> None:
        if decided:
            self._save()  # first: no number is used that a successor might use again
        for action in decided:
            if isinstance(action, actions.Send):
                self._send(action)
            elif isinstance(action, actions.StartProcess):
                self._spawn(self._start(action))
            elif isinstance(action, actions.KillProcess):
                self._kill(action)
            elif isinstance(action, actions.Donate):
                self._spawn(self._donate(action))
            elif isinstance(action, actions.Emit):
                self._record(action.event)
        self._follow_members()
        self.operations.stepped()

    def _save(self) -> None:
        if self._file is None:
            return
        try:
            self._file.write(self._state.saved(begun=self._has_begun))
        except OSError as error:  # a full disk must not end what serves well
            logger.error("the state cannot be written, so no other controller can take over: %s", error)

    def _send(self, action: actions.Send) -> None:
        line = self._attached.get(action.member) or self._lines.get(action.member)
        if line is not None:
            line.send(action.message)

    async def _start(self, action: actions.StartProcess) -> None:
        if action.member not in self._state.members:  # it was given up in the turn in which it was wanted
            return
        host = self._hosts.get(action.host)
        try:
            if host is None:
                raise DeploymentError(f"host {action.host} has just been lost")
            pid = await host.start(self._order(action, host))
        except (MultiworldError, OSError, ValueError, TypeError) as error:
            is_excused = isinstance(error, HostExhaustedError)
            self._do(self._fleet.start_failed(action.member, str(error), self._now(), is_excused=is_excused))
        else:
            self._process_started(action.member, pid)
            if action.member not in self._state.members:
                host.kill(action.member)

    def _order(self, action: actions.StartProcess, host: Host) -> Order:
        spec = self.spec
        is_gateway = action.stage == GATEWAY
        arguments: dict[str, Json] = {
            "member": action.member,
            "stage": action.stage,
            "folder": str(spec.folder),
            "job": spec.job,
            "store": self.store,
            "lease_s": spec.lease_s,
            "host": host.address,
            "controller": list(self.address),
        }
        return Order(
            member=action.member,
            program=spec.gateway_program if is_gateway else spec.replica_program,
            arguments={**arguments, **(spec.gateway if is_gateway else {})},
            env=dict(spec.env),
            threads=spec.threads,
            keep=action.keep,
            takes_token=True,
        )

    def _kill(self, action: actions.KillProcess) -> None:
        host = self._hosts.get(action.host)
        if host is None:
            if not action.restarts:  # a gateway's next process is no less good than another
                self._kills.setdefault(action.host, {})[action.member] = action
        elif not action.restarts:
            host.kill(action.member)
        elif action.pid is None or host.members.get(action.member) == action.pid:
            host.signal(action.member, signal.SIGKILL)

    def _forget_kills(self) -> None:
        """Of hosts that the fleet does not know any more: should one come back, it orders these ends anew."""
        self._kills = {name: kills for name, kills in self._kills.items() if name in self._state.hosts}

    async def _donate(self, action: actions.Donate) -> None:
        try:
            weights = await self._weights.get(action.path)
            await donate_weights(self._manager, CONTROLLER, action.member, weights, self.store, self.spec.backend)
        except MultiworldError as error:  # the member says so too, and another way is found
            logger.warning("%s could not be given its weights: %s", action.member, what_happened(error))

    def _record(self, event: actions.FleetEvent) -> None:
        event = self.history.add(event, time.time())
        logger.info("%s", event)
        if isinstance(event, actions.HostsMissing):
            came = (event.present, event.expected, event.waited_s)
            logger.warning("%d of %d hosts came within %g s: replicas are placed on those", *came)
        if isinstance(event, actions.UpdateFinished):
            self._weights.keep_only(event.stage, event.version)
        if isinstance(event, actions.UpdateRolledBack):
            self._weights.keep_only(event.stage, event.previous)
        if isinstance(event, actions.ReplicaLost) and self._scaling is not None:
            self._scaling.lost(event.stage, time.monotonic())
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception:  # whoever listens must not keep the rest from being carried out
                logger.exception("on_event failed for %s", event)

    def _follow_members(self) -> None:
        """Have a line to every member that has a process, and to no other."""
        if self._closed:
            return
        members = self._state.members
        for name in [name for name in self._lines if name not in members]:
            self._watch(self._lines.pop(name).close())
        for member in members.values():
            if member.host and member.id not in self._lines:
                comes_again = partial(self._comes_again, member.id)
                self._lines[member.id] = WorldLine(self, self._manager, self.store, member.id, comes_again)
        for name in [name for name in self._attached if name not in members]:
            del self._attached[name]

    def _comes_again(self, member: str) -> bool:
        return member in self._state.members and not self._state.members[member].attached

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._watch(asyncio.get_running_loop().create_task(work))

    def _watch(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the controller failed", exc_info=task.exception())


def _stage_of(member: str) -> str:
    parsed = parse_member(member)
    return "" if parsed is None else parsed[0]
