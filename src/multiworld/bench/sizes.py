"""How large a message is, and how many of them make a slice."""

from __future__ import annotations

from dataclasses import dataclass

from .options import Options

__all__ = ["Size"]


@dataclass(frozen=True)
class Size:
    """``count`` messages make a slice long enough to time (0.05 s) but short enough to pair."""

    label: str
    size_bytes: int
    count: int
    quick_count: int

    def count_for(self, options: Options) -> int:
        return self.quick_count if options.quick else self.count
