"""What happened in a run of the main job, and which fault is the reason of which broken world. Pure: no clock or IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["Broken", "Fault", "Record", "WorldView"]


@dataclass
class Fault:
    """One fault, injected or not. Times are seconds by the monotonic clock.

    ``detected`` maps a neighbour to when it knew. ``at`` is when an unplanned one was first heard of: when it happened,
    nobody knows.
    """

    kind: str
    replica: str
    worker: int
    at: float
    generations: dict[str, int]
    planned: bool = True
    detected: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    replacement: int | None = None
    full_strength_at: float | None = None
    fenced_by: str = ""

    @property
    def detection_s(self) -> float | None:
        """The time until the last of the world mates knew; None while one does not."""
        if len(self.detected) < len(self.generations):
            return None
        return max(self.detected.values()) - self.at

    @property
    def recovery_s(self) -> float | None:
        """The time from the fault until the replacement gave its first answer."""
        return None if self.full_strength_at is None else self.full_strength_at - self.at


@dataclass(frozen=True)
class Broken:
    """A world that broke, as one of its members told it."""

    process: str
    world: str
    generation: int
    error: str
    text: str


@dataclass
class WorldView:
    """The newest generation of a world and whether it is active, broken or left."""

    generation: int
    state: str


class Record:
    """The facts, in the order in which the main job learns of them."""

    def __init__(self) -> None:
        self.worlds: dict[str, WorldView] = {}
        self.faults: list[Fault] = []
        self.broken_without_reason: list[Broken] = []
        self.answers: list[tuple[float, int]] = []  # (when, number of images), in order
        self.deliveries: Counter[int] = Counter()  # request -> how often an answer was handed out
        self.first_answer: dict[int, float] = {}  # worker -> when
        self._joined: dict[int, dict[str, int]] = {}  # worker -> the newest generation that it told of, by world
        self.num_replayed = 0
        self._closing_at: float | None = None

    def formed(self, world: str, generation: int, worker: int | None = None) -> None:
        """Note that a world came to life, which each of its members tells: ``worker``, or the front."""
        if worker is not None:
            self._joined.setdefault(worker, {})[world] = generation
        view = self.worlds.get(world)
        if view is None or generation > view.generation:
            self.worlds[world] = WorldView(generation, "active")

    def left(self, world: str, generation: int) -> None:
        """Note that a member left a world."""
        self._set_state(world, generation, "left")

    def closing(self, *, at: float) -> None:
        """Note that the pipeline is being taken down: members that leave are no faults from now on. Idempotent."""
        if self._closing_at is None:
            self._closing_at = at

    def inject(self, kind: str, replica: str, worker: int, worlds: Iterable[str], *, at: float) -> Fault:
        """Note a fault that is about to be injected into a worker that belongs to these worlds."""
        generations = {world: self.worlds[world].generation for world in worlds}
        fault = Fault(kind=kind, replica=replica, worker=worker, at=at, generations=generations)
        self.faults.append(fault)
        return fault

    def suffer(self, kind: str, role: str, worker: int, worlds: Mapping[str, int], *, at: float) -> Fault:
        """Note a fault that nobody planned, in a worker that belongs to these worlds in these generations."""
        fault = Fault(kind=kind, replica=role, worker=worker, at=at, generations=dict(worlds), planned=False)
        self.faults.append(fault)
        return fault

    def worlds_of(self, worker: int) -> Mapping[str, int]:
        """Return the worlds that a worker has told to be in, with their generations."""
        return self._joined.get(worker, {})

    def fault_in(self, worker: int) -> Fault | None:
        """Return the fault that befell a worker: one is the end of it."""
        return next((fault for fault in self.faults if fault.worker == worker), None)

    def last_fault_of(self, role: str) -> Fault | None:
        """Return the newest fault in whoever played a role."""
        return next((fault for fault in reversed(self.faults) if fault.replica == role), None)

    @property
    def is_whole(self) -> bool:
        """Whether whatever was lost has been replaced."""
        return all(fault.full_strength_at is not None for fault in self.faults)

    def reason_of(self, broken: Broken, *, at: float) -> Fault | None:
        """Return the fault that is the reason of a broken world: the one in that very generation."""
        for fault in self.faults:
            if fault.generations.get(broken.world) == broken.generation and (fault.at <= at or not fault.planned):
                return fault
        return None

    def is_leaving(self, broken: Broken, *, at: float) -> bool:
        """Whether the world only ends because the pipeline is being taken down."""
        return self._closing_at is not None and at >= self._closing_at and broken.error == "PeerLeftError"

    def broke(self, broken: Broken, *, at: float) -> Fault | None:
        """Note a broken world; return the fault that is the reason, or None.

        A victim that wakes up and finds out that it was fenced is noted with its fault too.
        """
        leaving = self.is_leaving(broken, at=at)
        self._set_state(broken.world, broken.generation, "left" if leaving else "broken")
        fault = self.reason_of(broken, at=at)
        if fault is None:
            if not leaving:
                self.broken_without_reason.append(broken)
        elif broken.process == fault.replica:
            fault.fenced_by = broken.error
        else:
            fault.at = min(fault.at, at)  # an unplanned one
            fault.detected.setdefault(broken.process, at)
            fault.errors.setdefault(broken.process, broken.error)
        return fault

    def answered(self, request: int, worker: int, num_images: int, *, replayed: bool, at: float) -> None:
        """Note an answer that was handed out; ``replayed`` if more than one replica was asked for it."""
        self.num_replayed += replayed
        self.deliveries[request] += 1
        self.answers.append((at, num_images))
        self.first_answer.setdefault(worker, at)

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

    def _set_state(self, world: str, generation: int, state: str) -> None:
        view = self.worlds.get(world)
        if view is not None and view.generation == generation:
            view.state = state
