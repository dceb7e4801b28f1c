"""Decide which fragment of the model is sent, and which is applied, after which inner step. Pure.

A model has P fragments, and each is synchronised once in H inner steps, at inner steps of its own (Streaming DiLoCo,
arXiv 2501.18512). With H = 8, P = 2 and an overlap of 1 the steps after which something happens are:

    after step    1    2    3    4    5    6    7    8
    fragment 0              send apply
    fragment 1                             send apply

Between two applications at most one fragment is under way, and right after one none is: there all members hold the
same anchors and nothing else is pending, so members come and go there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Due:
    """What is due after an inner step: fragments to send, then fragments to apply. Both may name the same one."""

    send: tuple[int, ...] = ()
    apply: tuple[int, ...] = ()
    is_last: bool = False
    """Whether the training ends here: each member then takes the anchors as they are, so all end with equal models."""


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """``every`` inner steps from one synchronisation of a fragment to its next; ``overlap`` of them from send to apply.

    Steps are counted from 0 over the whole training, so a resumed or new member reads the same timetable. In ``every``
    steps each fragment is sent once, so together they are as many bytes as the model. With ``total`` steps known, the
    last step synchronises every fragment, also those that are not due: it costs up to one model more, once.
    """

    every: int
    fragments: int = 1
    overlap: int = 0
    total: int | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every={self.every}: at least 1 inner step lies between two synchronisations")
        if not 1 <= self.fragments <= self.every:
            raise ValueError(
                f"fragments={self.fragments}: choose 1 to every={self.every}, "
                "as each fragment is synchronised at an inner step of its own"
            )
        shortest = self.every // self.fragments
        if not 0 <= self.overlap < shortest:
            raise ValueError(
                f"overlap={self.overlap}: with every={self.every} and fragments={self.fragments} a fragment follows "
                f"the one before after {shortest} steps, so choose 0 to {shortest - 1}"
            )

    def due(self, step: int) -> Due:
        """Return what is due after inner step ``step`` (from 0)."""
        done, everything = step + 1, tuple(range(self.fragments))
        if self.total is not None and done >= self.total:
            under_way = self.under_way(step - 1)
            return Due(tuple(index for index in everything if index not in under_way), everything, is_last=True)
        return Due(
            tuple(index for index in everything if self._is_applied(index, done + self.overlap)),
            tuple(index for index in everything if self._is_applied(index, done)),
        )

    def under_way(self, step: int) -> tuple[int, ...]:
        """Return the fragments that are sent and not yet applied, once all that is due after ``step`` was done."""
        soon = range(step + 2, step + 2 + self.overlap)
        return tuple(index for index in range(self.fragments) if any(self._is_applied(index, done) for done in soon))

    def commits(self, step: int) -> bool:
        """Return whether an outer step ends inner step ``step``: members agree, come and go there."""
        return bool(self.due(step).apply)

    def round_of(self, step: int) -> int:
        """Return how many outer steps were taken before inner step ``step``: the number of the round that it is in."""
        periods, rest = divmod(step, self.every)
        rounds = periods * self.fragments + sum(self._place(index) <= rest for index in range(self.fragments))
        is_past_the_end = self.total is not None and step >= self.total
        return rounds + (is_past_the_end and rest not in {0, *map(self._place, range(self.fragments))})

    def start_of(self, number: int) -> int:
        """Return the first inner step of round ``number`` (from 0)."""
        periods, fragment = divmod(number, self.fragments)
        start = periods * self.every + (self._place(fragment - 1) if fragment else 0)
        return start if self.total is None else min(start, self.total)

    def steps_of(self, number: int) -> range:
        """Return the inner steps of round ``number``; the last of them ends with its outer step."""
        return range(self.start_of(number), self.start_of(number + 1))

    def _place(self, fragment: int) -> int:
        """Return after how many steps of a period a fragment is applied: evenly spread, and the last one ends it."""
        return (fragment + 1) * self.every // self.fragments

    def _is_applied(self, fragment: int, done: int) -> bool:
        """Return whether it is after ``done`` steps by the period. Nothing is sent for after the end."""
        is_place = done > 0 and (done - self._place(fragment)) % self.every == 0
        return is_place and (self.total is None or done <= self.total)
