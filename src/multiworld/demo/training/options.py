"""What a user can choose about the demo of training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TrainingDemoOptions:
    """``kills`` are spread over the first half of the ``steps``, so that replacements can take part."""

    steps: int = 120
    replicas: int = 4
    kills: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if not 20 <= self.steps <= 100_000:
            raise ValueError(f"steps must lie between 20 and 100000, got {self.steps}")
        if not 2 <= self.replicas <= 8:
            raise ValueError(f"replicas must lie between 2 and 8, got {self.replicas}: a step has 8 micro-batches")
        if not 0 <= self.kills <= self.steps // 10:
            raise ValueError(
                f"kills must lie between 0 and {self.steps // 10}, got {self.kills}: {self.steps} steps have room for "
                "one kill in 10 steps"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie between 0 and 2**63 - 1, got {self.seed}")
