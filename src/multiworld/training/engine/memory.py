"""What the engine asks those that keep the state in the memory of hosts, when all owners of a shard were lost."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from ...world.world import World
from ..copies.plan import MemoryPlan, Snapshot
from ..errors import TrainingError
from ..recovery.records import Generation


class CopiesUnusableError(TrainingError):
    """Some shard could not be taken from memory, so nobody begins with this step. Fields: ``step``, ``num_failed``."""

    def __init__(self, step: int, num_failed: int) -> None:
        super().__init__(step, num_failed)
        self.step, self.num_failed = step, num_failed

    def __str__(self) -> str:
        return f"the state of step {self.step} in memory cannot be used by {self.num_failed} processes"


class Memory(Protocol):
    """Called on the training thread."""

    def snapshots(self) -> tuple[Snapshot, ...]:
        """Return what this host's memory has."""

    def fetch(self, world: World, generation: Generation, plan: MemoryPlan) -> bool:
        """Serve others, and get and check this member's shard; nothing is loaded yet. False: that failed here.

        Raises the world's error.
        """

    def load(self) -> None:
        """All members have what they need: load what was fetched, if this member is a source."""

    def failed(self, plan: MemoryPlan, sources: Collection[str]) -> None:
        """These sources could not take their shards: what this member served them is of no use."""

    def begins(self, plan: MemoryPlan | None) -> None:
        """All members begin with the step of this plan; None: with a checkpoint, or anew."""


class NoMemory:
    """Without ``copies``."""

    def snapshots(self) -> tuple[Snapshot, ...]:
        return ()

    def fetch(self, world: World, generation: Generation, plan: MemoryPlan) -> bool:
        return False

    def load(self) -> None: ...

    def failed(self, plan: MemoryPlan, sources: Collection[str]) -> None: ...

    def begins(self, plan: MemoryPlan | None) -> None: ...
