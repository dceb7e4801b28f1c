"""Share the micro-batches of a step out to its members, at first and again after a loss. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TypeVar

Member = TypeVar("Member", bound=Hashable)


def deal(
    num_micro_batches: int, members: Sequence[Member], done: Mapping[Member, Collection[int]] | None = None
) -> dict[Member, tuple[int, ...]]:
    """Return the micro-batches that each of ``members`` is to compute, in their order: all that nobody has done.

    ``done`` says who has finished which micro-batches, so that these count: of members, and of others whose gradients
    are still there. The missing ones go out in contiguous ranges such that the members end with equal numbers of
    micro-batches in this step, done ones included, as far as that is possible; of equals, the earlier members get one
    more. Raises ValueError if nobody is there, a member comes twice, or a micro-batch was done twice.
    """
    if not members:
        raise ValueError(f"{num_micro_batches} micro-batches cannot be dealt to no member")
    if len(set(members)) != len(members):
        raise ValueError(f"a member comes twice among {list(members)}")
    finished = _finished(num_micro_batches, done or {})
    missing = [number for number in range(num_micro_batches) if number not in finished]
    counts = _levelled([len((done or {}).get(member, ())) for member in members], len(missing))
    shares, begin = {}, 0
    for member, count in zip(members, counts, strict=True):
        shares[member] = tuple(missing[begin : begin + count])
        begin += count
    return shares


def _finished(num_micro_batches: int, done: Mapping[Member, Collection[int]]) -> dict[int, Member]:
    finished: dict[int, Member] = {}
    for member, numbers in done.items():
        for number in numbers:
            if not 0 <= number < num_micro_batches:
                raise ValueError(f"{member!r} did micro-batch {number} of a step that has {num_micro_batches}")
            if number in finished:
                raise ValueError(f"micro-batch {number} was done twice: by {finished[number]!r} and by {member!r}")
            finished[number] = member
    return finished


def _levelled(had: Sequence[int], num_more: int) -> list[int]:
    """Return how many of ``num_more`` each one gets, so that the largest sum of had and got is least."""
    order = sorted(range(len(had)), key=lambda place: had[place])  # stable: of equals, the earlier first
    level, filled = 0, 0
    for count, place in enumerate(order, start=1):
        above = had[order[count]] if count < len(order) else None
        filled += had[place]
        if above is None or count * above - filled >= num_more:
            level, rest = divmod(filled + num_more, count)
            got = [0] * len(had)
            for number, taker in enumerate(sorted(order[:count])):
                got[taker] = level + (number < rest) - had[taker]
            return got
    raise AssertionError("a last member ends the loop")
