"""A deployment without processes: members that answer what they are told, hosts, and faults; time is a number."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from multiworld.serving.control.fleet.actions import Action, Donate, Emit, FleetEvent, KillProcess, Send, StartProcess
from multiworld.serving.control.fleet.fleet import Fleet
from multiworld.serving.control.fleet.state import FleetState
from multiworld.serving.graph import GATEWAY, Graph, Stage
from multiworld.serving.member.orders import ORDERS
from multiworld.serving.member.reports import reports_of

LOCAL = ("10.0.0.0",)  # where the controller is


def chain(*names: str, replicas: int = 1) -> Graph:
    return Graph([Stage(name, "app:work", replicas=replicas) for name in names])


def hear(fleet: Fleet, member: str, report: dict[str, Any], now: float) -> list[Action]:
    """Have a member report this, as it comes over the wire."""
    return fleet.heard(member, reports_of(member).from_json(report), now)


def order_of(action: Send) -> dict[str, Any]:
    """Return what a member is told, as it goes over the wire."""
    return ORDERS.to_json(action.message)


def send(member: str, order: dict[str, Any]) -> Send:
    return Send(member=member, message=ORDERS.from_json(order))


@dataclass
class Process:
    """One member's process. ``loads``: False to fail, None to take for ever; ``hangs``: it hears and says nothing."""

    member: str
    stage: str
    host: str
    pid: int
    keep: bool = False
    state: str = "starting"
    version: int = 1
    loads: bool | None = True
    hangs: bool = False
    edges: set[tuple[str, str]] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    inbox: deque[dict[str, Any]] = field(default_factory=deque)
    tuning: dict[str, Any] = field(default_factory=dict)
    ready: bool = False
    """Of a gateway: what it was told."""


class SimulatedFleet:
    """Carries out what a fleet decides, and checks that it never does what it must not."""

    def __init__(
        self, graph: Graph, *, hosts: int = 2, gateways: int = 1, fails_to_load: set[tuple[str, int]] | None = None
    ) -> None:
        self.graph, self.now, self.pids = graph, 100.0, 0
        self.num_hosts = hosts
        self.fleet = Fleet(FleetState(graph, now=self.now, gateways=gateways, hosts=hosts, local_addresses=LOCAL))
        self.processes: dict[str, Process] = {}
        self.events: list[FleetEvent] = []
        self.killed: list[str] = []
        self.started: list[str] = []
        self.bad_versions = fails_to_load or set()
        self.cut: set[frozenset[str]] = set()  # pairs of members that cannot connect
        self.donations: list[tuple[str, str]] = []
        for number in range(hosts):
            self.do(self.fleet.host_joined(f"host-{number}", f"10.0.0.{number}", 8, {}, self.now))

    # ---- carrying out

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, StartProcess):
                assert action.member not in self.started, f"{action.member} was used before"
                self.started.append(action.member)
                self._spawn(action.member, action.stage, action.host, action.keep)
            elif isinstance(action, KillProcess):
                self.killed.append(action.member)
                process = self.processes.get(action.member)
                if process is not None and (not action.restarts or action.pid in (None, process.pid)):
                    self._end(process, restarts=action.restarts)
            elif isinstance(action, Send):
                self._tell(action)
            elif isinstance(action, Emit):
                self.events.append(action.event)
            else:
                assert isinstance(action, Donate)

    def _spawn(self, member: str, stage: str, host: str, keep: bool) -> None:
        self.pids += 1
        self.processes[member] = Process(member=member, stage=stage, host=host, pid=self.pids, keep=keep)

    def _tell(self, action: Send) -> None:
        process = self.processes.get(action.member)
        order = order_of(action)
        if order["do"] == "open":
            peer = self.processes.get(order["peer"])
            if process is not None and peer is not None:
                key = (action.member, peer.member)
                assert self.fleet.state.wiring.edges[key].upstream_connected
                assert self.fleet.state.wiring.edges[key].downstream_connected
        if order["do"] == "drain" and not self.fleet.state.stopping:
            stage = self.fleet.state.members[action.member].stage
            others = [each for each in self.fleet.state.of_stage(stage) if each.is_ready and each.id != action.member]
            assert others or self.fleet.state.plans[stage].desired == 0, f"{action.member} was the last of {stage}"
        if process is not None:
            process.inbox.append(order)

    def _end(self, process: Process, *, restarts: bool = False) -> None:
        """A process ends; its edges break for the others, who say so."""
        del self.processes[process.member]
        for other in list(self.processes.values()):
            self._break(other, process.member)
        if restarts and process.keep:
            self._spawn(process.member, process.stage, process.host, True)

    def _break(self, process: Process, peer: str) -> None:
        for edge in [edge for edge in process.edges if edge[0] == peer]:
            process.edges.discard(edge)
            process.open.discard(peer)
            self._say(process, event="edge_broken", peer=peer, **{"as": edge[1]}, error="PeerDiedError", text="gone")

    # ---- faults

    def kill(self, member: str) -> None:
        """SIGKILL: the host tells, and the world breaks."""
        process = self.processes[member]
        self._end(process, restarts=process.keep)
        self.do(self.fleet.exited(member, process.pid, -9, self.now))
        self.do(self.fleet.lost(member, "PeerDiedError", self.now, died=True))

    def fail(self, member: str, returncode: int, last_lines: str) -> None:
        """It ends by itself, and its host does not start it again."""
        process = self.processes[member]
        self._end(process)
        self.do(self.fleet.exited(member, process.pid, returncode, self.now, last_lines))

    def hang(self, member: str) -> None:
        """SIGSTOP, found when the lease ran out."""
        self.processes[member].hangs = True
        self.do(self.fleet.lost(member, "PeerStoppedError", self.now))

    def stop_host(self, name: str, *, after_s: float = 0.0, ends_all: bool = False) -> None:
        """It says so, ends its members after a while, and goes."""
        self.do(self.fleet.host_stopping(name, self.now, ends_all=ends_all))
        self.run(after_s)
        for process in [each for each in self.processes.values() if each.host == name]:
            self._end(process)
            if not process.hangs:
                self.do(self.fleet.lost(process.member, "PeerLeftError", self.now, died=True))
            self.do(self.fleet.exited(process.member, process.pid, 0, self.now))
        self.do(self.fleet.host_lost(name, self.now))

    def break_edge(self, upstream: str, downstream: str) -> None:
        for member, peer in ((upstream, downstream), (downstream, upstream)):
            if member in self.processes:
                self._break(self.processes[member], peer)

    def restart_controller(self) -> None:
        """Another controller takes over by what the last one wrote."""
        saved = self.fleet.state.saved()
        gateways, hosts = self.fleet.state.gateways, self.num_hosts
        self.fleet = Fleet(FleetState(self.graph, now=self.now, gateways=gateways, hosts=hosts, local_addresses=LOCAL))
        self.fleet.state.restore(saved, self.now)
        for name in sorted({process.host for process in self.processes.values()} | {"host-0"}):
            there = {each.member: each.pid for each in self.processes.values() if each.host == name}
            self.do(self.fleet.host_joined(name, name.replace("host-", "10.0.0."), 8, there, self.now))
        for process in list(self.processes.values()):
            process.inbox.clear()
            self._hello(process)

    # ---- time

    def run(self, seconds: float, step_s: float = 0.05) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += step_s
            for process in list(self.processes.values()):
                self._live(process)
            self.do(self.fleet.tick(self.now))

    def run_until_settled(self, timeout_s: float = 60.0) -> None:
        until = self.now + timeout_s
        while not (self.fleet.state.settled and not self.fleet.state.missing()):
            assert self.now < until, (
                f"not settled: {self.fleet.state.missing()} {self.fleet.state.members} {self.fleet.state.wiring.edges}"
            )
            self.run(0.05)
        self.run(0.05)  # for all to hear the last of it

    def _live(self, process: Process) -> None:
        member = self.fleet.state.members.get(process.member)
        if process.hangs:
            return
        if member is not None and not member.attached:
            self._hello(process)
        while process.inbox and process.member in self.processes:
            self._hear(process, process.inbox.popleft())

    def _hello(self, process: Process) -> None:
        edges = [{"peer": peer, "as": role} for peer, role in sorted(process.edges)]
        self._say(
            process,
            event="hello",
            stage=process.stage,
            pid=process.pid,
            host="127.0.0.1",
            state=process.state,
            version=process.version,
            edges=edges,
        )

    def _say(self, process: Process, **message: Any) -> None:
        if not process.hangs:
            self.do(hear(self.fleet, process.member, message, self.now))

    def _hear(self, process: Process, message: dict[str, Any]) -> None:
        do, peer = message["do"], message.get("peer", "")
        if do == "load" and process.loads is not None:
            self._load(process, message)
        elif do == "tune":
            process.tuning = message
        elif do == "readiness":
            process.ready = message["ready"]
        elif do == "donate":
            self.donations.append((process.member, message["to"]))
        elif do == "connect":
            self._connect(process, peer, message["as"])
        elif do == "open" and (peer, "upstream") in process.edges:  # else it has broken meanwhile
            process.open.add(peer)
        elif do == "close":
            process.open.discard(peer)
        elif do == "lost":
            self._break(process, peer)
        elif do == "drain":
            process.state = "draining"
            self._say(process, event="drained")
        elif do == "leave":
            self._end(process)
            self.do(self.fleet.exited(process.member, process.pid, 0, self.now))

    def _load(self, process: Process, message: dict[str, Any]) -> None:
        donor = message["donor"]
        if donor is not None and (donor not in self.processes or self.processes[donor].hangs):
            self._say(
                process, event="load_failed", donor=donor, error="PeerDiedError", traceback="", hand_over_failed=True
            )
        elif (process.stage, message["version"]) in self.bad_versions or not process.loads:
            self._say(process, event="load_failed", donor=donor, error="bad weights", traceback="Traceback …")
        else:
            process.version, process.state = message["version"], "loaded"
            self._say(process, event="loaded", version=process.version, took_s=0.0, **{"from": "init"})

    def _connect(self, process: Process, peer: str, role: str) -> None:
        other = self.processes.get(peer)
        if other is None or other.hangs or frozenset((process.member, peer)) in self.cut:
            self._say(process, event="connect_failed", peer=peer, **{"as": role}, error="nobody came")
            return
        process.edges.add((peer, role))
        self._say(process, event="connected", peer=peer, **{"as": role})

    # ---- looking

    def ready(self, stage: str) -> list[str]:
        return [member.id for member in self.fleet.state.of_stage(stage) if member.is_ready]

    def open_edges(self) -> set[tuple[str, str]]:
        """Return the edges over which processes route, as they know it."""
        return {(each.member, peer) for each in self.processes.values() for peer in each.open}

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def gateways(self) -> list[str]:
        return [process.member for process in self.processes.values() if process.stage == GATEWAY]
