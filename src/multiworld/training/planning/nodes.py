"""What a node has to compute with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Node:
    """``memory_bytes``: of each device; None: no limit. ``speed``: a layer takes the profile's time divided by it."""

    devices: int = 1
    memory_bytes: int | None = None
    speed: float = 1.0

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ValueError(f"a node with {self.devices} devices: expected at least 1")
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ValueError(f"a node with devices of {self.memory_bytes} bytes: expected more than 0, or None")
        if not 0 < self.speed < float("inf"):
            raise ValueError(f"a node of speed {self.speed}: expected more than 0")
