"""What is wanted of one stage: how many replicas, with which weights, and how its batches are formed. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ...member.orders import Tune
from .crash_loop import CrashLoop
from .rollout import Rollout
from .saved import SavedStage


@dataclass(kw_only=True)
class StagePlan:
    """The wishes for one stage, and what stands in their way."""

    name: str
    desired: int
    version: int = 1
    weights: dict[int, str] = field(default_factory=dict)
    """The file of each version's weights; a version without one has those that the stage's code begins with."""
    last_version: int = 1
    rollout: Rollout | None = None
    updating_since: float = 0.0
    """When the rollout began."""
    tuning: Tune | None = None
    """How its batches are formed, once somebody has changed that."""
    crash: CrashLoop = field(default_factory=CrashLoop)
    last_error: str = ""
    """Why the last replica that failed did, with the traceback if there is one."""
    waits_for: str = ""
    """Why a replica that is needed cannot be started."""
    causes: deque[str] = field(default_factory=lambda: deque(maxlen=64))
    """Why the next replicas will be started."""

    def wants(self, version: int) -> bool:
        """Whether it is the version that serves, or the one that is to replace it; one that was rolled back is not."""
        return version == self.version or (self.rollout is not None and version == self.rollout.version)

    def saved(self) -> SavedStage:
        return SavedStage(
            desired=self.desired,
            version=self.version,
            last_version=self.last_version,
            weights={str(version): path for version, path in self.weights.items()},
            rollout=self.rollout,
            tuning=self.tuning,
        )

    @classmethod
    def restored(cls, name: str, saved: SavedStage, now: float) -> StagePlan:
        """Raises ValueError for weights of a version that is no number."""
        return cls(
            name=name,
            desired=saved.desired,
            version=saved.version,
            last_version=saved.last_version,
            weights={int(version): path for version, path in saved.weights.items()},
            rollout=saved.rollout,
            updating_since=now,
            tuning=saved.tuning,
        )
