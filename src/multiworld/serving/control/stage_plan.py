"""What is wanted of one stage: how many replicas, with which weights, and how its batches are formed. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from .crash_loop import CrashLoop
from .rollout import Rollout

__all__ = ["StagePlan"]


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
    tuning: dict[str, Any] = field(default_factory=dict)
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

    def to_json(self) -> dict[str, Any]:
        rollout = None if self.rollout is None else asdict(self.rollout)
        if rollout is not None:
            del rollout["started_at"]  # by a clock that means nothing to another process
        return {
            "desired": self.desired,
            "version": self.version,
            "last_version": self.last_version,
            "weights": {str(version): path for version, path in self.weights.items()},
            "rollout": rollout,
            "tuning": self.tuning,
        }

    @classmethod
    def from_json(cls, name: str, saved: dict[str, Any], now: float) -> StagePlan:
        rollout = saved["rollout"]
        return cls(
            name=name,
            desired=int(saved["desired"]),
            version=int(saved["version"]),
            last_version=int(saved["last_version"]),
            weights={int(version): str(path) for version, path in saved["weights"].items()},
            rollout=None if rollout is None else Rollout(started_at=now, **rollout),
            tuning=dict(saved["tuning"]),
        )
