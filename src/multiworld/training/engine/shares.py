"""Decide which micro-batches of a step each member computes, at first, after a loss, and in the step after. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..data.dealing import deal
from ..recovery.records import Member
from ..replica.layout import share_of_replicas


class Shares:
    """The shares of the present step: all members decide alike, from the same members and ``done``.

    ``batch``: ``"constant"``: what a lost member did not finish is dealt to the others; ``"drop"``: its share is given
    up in this step; ``"shrink"``: in all steps, as no replica computes more than if all ``full_size`` were there.
    Places are ranks in the generation's world; the processes of a replica of ``replica_size`` have the same share.
    """

    def __init__(
        self, num_micro_batches: int, *, batch: str = "constant", replica_size: int = 1, full_size: int = 1
    ) -> None:
        self._num_micro_batches, self._batch, self._size = num_micro_batches, batch, replica_size
        self._most = -(-num_micro_batches // max(1, full_size))
        self.not_ready: frozenset[int] = frozenset()
        """Places of those that have no state yet, and compute nothing."""
        self.by_place: Sequence[tuple[int, ...]] = ()
        self._by_unit: dict[str, tuple[int, ...]] = {}
        """As dealt first in this step; what is given up is the share of the lost."""
        self._begun_by_others: dict[str, tuple[int, ...]] = {}
        """As the others have dealt the next step, which they had begun when this member still did the one before."""

    @property
    def by_replica(self) -> Sequence[tuple[int, ...]]:
        return self.by_place[:: self._size]

    def begin_step(self) -> None:
        self._by_unit, self._begun_by_others = self._begun_by_others, {}

    def deal(self, members: Sequence[Member], done: Mapping[int, Sequence[int]]) -> bool:
        """Share out what nobody has done. ``done``: by place. False: all keep their shares, as the batch may shrink."""
        units = [each.unit for each in members[:: self._size]]
        is_dealt = not self._by_unit or self._batch == "constant"
        if is_dealt:
            done_by = {place // self._size: numbers for place, numbers in done.items()}
            dealt = self._dealt(len(units), self.not_ready, done_by)
            shares = [(*done_by.get(number, ()), *dealt.get(number, ())) for number in range(len(units))]
        else:
            shares = [self._by_unit.get(unit, ()) for unit in units]
        self._by_unit = dict(zip(units, shares, strict=True))
        self.by_place = share_of_replicas(shares, self._size)
        return is_dealt

    def of_next_step(self, place: int, num_members: int) -> tuple[int, ...]:
        """Return the share of the step after the present one, if nothing happens."""
        return self._dealt(num_members // self._size, self.not_ready, {}).get(place // self._size, ())

    def others_began(self, members: Sequence[Member], not_ready: frozenset[int]) -> None:
        """These had begun the next step when one was lost, so this member keeps to what they have dealt."""
        if self._batch != "constant":
            units = [each.unit for each in members[:: self._size]]
            dealt = self._dealt(len(units), not_ready, {})
            self._begun_by_others = {unit: dealt.get(number, ()) for number, unit in enumerate(units)}

    def num_lost(self, members: Sequence[Member]) -> int:
        """Return how many micro-batches are dealt a second time, now that only these members are left."""
        if self._batch != "constant":
            return 0
        gone = self._by_unit.keys() - {each.unit for each in members}
        return sum(len(self._by_unit[unit]) for unit in gone)

    def _dealt(
        self, num_replicas: int, not_ready: frozenset[int], done: Mapping[int, Sequence[int]]
    ) -> dict[int, tuple[int, ...]]:
        ready = [number for number in range(num_replicas) if number * self._size not in not_ready]
        dealt = deal(self._num_micro_batches, ready, done)
        if self._batch == "shrink":
            dealt = {number: share[: self._most] for number, share in dealt.items()}
        return dealt
