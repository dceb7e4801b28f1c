"""Decide where in its stage each replica is drawn, so that nothing moves when one is replaced. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FRESH_S = 10.0  # for so long a page tells whom a replica replaced, and keeps an empty place


@dataclass(kw_only=True)
class Slot:
    """One place. ``since``: when it was taken or left."""

    member: str = ""
    predecessor: str = ""
    missed: bool = False
    """The predecessor went although it was wanted, and nobody had been brought up for it."""
    since: float = 0.0


class Slots:
    """The places of all stages. A newcomer takes the place of who is missed, or that which has been empty longest."""

    def __init__(self) -> None:
        self._stages: dict[str, list[Slot]] = {}

    def arrange(self, members: Mapping[str, Sequence[str]], desired: Mapping[str, int], now: float) -> None:
        """Take in who is there; ``members`` and ``desired`` are by stage."""
        self._stages = {stage: self._stages.get(stage, []) for stage in members}
        for stage, present in members.items():
            slots = self._stages[stage]
            placed = {slot.member for slot in slots}
            missed = len(placed.intersection(present)) < desired.get(stage, 0)
            for slot in slots:
                if slot.member and slot.member not in present:
                    slot.member, slot.predecessor, slot.missed, slot.since = "", slot.member, missed, now
            for member in present:
                if member not in placed:
                    self._place(slots, member, now)
            _trim(slots, desired.get(stage, 0), now)

    def of(self, stage: str) -> list[Slot]:
        return self._stages.get(stage, [])

    def replaced_by(self, stage: str, member: str, now: float) -> str:
        """Return for whom a member has just come; empty if for nobody, or if that was long ago."""
        for slot in self.of(stage):
            if slot.member == member and slot.missed and now - slot.since < FRESH_S:
                return slot.predecessor
        return ""

    @staticmethod
    def _place(slots: list[Slot], member: str, now: float) -> None:
        empty = [slot for slot in slots if not slot.member]
        if empty:
            slot = min(empty, key=lambda each: (not each.missed, each.since))
            slot.member, slot.since = member, now
        else:
            slots.append(Slot(member=member, since=now))


def _trim(slots: list[Slot], desired: int, now: float) -> None:
    """Have a place for each that is wanted, and keep others only as long as somebody is, or was just, there."""
    while len(slots) < desired:
        slots.append(Slot(since=now))
    for slot in [slot for slot in slots if not slot.member and now - slot.since >= FRESH_S]:
        if len(slots) > desired:
            slots.remove(slot)
