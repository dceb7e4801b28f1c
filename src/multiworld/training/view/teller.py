"""Decide what a member tells its launcher of the training. Pure.

The member that speaks for the training (``leading``) tells how it stands, twice a second at most, and each change of
the membership: when it is known, and when the next step was committed.
"""

from __future__ import annotations

import math

from ...wire.shortened import shortened
from ...world.launcher.news import MAX_MEMBERS, MAX_TEXT, Trained, TrainingFault, TrainingNews, TrainingPipelines
from ...world.launcher.pipelines import sizes_of
from ..events import (
    MemberLost,
    MembershipChanged,
    PipelinesChanged,
    RecoveryPhase,
    StepCommitted,
    TrainingEnded,
    TrainingEvent,
)
from .leading import is_leading
from .progress import Progress, ProgressMeter
from .recoveries import MAX_STEPS_WITHOUT_CHANGE, Recovery, recoveries_of
from .report_text import headline

STEPS_S = 0.5
MAX_SEEN = 1000  # events of one recovery


class Teller:
    """Of one member, which says something only while it speaks for the training."""

    def __init__(self) -> None:
        self._meter = ProgressMeter()
        self._is_leading = False  # nobody is before the first membership
        self._seen: list[TrainingEvent] = []  # since the last recovery began
        self._is_first = True
        self._is_told = False  # that the membership has changed, but not yet that a step was committed after it
        self._num_commits = 0
        self._generation = 0
        self._pipelines: PipelinesChanged | None = None  # of the generation that begins
        self._next_at = -math.inf

    def take(self, event: TrainingEvent, *, now: float) -> list[TrainingNews]:
        """Return what is to be told now. ``now``: seconds of a monotonic clock."""
        self._meter.take(event)
        if isinstance(event, MemberLost | RecoveryPhase):
            self._note(event)
            return []
        if isinstance(event, PipelinesChanged):
            self._pipelines = event
            return []
        if isinstance(event, MembershipChanged):
            return self._changed(event)
        if isinstance(event, StepCommitted):
            return [*self._recovered(event), *self._stands(event, now)]
        if isinstance(event, TrainingEnded) and self._is_leading:
            return self._ended(event)
        return []

    def _note(self, event: TrainingEvent) -> None:
        if len(self._seen) < MAX_SEEN:
            self._seen.append(event)
        self._num_commits = 0

    def _changed(self, event: MembershipChanged) -> list[TrainingNews]:
        self._generation = event.generation
        self._is_leading = is_leading(event)
        is_first, self._is_first = self._is_first, False
        self._note(event)
        formed = [_pipelines(self._pipelines)] if self._is_leading and self._pipelines is not None else []
        if not self._is_leading or (is_first and not event.gone) or not (event.came or event.gone):
            return [*formed]
        self._is_told = True
        recovery = recoveries_of(self._seen)[-1]
        return [*formed, _fault(recovery, len(event.ranks) // self._meter.replica_size, is_over=False)]

    def _recovered(self, event: StepCommitted) -> list[TrainingNews]:
        if not self._seen:
            return []
        self._num_commits += 1
        is_changed = any(isinstance(each, MembershipChanged) for each in self._seen)
        if not is_changed and self._num_commits < MAX_STEPS_WITHOUT_CHANGE:
            return []  # the step counts, and the membership changes after it
        recovery = recoveries_of([*self._seen, event])[-1]
        self._seen = []
        is_told, self._is_told = self._is_told, False
        return [] if not is_told else [_fault(recovery, event.replicas, is_over=True)]

    def _stands(self, event: StepCommitted, now: float) -> list[TrainingNews]:
        if not self._is_leading or now < self._next_at:
            return []
        progress = self._meter.progress()
        assert progress is not None  # this step is in it
        self._next_at = now + STEPS_S
        return [_trained(progress, event.generation)]

    def _ended(self, event: TrainingEnded) -> list[TrainingNews]:
        progress = self._meter.progress()
        if progress is None:
            return []
        return [_trained(progress, self._generation, ended=True, reason=event.error or event.reason)]


def _trained(progress: Progress, generation: int, *, ended: bool = False, reason: str = "") -> Trained:
    is_finite = progress.loss is None or math.isfinite(progress.loss)
    return Trained(
        name=progress.job[:MAX_TEXT],
        generation=generation,
        step=progress.step,
        replicas=progress.replicas,
        total=progress.total,
        value_name=(progress.loss_name or "")[:MAX_TEXT],
        value=progress.loss if is_finite else None,
        is_finite=is_finite,
        samples_per_s=progress.samples_per_s,
        goodput=progress.goodput,
        left_s=progress.left_s,
        ended=ended,
        reason=shortened(reason.partition("\n")[0], MAX_TEXT),
    )


def _pipelines(changed: PipelinesChanged) -> TrainingPipelines:
    num_members = sum(sizes_of(changed.pipelines))
    return TrainingPipelines(
        name=changed.job[:MAX_TEXT],
        generation=changed.generation,
        step=changed.step,
        replicas=num_members,
        num_layers=changed.num_layers,
        pipelines=changed.pipelines if num_members <= MAX_MEMBERS else (),
        policy=changed.policy[:MAX_TEXT],
        iteration_s=changed.iteration_s,
    )


def _fault(recovery: Recovery, replicas: int, *, is_over: bool) -> TrainingFault:
    causes = dict.fromkeys(f"{each.cause}: {each.detail}".removesuffix(": ") for each in recovery.lost)
    text = headline(recovery) + (f" ({'; '.join(causes)})" if causes else "")
    return TrainingFault(
        name=recovery.job[:MAX_TEXT],
        key=f"{recovery.generation}:{recovery.step}",
        generation=recovery.generation,
        step=recovery.step,
        replicas=replicas,
        change="failure" if recovery.lost else "join" if recovery.came else "leave",
        text=shortened(text, MAX_TEXT),
        took_s=recovery.took_s if is_over else None,
        phases={each.name: each.took_s for each in recovery.phases} if is_over else {},
        redone=recovery.redone if is_over else 0,
    )
