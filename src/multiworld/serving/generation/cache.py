"""Decides which sequences a replica keeps the state of, which steps it can take, and which it takes together. Pure.

A step adds ``length`` tokens to a sequence, behind ``position`` tokens that earlier steps brought. It can be taken if
the state of those is here: after a loss, a drain or an eviction it is not, and the sequence has to come again from
its start. Steps may come twice and late, because whoever lost sight of a replica sends again:

- Of one *attempt* the token at a position never changes. A step that came before is taken again, and what is known
  beyond it stays.
- A newer attempt begins at position 0, and what older ones brought is dropped.
- A step of an older attempt is lost: nobody waits for it.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """``sequence``: its id. ``position``: how many tokens come before the ``length`` new ones."""

    sequence: bytes
    attempt: int
    position: int
    length: int


class Fate(enum.Enum):
    """Why a step is not taken: the state that it goes on from is not here, or the sequence can never fit."""

    LOST = "lost"
    TOO_LONG = "too long"


@dataclass(frozen=True, slots=True)
class Round:
    """``steps``: which to take together, by index, no two of one sequence. ``dropped``: the states to free before."""

    steps: tuple[int, ...]
    dropped: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Each step is in exactly one of the rounds, to be taken in this order, or in ``refused``."""

    rounds: tuple[Round, ...]
    refused: dict[int, Fate]


@dataclass(slots=True)
class _Kept:
    attempt: int
    length: int
    used_at: float


class SequenceTable:
    """What is kept, least recently used first. It never exceeds ``capacity`` tokens."""

    def __init__(self, capacity: int, *, idle_s: float = 600.0) -> None:
        """``idle_s``: a state that no step has used for so long goes with the next plan."""
        if capacity < 1:
            raise ValueError(f"capacity must be a number of tokens from 1, got {capacity!r}")
        if not idle_s > 0:
            raise ValueError(f"idle_s must be more than 0 seconds, got {idle_s!r}")
        self.capacity, self.idle_s = capacity, idle_s
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self.num_tokens = 0
        self.num_evicted = self.num_expired = self.num_lost = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._kept

    def length(self, sequence: bytes) -> int:
        """Return how many tokens are kept of a sequence."""
        kept = self._kept.get(sequence)
        return 0 if kept is None else kept.length

    def plan(self, steps: Sequence[Step], *, now: float) -> Plan:
        """Decide about all that waits, as if it were taken at once.

        States that none of the steps needs are evicted first, then those of steps that have been taken; only when
        there is nothing else, that of a step which is still to come, and is lost by it.
        """
        dropped = self._expire(now)
        rounds: list[Round] = []
        refused: dict[int, Fate] = {}
        waiting = list(range(len(steps)))
        while waiting:
            taken, waiting = self._round(steps, waiting, refused, dropped, now)
            if taken:
                rounds.append(Round(tuple(taken), tuple(dropped)))
                dropped = []
        if dropped:
            rounds.append(Round((), tuple(dropped)))
        return Plan(tuple(rounds), refused)

    def undo(self, step: Step) -> None:
        """A step of this plan failed half way: what it added is not there."""
        kept = self._kept.get(step.sequence)
        if kept is not None and kept.length > step.position:
            self.num_tokens -= kept.length - step.position
            kept.length = step.position

    def forget(self, sequence: bytes) -> bool:
        """Its end has come; return whether there was anything."""
        kept = self._kept.pop(sequence, None)
        if kept is None:
            return False
        self.num_tokens -= kept.length
        return True

    def clear(self) -> None:
        """Forget all: what made the states is another one now."""
        self._kept.clear()
        self.num_tokens = 0

    # ---- inside

    def _expire(self, now: float) -> list[bytes]:
        expired: list[bytes] = []
        for sequence, kept in self._kept.items():
            if kept.used_at >= now - self.idle_s:
                break
            expired.append(sequence)
        for sequence in expired:
            self.forget(sequence)
        self.num_expired += len(expired)
        return expired

    def _round(
        self, steps: Sequence[Step], waiting: list[int], refused: dict[int, Fate], dropped: list[bytes], now: float
    ) -> tuple[list[int], list[int]]:
        """Return what is taken now, and what is to be looked at again after it."""
        taken: list[int] = []
        later: list[int] = []
        needed = {steps[index].sequence for index in waiting}
        busy: set[bytes] = set()
        """Sequences of which a step is in this round, or must come first in a later one."""
        for index in waiting:
            step = steps[index]
            if step.sequence in busy:
                later.append(index)
                continue
            fate = self._fate(step)
            if fate is not None:
                refused[index] = fate
                self.num_lost += fate is Fate.LOST
                continue
            busy.add(step.sequence)
            if self._make_room(step, needed | busy, dropped) or (
                not taken and not later and self._make_room(step, {step.sequence}, dropped)
            ):
                self._extend(step, now)
                taken.append(index)
            else:
                later.append(index)
        return taken, later

    def _fate(self, step: Step) -> Fate | None:
        kept = self._kept.get(step.sequence)
        if kept is not None and step.attempt < kept.attempt:
            return Fate.LOST
        known = kept.length if kept is not None and kept.attempt == step.attempt else 0
        if step.position > known:
            return Fate.LOST
        return Fate.TOO_LONG if self._length_after(step) > self.capacity else None

    def _length_after(self, step: Step) -> int:
        kept = self._kept.get(step.sequence)
        end = step.position + step.length
        return max(end, kept.length) if kept is not None and kept.attempt == step.attempt else end

    def _make_room(self, step: Step, protected: set[bytes], dropped: list[bytes]) -> bool:
        """Evict, least recently used first, until the step fits; nothing if it will not."""
        excess = self.num_tokens - self.length(step.sequence) + self._length_after(step) - self.capacity
        evicted: list[bytes] = []
        for sequence, kept in self._kept.items():
            if excess <= 0:
                break
            if sequence not in protected:
                evicted.append(sequence)
                excess -= kept.length
        if excess > 0:
            return False
        for sequence in evicted:
            self.forget(sequence)
        dropped += evicted
        self.num_evicted += len(evicted)
        return True

    def _extend(self, step: Step, now: float) -> None:
        after = self._length_after(step)
        self.num_tokens += after - self.length(step.sequence)
        self._kept[step.sequence] = _Kept(step.attempt, after, now)
        self._kept.move_to_end(step.sequence)
