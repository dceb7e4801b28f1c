"""How far this member is with the present step: its micro-batches, what was recorded of them, and where time went."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field


@dataclass
class StepProgress:
    """``values``: for each of ``done``, in that order. ``num_redone``: micro-batches that were dealt a second time."""

    done: list[int] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    is_complete: bool = False
    """All members' gradients are here."""
    seconds: dict[str, float] = field(default_factory=dict)
    num_redone: int = 0
    began: float = field(default_factory=time.monotonic)
    _present: dict[str, float] = field(default_factory=dict)

    def begin_micro_batch(self) -> None:
        """What was recorded of one that did not end, or is computed again, does not count."""
        self._present = {}

    def record(self, values: Mapping[str, float]) -> None:
        self._present.update(values)

    def end_micro_batch(self, number: int) -> None:
        self.done.append(number)
        for name, value in self._present.items():
            self.values.setdefault(name, []).append(value)

    def values_of(self, numbers: Collection[int]) -> dict[int, dict[str, float]]:
        """Return what was recorded of those of these micro-batches that are done, where each recorded the same."""
        return {
            number: {name: each[place] for name, each in self.values.items()}
            for place, number in enumerate(self.done)
            if number in numbers
        }

    def take(self, values: Mapping[int, Mapping[str, float]]) -> None:
        """These micro-batches are done, too: what ``values_of`` returned."""
        for number, each in values.items():
            self.begin_micro_batch()
            self.record(each)
            self.end_micro_batch(number)

    def spent(self, seconds: Mapping[str, float]) -> None:
        for part, took_s in seconds.items():
            self.seconds[part] = self.seconds.get(part, 0.0) + took_s

    def values_for_json(self) -> dict[str, tuple[float | str, ...]]:
        return {name: tuple(map(_for_json, each)) for name, each in self.values.items()}


def _for_json(value: float) -> float | str:
    return value if value - value == 0.0 else str(value)
