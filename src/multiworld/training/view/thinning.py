"""Which lines of a long record become one: steps far from any failure, few at a time and ever more. Pure.

A record holds all failures, recoveries and other events for ever, and the steps beside them. Of the others, runs of
steps become one line with their means and sums. A run is aligned: its first step is a multiple of its length. So the
members of a training, each of which thins its own record, join the same steps.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from ..events import CheckpointSaved, StepCommitted, StepsCommitted, TrainingEvent

MARGIN = 4  # so many steps before and after an event stay: a recovery ends with one of them
MAX_PER_LINE = 1 << 20


def num_steps_of(event: StepCommitted) -> int:
    """Return how many steps a line of the record stands for."""
    return event.num_steps if isinstance(event, StepsCommitted) else 1


def thinned(events: Sequence[TrainingEvent], per_line: int) -> list[TrainingEvent]:
    """Return the record of one member with up to ``per_line`` steps in a line, a power of 2.

    Of the checkpoints within such a run only the last is kept. All other events are.
    """
    found: list[TrainingEvent] = []
    for group in _groups(events, per_line):
        steps = [each for each in group if isinstance(each, StepCommitted)]
        if sum(map(num_steps_of, steps)) < per_line or len(steps) < 2:
            found += group
        else:
            saved = [each for each in group if isinstance(each, CheckpointSaved)]
            found += sorted([*saved[-1:], _joined(steps)], key=lambda each: each.at)
    return found


def halved(events: Sequence[TrainingEvent]) -> list[TrainingEvent]:
    """Return the record with at most half of its lines, if that is possible."""
    found, per_line = list(events), 1
    while 2 * len(found) > len(events) and per_line < MAX_PER_LINE:
        per_line *= 2
        found = thinned(found, per_line)
    return found


def _groups(events: Sequence[TrainingEvent], per_line: int) -> list[list[TrainingEvent]]:
    """Cut the events: each group is a run of steps without any other event near them, or one event."""
    kept = _kept(events)
    groups: list[list[TrainingEvent]] = []
    last: StepCommitted | None = None  # of the run that the last group is
    for number, event in enumerate(events):
        if isinstance(event, StepCommitted) and number not in kept:
            if last is None or not _follows(last, event, per_line):
                groups.append([])
            groups[-1].append(event)
            last = event
        elif isinstance(event, CheckpointSaved) and last is not None:
            groups[-1].append(event)
        else:
            groups.append([event])
            last = None
    return groups


def _kept(events: Sequence[TrainingEvent]) -> set[int]:
    """Return the places of the steps beside other events."""
    steps = [number for number, each in enumerate(events) if isinstance(each, StepCommitted)]
    kept: set[int] = set()
    before = 0  # steps in front of the event
    for event in events:
        if isinstance(event, StepCommitted):
            before += 1
        elif not isinstance(event, CheckpointSaved):
            kept.update(steps[max(0, before - MARGIN) : before + MARGIN])
    return kept


def _follows(last: StepCommitted, event: StepCommitted, per_line: int) -> bool:
    """Whether a line goes on with the run of the line before it."""
    first = event.step - num_steps_of(event) + 1
    is_same = (last.job, last.generation, last.replicas) == (event.job, event.generation, event.replicas)
    return is_same and first == last.step + 1 and first // per_line == last.step // per_line


def _joined(steps: Sequence[StepCommitted]) -> StepsCommitted:
    last = steps[-1]
    counts = [num_steps_of(each) for each in steps]
    return StepsCommitted(
        job=last.job,
        member=last.member,
        rank=last.rank,
        generation=last.generation,
        at=last.at,
        step=last.step,
        values=_means([each.values for each in steps], counts),
        num_samples=sum(each.num_samples for each in steps),
        replicas=last.replicas,
        took_s=math.fsum(each.took_s for each in steps),
        seconds=_sums([each.seconds for each in steps]),
        redone=sum(each.redone for each in steps),
        num_steps=sum(counts),
    )


def _sums(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for each in parts:
        for name, value in each.items():
            found[name] += value
    return dict(found)


def _means(values: Sequence[Mapping[str, float]], counts: Sequence[int]) -> dict[str, float]:
    """Return the mean of each value over the lines that have it."""
    pairs = list(zip(values, counts, strict=True))
    weights = _sums([dict.fromkeys(each, float(count)) for each, count in pairs])
    sums = _sums([{name: value * count for name, value in each.items()} for each, count in pairs])
    return {name: total / weights[name] for name, total in sums.items()}
