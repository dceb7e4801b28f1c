"""What happened in a run of the main job, and which fault is the reason of which broken world. Pure: no clock or IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Broken", "Fault", "Record", "WorldView"]


@dataclass
class Fault:
    """One injected fault. Times are seconds by the monotonic clock; ``detected`` maps a neighbour to when it knew."""

    kind: str
    replica: str
    worker: int
    at: float
    generations: dict[str, int]
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
        self.num_replayed = 0
        self._closing_at: float | None = None

    def formed(self, world: str, generation: int) -> None:
        """Note that a world came to life, which each of its members tells."""
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

    def broke(self, broken: Broken, *, at: float) -> Fault | None:
        """Note a broken world; return the fault that is the reason, or None.

        The reason is the fault that was injected into that very generation. A victim that wakes up and finds out
        that it was fenced is noted with its fault too.
        """
        leaving = self._closing_at is not None and at >= self._closing_at and broken.error == "PeerLeftError"
        self._set_state(broken.world, broken.generation, "left" if leaving else "broken")
        for fault in self.faults:
            if fault.generations.get(broken.world) == broken.generation and fault.at <= at:
                if broken.process == fault.replica:
                    fault.fenced_by = broken.error
                else:
                    fault.detected.setdefault(broken.process, at)
                    fault.errors.setdefault(broken.process, broken.error)
                return fault
        if not leaving:
            self.broken_without_reason.append(broken)
        return None

    def answered(self, request: int, worker: int, num_images: int, *, replayed: bool, at: float) -> None:
        """Note an answer that was handed out; ``replayed`` if more than one replica was asked for it."""
        self.num_replayed += replayed
        self.deliveries[request] += 1
        self.answers.append((at, num_images))
        self.first_answer.setdefault(worker, at)

    def images_per_second(self, periods: Iterable[tuple[float, float]]) -> float | None:
        """Return the mean throughput over these periods; None when they are empty."""
        spans = [(start, end) for start, end in periods if end > start]
        if not spans:
            return None
        num_images = sum(count for at, count in self.answers if any(start <= at < end for start, end in spans))
        return num_images / sum(end - start for start, end in spans)

    def _set_state(self, world: str, generation: int, state: str) -> None:
        view = self.worlds.get(world)
        if view is not None and view.generation == generation:
            view.state = state
