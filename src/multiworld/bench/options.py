"""How thoroughly to measure, and with messages of which sizes."""

from __future__ import annotations

from dataclasses import dataclass

PAIRS_PER_ROUND = 3  # the speed of a shared machine changes within a second: short slices, and many of them


@dataclass(frozen=True, kw_only=True)
class Options:
    """``rounds``: alternations of every comparison. ``trials``: faults of each kind that ``detect`` injects.

    ``backends``: the channels to compare with raw Gloo, any that is installed; empty: those of each benchmark.
    """

    quick: bool = False
    rounds: int = 9
    trials: int = 30
    backends: tuple[str, ...] = ()

    @property
    def num_pairs(self) -> int:
        """How many short slices of each lane to take, each with one of the reference."""
        return self.rounds * (1 if self.quick else PAIRS_PER_ROUND)

    def __post_init__(self) -> None:
        for name in ("rounds", "trials"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"{name}={value}: expected at least 1")


@dataclass(frozen=True)
class Size:
    """``count`` messages make a slice long enough to time (0.05 s) but short enough to pair."""

    label: str
    size_bytes: int
    count: int
    quick_count: int

    def count_for(self, options: Options) -> int:
        return self.quick_count if options.quick else self.count
