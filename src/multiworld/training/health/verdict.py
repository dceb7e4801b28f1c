"""Decide which members must give up their state, from the facts of a step. Pure: all members decide alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..engine.facts import Facts
from .divergence import Divergence, diverged


@dataclass(frozen=True)
class Verdict:
    """``wrong``: places of members whose results must not count; the step is done without them.

    ``divergence``: members that differ, if any do. ``miscomputed``: by place, the parameter whose gradient differed
    when a micro-batch was computed twice.
    """

    wrong: frozenset[int] = frozenset()
    divergence: Divergence | None = None
    miscomputed: tuple[tuple[int, str], ...] = ()


FINE = Verdict()


def judge(facts: Sequence[Facts]) -> Verdict:
    """``facts``: of all members, by place. At least half of those with state are right, or nobody is taken out.

    If most members compute something else the second time, the program is not deterministic, and no chip is broken.
    """
    divergence = None
    if any(each.digests for each in facts):
        divergence = diverged([str(place) for place in range(len(facts))], facts)
    miscomputed = tuple((place, each.miscomputed) for place, each in enumerate(facts) if each.miscomputed)
    if divergence is None and not miscomputed:
        return FINE
    wrong = {place for place, _ in miscomputed}
    if divergence is not None:
        wrong |= {int(place) for place in divergence.wrong}
    num_ready = sum(each.is_ready for each in facts)
    return Verdict(frozenset(wrong) if 2 * len(wrong) < num_ready else frozenset(), divergence, miscomputed)
