"""What the engine asks those that look after a training's health, at fixed moments of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from ..recovery.records import Member
from .decision import Outcome
from .facts import Facts, MoreFacts


class StepHealth(Protocol):
    """Called on the training thread. What decides for all is a function of the facts, and of the training's state."""

    def began(self, step: int) -> None:
        """This member, which has the state, begins a step."""

    def own_facts(self, step: int, reduced: Sequence[Tensor]) -> MoreFacts:
        """Return further fields of this member's facts. ``reduced``: the mean gradients, flat."""

    def wrong(self, step: int, members: Sequence[Member], facts: Sequence[Facts]) -> frozenset[int]:
        """Return the places of those that must give up their state, before the step counts."""

    def given_up(self, step: int) -> None:
        """This member is one of those. Raises if it should rather end."""

    def skips(self, step: int, members: Sequence[Member], outcome: Outcome, facts: Sequence[Facts]) -> bool:
        """Return whether no optimizer may run in a step that counts. Raises if the training should end."""

    def look_for_slow_ranks(self, step: int, members: Sequence[Member], facts: Sequence[Facts]) -> None:
        """These are the facts of one step. ``skips`` does this, too."""

    def repeats(self, step: int) -> bool:
        """Return whether this member computes its first micro-batch twice, see ``begin`` to ``compare``."""

    def begin(self) -> None:
        """The first time begins."""

    def again(self) -> None:
        """The second time begins."""

    def compare(self) -> None:
        """Both are over, and the gradients of the second time are there."""


class NoHealth:
    """Looks after nothing."""

    def began(self, step: int) -> None:
        pass

    def own_facts(self, step: int, reduced: Sequence[Tensor]) -> MoreFacts:
        return {}

    def wrong(self, step: int, members: Sequence[Member], facts: Sequence[Facts]) -> frozenset[int]:
        return frozenset()

    def given_up(self, step: int) -> None:
        pass

    def skips(self, step: int, members: Sequence[Member], outcome: Outcome, facts: Sequence[Facts]) -> bool:
        return False

    def look_for_slow_ranks(self, step: int, members: Sequence[Member], facts: Sequence[Facts]) -> None:
        pass

    def repeats(self, step: int) -> bool:
        return False

    def begin(self) -> None:
        pass

    def again(self) -> None:
        pass

    def compare(self) -> None:
        pass
