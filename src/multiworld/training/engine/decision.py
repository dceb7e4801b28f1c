"""Decide what a step's facts mean for all members: the values of the step, and who is ready, leaves or comes. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..replica.layout import places_lost_with
from .facts import Facts


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The same on all members. Places are ranks in the generation's world.

    ``values``: means over the micro-batches in their order, wherever they ran. ``not_ready``: members without the
    state. ``leaving``: those that go now. ``newcomers``: ids to admit now. ``unused``: parameters without any gradient.
    ``changed``: buffers that changed. ``is_prefetched``: all have the layers that the generation's coming assignment
    gives them, so another generation takes it up now.
    """

    values: dict[str, float] = field(default_factory=dict)
    num_done: int = 0
    not_ready: frozenset[int] = frozenset()
    leaving: frozenset[int] = frozenset()
    newcomers: tuple[str, ...] = ()
    unused: frozenset[int] = frozenset()
    changed: frozenset[int] = frozenset()
    save: bool = False
    is_prefetched: bool = False


def decide(facts: Sequence[Facts], replica_size: int = 1) -> Outcome:
    """``facts``: of all members, by place. The processes of a replica compute each micro-batch, and leave, together."""
    computed = [each for each in facts if each.done]
    unused = frozenset.intersection(*(frozenset(each.unused) for each in computed)) if computed else frozenset()
    return Outcome(
        values=means(facts),
        num_done=sum(len(each.done) for each in facts) // replica_size,
        not_ready=frozenset(place for place, each in enumerate(facts) if not each.is_ready),
        leaving=places_lost_with([place for place, each in enumerate(facts) if each.is_leaving], replica_size),
        newcomers=tuple(sorted({newcomer for each in facts for newcomer in each.newcomers})),
        unused=unused,
        changed=frozenset(index for each in facts for index in each.changed),
        save=any(each.save for each in facts),
    )


def means(facts: Sequence[Facts]) -> dict[str, float]:
    """Return the mean of each value, summed exactly, so that it does not depend on who computed what."""
    by_name: dict[str, list[float]] = {}
    for each in facts:
        for name, values in each.values.items():
            by_name.setdefault(name, []).extend(map(float, values))
    return {name: _mean(values) for name, values in sorted(by_name.items()) if values}


def _mean(values: Sequence[float]) -> float:
    if all(map(math.isfinite, values)):
        return math.fsum(values) / len(values)
    return sum(values) / len(values)
