"""What happened in a run of the main job, which fault broke which world, and the lines that tell it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from ..process.signal_names import signal_name
from ..serving.control.fleet import actions


@dataclass(kw_only=True)
class Fault:
    """One fault, injected or not. Times are seconds by the monotonic clock.

    ``detected`` maps a neighbor to when it told that their world had broken, ``lost_at`` is when the controller gave
    the victim up. ``at`` is when an unplanned one was first heard of: when it happened, nobody knows.
    """

    name: str
    member: str
    stage: str
    at: float
    neighbors: set[str]
    planned: bool = True
    freezes: bool = False
    detected: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    lost_at: float | None = None
    full_strength_at: float | None = None
    fenced_by: str = ""

    @property
    def detection_s(self) -> float | None:
        """The time until the controller and the last of the neighbors knew; None while one does not."""
        if self.lost_at is None or self.neighbors - self.detected.keys():
            return None
        return max(self.lost_at, *self.detected.values(), self.at) - self.at

    @property
    def recovery_s(self) -> float | None:
        """The time from the fault until all replicas of the stage that are wanted had given answers."""
        return None if self.full_strength_at is None else self.full_strength_at - self.at


@dataclass(kw_only=True)
class ReplicaView:
    """A replica that takes requests, and how many images of the answers went through it."""

    member: str
    stage: str
    pid: int
    num_images: int = 0

    @property
    def label(self) -> str:
        """What people call it."""
        return f"{self.member} (pid {self.pid})"


World = tuple[str, str]  # upstream, downstream


class Record:
    """The facts, in the order in which the main job learns of them."""

    def __init__(self, wanted: Mapping[str, int]) -> None:
        """``wanted``: how many replicas each stage is to have, in the order in which requests pass the stages."""
        self.replicas: dict[str, ReplicaView] = {}
        self.worlds: dict[World, str] = {}
        self.faults: list[Fault] = []
        self.answers: list[tuple[float, int]] = []  # (when, number of images), in order
        self.crash = ""
        """Which replica ended by itself, with what it wrote last, or that none can be started; empty: neither."""
        self._wanted = dict(wanted)
        self._answering: dict[str, set[str]] = {stage: set() for stage in wanted}
        self._gone: set[str] = set()
        self._early: list[tuple[float, actions.EdgeLost]] = []  # told of somebody who is not known to be lost
        self._suspect: dict[World, str] = {}
        self.has_load_ended = self._closing = False
        self._handlers: dict[type[actions.FleetEvent], Callable[[Any, float], None]] = {
            actions.EdgeOpened: self._edge_opened,
            actions.EdgeLost: self._edge_lost,
            actions.EdgeBroken: self._edge_broken,
            actions.ReplicaLost: self._replica_lost,
            actions.ReplicaLeft: lambda event, at: self._forget(event.member),
            actions.ProcessEnded: self._process_ended,
            actions.HostLost: self._host_lost,
        }

    def happened(self, event: actions.FleetEvent, *, at: float) -> None:
        """Note an event of the deployment. While that is taken down, only losses count: they say why worlds broke."""
        handle = self._handlers.get(type(event))
        if self._closing:
            if isinstance(event, actions.ReplicaLost) or _was_killed(event):
                self._gone.add(event.member)
        elif handle is not None:
            handle(event, at)

    def load_ended(self) -> None:
        """Note that the load has ended. No answer can show now that a loss was mended, so a new one is no fault."""
        self.has_load_ended = True

    def closing(self) -> None:
        """Note that the pipeline is about to be taken down: what ends from now on is no fault. Idempotent."""
        self._closing = True

    def ready(self, event: actions.ReplicaReady, pid: int) -> None:
        """Note a replica that takes requests."""
        if event.stage in self._wanted:
            self.replicas[event.member] = ReplicaView(member=event.member, stage=event.stage, pid=pid)

    def inject(self, name: str, member: str, *, freezes: bool = False, at: float) -> Fault:
        """Note a fault that is about to be injected into a replica; one that is only frozen has to be fenced."""
        fault = self._add_fault(name, member, at, planned=True)
        fault.freezes = freezes
        return fault

    def answered(self, route: Sequence[int], num_images: int, *, at: float) -> list[Fault]:
        """Note an answer, and return the faults that are mended by that.

        ``route``: the ids of the processes that it went through, one a stage.
        """
        self.answers.append((at, num_images))
        by_pid = {view.pid: view for view in self.replicas.values()}
        mended: list[Fault] = []
        for pid in route:
            view = by_pid.get(pid)
            if view is not None:
                view.num_images += num_images
                mended += self._has_answered(view, at)
        return mended

    @property
    def is_whole(self) -> bool:
        """Whether every stage has as many replicas as are wanted that have answered and that nothing has befallen."""
        return all(len(self._answering[stage]) >= number for stage, number in self._wanted.items())

    @property
    def broken_without_reason(self) -> list[str]:
        """The worlds that broke though both their members live on, each with what was told of it first."""
        return [text for world, text in self._suspect.items() if not self._gone.intersection(world)]

    def fault_in(self, member: str) -> Fault | None:
        """Return the fault that befell a replica: one is the end of it."""
        return next((fault for fault in self.faults if fault.member == member), None)

    def label(self, member: str) -> str:
        """Return what people call a member."""
        view = self.replicas.get(member)
        return member if view is None else view.label

    def images_per_second(self, periods: Iterable[tuple[float, float]]) -> float | None:
        """Return the mean throughput over these periods, which may overlap; None when they are empty."""
        spans: list[tuple[float, float]] = []
        for start, end in sorted(periods):
            begin = max(start, spans[-1][1]) if spans else start
            if end > begin:
                spans.append((begin, end))
        if not spans:
            return None
        num_images = sum(count for at, count in self.answers if any(start <= at < end for start, end in spans))
        return num_images / sum(end - start for start, end in spans)

    def _edge_opened(self, event: actions.EdgeOpened, at: float) -> None:
        self.worlds[event.upstream, event.downstream] = "active"

    def _edge_lost(self, event: actions.EdgeLost, at: float) -> None:
        world = (event.upstream, event.downstream)
        self._set_broken(world)
        peer = event.downstream if event.member == event.upstream else event.upstream
        fault = self.fault_in(peer)
        if fault is not None:
            fault.at = fault.at if fault.planned else min(fault.at, at)
            fault.detected.setdefault(event.member, at)
            fault.errors.setdefault(event.member, event.error)
        elif not self._gone.intersection(world):
            self._early.append((at, event))
            self._suspect.setdefault(world, f"{event.member}: {_name(world)}: {event.error}")

    def _edge_broken(self, event: actions.EdgeBroken, at: float) -> None:
        world = (event.upstream, event.downstream)
        self._set_broken(world)
        self._suspect.setdefault(world, f"{_name(world)}: {event.error}")

    def _replica_lost(self, event: actions.ReplicaLost, at: float) -> None:
        fault = self.fault_in(event.member)
        if fault is None and self.has_load_ended:
            self._forget(event.member)
            return
        if fault is None:
            fault = self._add_fault(f"loss of {self.label(event.member)}", event.member, at, planned=False)
        fault.lost_at = at
        early, self._early = self._early, []
        for told_at, told in early:
            self._edge_lost(told, told_at)
        self._forget(event.member)

    def _host_lost(self, event: actions.HostLost, at: float) -> None:
        """There is only one: nobody is there to start replicas again."""
        self.crash = self.crash or f"the host process on {event.host} was lost: its replicas ended with it, for good"

    def _process_ended(self, event: actions.ProcessEnded, at: float) -> None:
        fault = self.fault_in(event.member)
        if event.returncode > 0:
            self.crash = f"replica {event.member} ended with status {event.returncode}\n{event.last_lines}".rstrip()
        elif fault is not None and fault.freezes:
            fault.fenced_by = signal_name(-event.returncode)

    def _add_fault(self, name: str, member: str, at: float, *, planned: bool) -> Fault:
        stage = self.replicas[member].stage if member in self.replicas else member.rpartition("-")[0]
        neighbors = {end for world in self.worlds if member in world for end in world if end != member}
        fault = Fault(name=name, member=member, stage=stage, at=at, neighbors=neighbors, planned=planned)
        self.faults.append(fault)
        self._gone.add(member)
        self._answering.get(stage, set()).discard(member)
        return fault

    def _has_answered(self, view: ReplicaView, at: float) -> list[Fault]:
        answering = self._answering[view.stage]
        if view.member in self._gone or view.member in answering:
            return []
        answering.add(view.member)
        if len(answering) < self._wanted[view.stage]:
            return []
        mended = [fault for fault in self.faults if fault.stage == view.stage and fault.full_strength_at is None]
        for fault in mended:
            fault.full_strength_at = at
            self._drop_worlds(fault.member)
        return mended

    def _forget(self, member: str) -> None:
        """It is gone: nobody waits for what it would tell, and its worlds are shown until it has been replaced."""
        self._gone.add(member)
        view = self.replicas.pop(member, None)
        if view is not None:
            self._answering[view.stage].discard(member)
        for fault in self.faults:
            fault.neighbors.discard(member)
        if self.fault_in(member) is None:
            self._drop_worlds(member)
        for world in self.worlds:
            if member in world:
                self._set_broken(world)

    def _drop_worlds(self, member: str) -> None:
        for world in [world for world in self.worlds if member in world]:
            del self.worlds[world]

    def _set_broken(self, world: World) -> None:
        if world in self.worlds:
            self.worlds[world] = "broken"


def _was_killed(event: actions.FleetEvent) -> TypeGuard[actions.ProcessEnded]:
    return isinstance(event, actions.ProcessEnded) and event.returncode < 0


def _name(world: World) -> str:
    return f"world {world[0]} → {world[1]}"


def tell(event: actions.FleetEvent, record: Record, *, at: float) -> str:
    """Return the line for an event that ``record`` has taken in; empty if it says nothing to people."""
    if isinstance(event, actions.EdgeLost):
        return _edge_lost(event, record, at)
    if isinstance(event, actions.ReplicaLost):
        return _replica_lost(event, record, at)
    if isinstance(event, actions.ProcessEnded):
        fault = record.fault_in(event.member)
        if fault is not None and fault.fenced_by:
            return f"{event.member} will not go on: it was fenced off by {fault.fenced_by}"
    if isinstance(event, actions.ReplicaReady) and record.faults:
        return f"{record.label(event.member)} takes over, {event.took_s:.3f} s after it was ordered"
    return ""


def _edge_lost(event: actions.EdgeLost, record: Record, at: float) -> str:
    world = f"world {event.upstream} → {event.downstream}"
    fault = record.fault_in(event.downstream if event.member == event.upstream else event.upstream)
    if fault is not None:
        return f"{event.member}: {world} broke after {max(0.0, at - fault.at):.3f} s: {event.error}"
    return ""


def _replica_lost(event: actions.ReplicaLost, record: Record, at: float) -> str:
    fault = record.fault_in(event.member)
    if fault is None:
        return ""
    if fault.planned:
        return f"controller: {event.member} is given up after {at - fault.at:.3f} s"
    return f"{fault.name}, not by this demo: {event.why.partition(':')[0]}"
