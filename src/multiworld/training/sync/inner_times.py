"""What a member tells of its last inner steps at an outer step, so that slow ranks are found there, too. Pure.

Members compute inner steps apart, but compute as many in a round: the last ones of all are compared, one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..engine.facts import Facts

NUM_KEPT = 20
"""So many of the last inner steps of a round are told, however long it is: a slow rank is named by as many."""
DIGITS = 6


def by_part(steps: Sequence[Mapping[str, float]], left_out: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each step by part, oldest first, but for parts that are no work of the member itself."""
    parts = sorted({part for step in steps for part in step}.difference(left_out))
    return {part: tuple(round(step.get(part, 0.0), DIGITS) for step in steps) for part in parts}


def facts_of_steps(facts: Sequence[Facts]) -> Iterator[list[Facts]]:
    """Yield, step by step, what members would have said of it: their facts with the seconds of that step.

    Those that computed nothing in the round say nothing of it. ``facts``: of all members, of one round.
    """
    lengths = {len(seconds) for each in facts if each.done for seconds in each.inner_seconds.values()}
    for back in range(min(lengths, default=0), 0, -1):
        yield [
            replace(each, seconds={part: seconds[-back] for part, seconds in each.inner_seconds.items()})
            if each.done
            else replace(each, seconds={})
            for each in facts
        ]
