"""Decide how new weights replace old ones in one stage: a new replica beside the old, then one old drained. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .members import Member

MOST_SETTLE_S = 86_400.0


def check_settle(settle_s: float) -> None:
    """Raise ValueError for a time after which nothing would ever have proved itself."""
    if not 0 <= settle_s <= MOST_SETTLE_S:
        raise ValueError(f"settle_s={settle_s!r}: expected seconds from 0 to {MOST_SETTLE_S:g}")


@dataclass(frozen=True, kw_only=True)
class RolloutStep:
    """How many to start of the new and of the old version, whom to drain, and whether that was all."""

    start_new: int = 0
    start_old: int = 0
    drain: tuple[Member, ...] = ()
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A rolling update that is under way.

    ``settle_s``: a new replica has proved itself after so long; ``needs_verdict``: not before ``approved``.
    """

    version: int
    parallel: bool = False
    settle_s: float = 1.0
    needs_verdict: bool = False
    approved: bool = False

    @property
    def _may_settle(self) -> bool:
        return self.approved or not self.needs_verdict

    def has_settled(self, member: Member, now: float) -> bool:
        return (
            member.is_ready
            and member.ready_at is not None
            and now - member.ready_at >= self.settle_s
            and self._may_settle
        )

    def _has_loaded(self, member: Member) -> bool:
        return member.has_loaded and self._may_settle

    def step(self, members: Sequence[Member], desired: int, now: float) -> RolloutStep:
        """``members``: those of the stage that count, of either version.

        Where none is wanted, weights prove themselves in one new replica by that it loads them: it gets no request, as
        the stages beside it may sleep too, and is surplus afterwards.
        """
        new = [member for member in members if member.version == self.version]
        old = [member for member in members if member.version != self.version]
        settled = [
            member for member in new if self.has_settled(member, now) or (not desired and self._has_loaded(member))
        ]
        desired = max(desired, 1)
        if not old and len(settled) >= desired:
            return RolloutStep(done=True)
        keep = desired - len(settled)
        if self.parallel and keep > 0:
            keep = len(old)
        drain = sorted(old, key=lambda member: (member.is_ready, member.born))[: max(0, len(old) - max(keep, 0))]
        missing = max(0, desired - len(old) - len(new))
        if settled or not old:
            more = missing
        else:
            more = 0
        if self.parallel:
            more = max(more, desired - len(new))
        elif len(new) == len(settled) and len(new) < desired:
            more = max(more, 1)
        start_old = missing if not settled and old else 0
        return RolloutStep(start_new=max(more, 0), start_old=start_old, drain=tuple(drain))
