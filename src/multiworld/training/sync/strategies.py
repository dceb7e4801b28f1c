"""How replicas keep together, as a program chooses it: ``job.replicate(model, sync=...)``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .timetable import Timetable

if TYPE_CHECKING:
    import torch

    from .codec import Compression

    MakeOptimizer = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, kw_only=True)
class LocalSGD:
    """Members train alone; after ``every`` steps each takes the mean of all members' parameters (arXiv 1805.09767).

    Raises ValueError if ``every`` is below 1.
    """

    every: int

    def __post_init__(self) -> None:
        self.timetable()

    def timetable(self, total: int | None = None) -> Timetable:
        return Timetable(every=self.every, total=total)

    @property
    def key(self) -> str:
        """What must be the same on all ranks."""
        return str(self)


def nesterov(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the outer optimizer of the DiLoCo paper: SGD with Nesterov momentum 0.9 and learning rate 0.7."""
    import torch

    return torch.optim.SGD(params, lr=0.7, momentum=0.9, nesterov=True)


@dataclass(frozen=True, kw_only=True)
class DiLoCo:
    """Members train alone; after ``every`` steps an outer optimizer moves what all began from (arXiv 2311.08105).

    Its gradient is the mean of how far the members came: anchor minus local parameters. ``outer`` makes the optimizer
    for the anchors, on the same parameters' shapes in float32 or wider.

    ``fragments``: the model is cut into so many parts, each synchronised at a step of its own, so the peak of the
    traffic falls (Streaming DiLoCo, arXiv 2501.18512). ``overlap``: inner steps that are computed while a fragment is
    under way; by default 1 with several fragments, else 0. ``alpha``: the share of a member's own parameters when a
    fragment arrives, 0 (take the anchor) to below 1; by default 0.5 with an overlap, else 0. ``compress``: send
    ``"bfloat16"`` or ``"int8"``, a half or about a quarter of the bytes; sums stay in float32.

    Raises ValueError if the numbers do not fit each other, TypeError if ``outer`` cannot be called.
    """

    every: int
    outer: MakeOptimizer = nesterov
    fragments: int = 1
    overlap: int | None = None
    alpha: float | None = None
    compress: Compression | None = None

    def __post_init__(self) -> None:
        self.timetable()
        if not callable(self.outer):
            raise TypeError(
                f"outer={self.outer!r}: give a function of a list of parameters that returns an optimizer, "
                "for example lambda params: torch.optim.SGD(params, lr=0.7, momentum=0.9, nesterov=True)"
            )
        if not 0 <= self.share_kept < 1:
            raise ValueError(f"alpha={self.alpha}: the share of a member's own parameters is 0 to below 1")
        if self.compress not in (None, "bfloat16", "int8"):
            raise ValueError(f"compress={self.compress!r}: choose None, 'bfloat16' or 'int8'")

    def timetable(self, total: int | None = None) -> Timetable:
        return Timetable(every=self.every, fragments=self.fragments, overlap=self.inner_overlap, total=total)

    @property
    def key(self) -> str:
        """What must be the same on all ranks, and can be compared: of the outer optimizer that is type and defaults."""
        import torch

        outer = self.outer([torch.nn.Parameter(torch.zeros(1))])
        numbers = (self.every, self.fragments, self.inner_overlap, self.share_kept, self.compress)
        return f"{numbers} {type(outer).__name__} {sorted(outer.defaults.items(), key=str)}"

    @property
    def inner_overlap(self) -> int:
        if self.overlap is not None:
            return self.overlap
        return 1 if self.fragments > 1 and self.every // self.fragments > 1 else 0

    @property
    def share_kept(self) -> float:
        if self.alpha is not None:
            return self.alpha
        return 0.5 if self.inner_overlap else 0.0
