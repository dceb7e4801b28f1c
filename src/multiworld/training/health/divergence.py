"""Decide which replicas have diverged, from the digests of what must be equal on all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..engine.facts import Facts


@dataclass(frozen=True)
class Divergence:
    """Replicas that should be equal are not. ``first``: the first tensor (or part of one) that differs.

    ``wrong``: the members that differ from the majority. Empty if there is no majority, as with two members: then
    nobody knows which member is right. ``differing``: all members that were compared where something differs.
    ``num_names``: how many digests differ.
    """

    first: str
    wrong: tuple[str, ...]
    differing: tuple[str, ...]
    num_names: int


def diverged(members: Sequence[str], facts: Sequence[Facts]) -> Divergence | None:
    """Compare what the members (by id, in their order) said in one step; None: all that was compared is equal.

    A member without digests, such as a newcomer without state, is not compared. More than half of those that are
    compared must agree to be right.
    """
    first, num_names = "", 0
    wrong: set[str] = set()
    differing: set[str] = set()
    for name, by_member in _by_name(members, facts).items():
        counts = Counter(by_member.values())
        if len(counts) < 2:
            continue
        first, num_names = first or name, num_names + 1
        differing |= by_member.keys()
        value, num = counts.most_common(1)[0]
        if 2 * num > len(by_member):
            wrong |= {member for member, each in by_member.items() if each != value}
    if not num_names:
        return None
    return Divergence(
        first,
        tuple(member for member in members if member in wrong),
        tuple(member for member in members if member in differing),
        num_names,
    )


def _by_name(members: Sequence[str], facts: Sequence[Facts]) -> Mapping[str, dict[str, str]]:
    """Return each name's digest by member, the names in the order of the first member that has them."""
    found: dict[str, dict[str, str]] = {}
    for member, fact in zip(members, facts, strict=True):
        for name, value in fact.digests.items():
            found.setdefault(name, {})[member] = value
    return found
