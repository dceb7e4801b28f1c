"""Decide whether a step is bad: gradients or values that are not finite, or a loss far above those before. Pure.

All members hear the same values, and keep the same history, so all decide alike. The history belongs to the state of
the training: newcomers and checkpoints have it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

OnBadStep = Literal["raise", "skip", "rollback"]
ON_BAD_STEP: Final = ("raise", "skip", "rollback")
MAX_IN_A_ROW: Final = 20
"""After so many bad steps in a row neither skipping nor rolling back helps."""
_TO_SIGMA: Final = 1.4826  # of a median absolute deviation, for a normal distribution


@dataclass(frozen=True, kw_only=True)
class LossSpike:
    """What is a spike: a value above the median of the last ``window`` good steps by ``deviations`` and by ``share``.

    ``watch``: the name that the program gives to ``step.record``. ``deviations``: robust standard deviations.
    ``share``: of the median's size, so that a loss that hardly varies is no reason. ``least``: how many good steps must
    have been heard before.
    """

    watch: str = "loss"
    deviations: float = 10.0
    share: float = 0.25
    window: int = 64
    least: int = 16

    def __post_init__(self) -> None:
        if self.deviations <= 0 or self.share < 0:
            raise ValueError(f"deviations must be above 0 and share not below: {self.deviations}, {self.share}")
        if not 2 <= self.least <= self.window:
            raise ValueError(f"2 <= least <= window is needed, not least={self.least}, window={self.window}")


@dataclass(frozen=True)
class Bad:
    """Why a step is bad: a sentence for people. ``value``: of what was watched; NaN where something was not finite."""

    reason: str
    value: float


class BadSteps:
    """Hears every step once, in order. ``spike``: None: only what is not finite is bad."""

    def __init__(self, spike: LossSpike | None) -> None:
        self._spike = spike
        self._values: deque[float] = deque(maxlen=spike.window if spike is not None else 0)
        self.num_in_a_row = 0
        """How many bad steps there were since the last good one."""

    def heard(self, values: Mapping[str, float], not_finite: Sequence[int]) -> Bad | None:
        """``values``: the means of the step; ``not_finite``: ranks whose gradients were not finite."""
        bad = self._judge(values, not_finite)
        self.num_in_a_row = 0 if bad is None else self.num_in_a_row + 1
        if bad is None and self._spike is not None and self._spike.watch in values:
            self._values.append(values[self._spike.watch])
        return bad

    def _judge(self, values: Mapping[str, float], not_finite: Sequence[int]) -> Bad | None:
        if not_finite:
            ranks = f"{'rank' if len(not_finite) == 1 else 'ranks'} {', '.join(map(str, not_finite))}"
            return Bad(f"gradients are not finite on {ranks}", math.nan)
        for name, value in values.items():
            if not math.isfinite(value):
                return Bad(f"{name} is {value}", math.nan)
        spike = self._spike
        if spike is None or spike.watch not in values or len(self._values) < spike.least:
            return None
        value = values[spike.watch]
        middle, sigma = self._usual()
        limit = middle + max(spike.deviations * sigma, spike.share * abs(middle))
        if value <= limit:
            return None
        return Bad(f"{spike.watch} is {value:.6g}, where it was {middle:.6g} before (limit {limit:.6g})", value)

    def _usual(self) -> tuple[float, float]:
        """Return the median and the robust standard deviation."""
        middle = _median(self._values)
        return middle, _TO_SIGMA * _median([abs(value - middle) for value in self._values])

    def history(self) -> tuple[tuple[float, ...], int]:
        """Return what a newcomer needs to decide alike."""
        return tuple(self._values), self.num_in_a_row

    def take_history(self, values: Sequence[float], num_in_a_row: int) -> None:
        self._values.clear()
        self._values.extend(values)
        self.num_in_a_row = num_in_a_row


def _median(values: Sequence[float] | deque[float]) -> float:
    in_order = sorted(values)
    half, is_odd = divmod(len(in_order), 2)
    return in_order[half] if is_odd else (in_order[half - 1] + in_order[half]) / 2
