"""Decide which member speaks for the training: it prints the progress line and tells the launcher. Pure.

The member that has been there longest speaks; of those that came together, that with the lowest rank. So it has seen
all that is to be told, and each member knows from its own events alone when its turn has come.
"""

from __future__ import annotations

from ..events import MembershipChanged


class Leading:
    """Whether the member with this rank speaks. ``rank``: as in ``MembershipChanged.ranks``."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._ahead: set[int] | None = None  # ranks of those that speak before this one, while they are there

    @property
    def is_leading(self) -> bool:
        """False before the first membership."""
        return self._ahead is not None and not self._ahead

    def take(self, change: MembershipChanged) -> bool:
        """Take in a change that this member takes part in; return whether it speaks from now on."""
        others = set(change.ranks) - {self._rank}
        came = set(change.came)
        if self._ahead is None:
            if self._rank not in came or came >= set(change.ranks):  # the first membership: all came together
                self._ahead = {rank for rank in others if rank < self._rank}
            else:
                self._ahead = {rank for rank in others if rank not in came or rank < self._rank}
        else:
            # a rank that came now is another process than the one that had this rank before
            self._ahead = (self._ahead & others) - came - set(change.gone)
        return self.is_leading
