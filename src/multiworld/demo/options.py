"""What a user can choose about a run of the main job."""

from __future__ import annotations

from dataclasses import dataclass

from ..world.liveness import DEFAULT_LEASE_S


@dataclass(frozen=True, kw_only=True)
class Options:
    """``seconds`` is the length of the load; the faults stretch it when they need longer.

    ``window`` requests are open at a time; one that is not answered within ``request_limit_s`` is lost.
    """

    seconds: float = 18.0
    seed: int = 0
    backend: str = "auto"
    inject_faults: bool = True
    lease_s: float = DEFAULT_LEASE_S
    micro_batch_size: int = 16
    window: int = 16
    request_limit_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= 86_400:
            raise ValueError(f"seconds must lie between 0 and 86400, got {self.seconds:g}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must lie between 0 and 2**63 - 1, got {self.seed}")
