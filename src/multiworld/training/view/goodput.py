"""Which part of a training's time was good, and what took the rest. Pure.

Goodput is the time of committed first-try work, divided by the wall time. The wall time is cut at the commits of the
steps. Of the time from one commit to the next, each cause below takes its share, in this order, and what remains is
good. So good time and losses add up to the wall time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

from ..events import RecoveryPhase, StepCommitted, TrainingEvent, TrainingStarted
from .recoveries import Recovery
from .thinning import num_steps_of

START = "start"
"""From the start of the first process to the first try of the first step."""
FAILURES = "failures"
"""Detection, agreement, forming worlds and transfer while the others wait; and the time in which nobody ran."""
REDO = "redo"
"""Micro-batches that were computed a second time."""
ROLLBACK = "rollback"
"""Steps that had been committed, and were lost with all replicas or undone on purpose."""
CHECKPOINT = "checkpoint"
"""The time for which saving stalled the step."""
DATA = "data wait"
"""The time for which the step waited for its samples."""
SLOW = "slow rank"
"""By how much the slowest rank's own time exceeds that of the middle rank."""
OUTSIDE = "outside steps"
"""What the program does between two steps, such as an evaluation."""
CAUSES = (START, FAILURES, REDO, ROLLBACK, CHECKPOINT, DATA, SLOW, OUTSIDE)
"""All causes of losses."""

STALLS = ("detect", "agree", "form", "move", "transfer")  # "plan" is a part of "agree"
WAIT = "wait"


@dataclass(frozen=True, kw_only=True)
class Account:
    """``losses``: seconds by cause, all ``CAUSES``. ``good_s`` and the losses add up to ``wall_s``."""

    wall_s: float = 0.0
    good_s: float = 0.0
    losses: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0.0))
    num_steps: int = 0
    num_samples: int = 0
    num_redone: int = 0
    mean_replicas: float = 0.0
    """Over the committed steps, each weighted by its time."""

    @property
    def goodput(self) -> float:
        """From 0 to 1; 0 while nothing was measured."""
        return self.good_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        return self.num_samples / self.wall_s if self.wall_s > 0 else 0.0


def shares(
    interval_s: float,
    took_s: float,
    *,
    stalled_s: float = 0.0,
    redo_s: float = 0.0,
    checkpoint_s: float = 0.0,
    data_s: float = 0.0,
    slow_s: float = 0.0,
    gap: str = OUTSIDE,
) -> tuple[float, dict[str, float]]:
    """Cut the time from one commit to the next: return what is good of it, and what each cause took.

    ``took_s``: from the first try of the step to its commit; the time before that goes to ``gap``. ``stalled_s``: for
    how long a recovery kept everybody waiting; what is longer than the step was in the gap.
    """
    took_s = min(max(took_s, 0.0), interval_s)
    losses = {gap: interval_s - took_s}
    left_s = took_s

    def take(cause: str, wanted_s: float) -> float:
        nonlocal left_s
        taken_s = min(max(wanted_s, 0.0), left_s)
        left_s -= taken_s
        losses[cause] = losses.get(cause, 0.0) + taken_s
        return wanted_s - taken_s

    more_s = min(max(0.0, take(FAILURES, stalled_s)), losses[gap])
    losses[gap] -= more_s
    losses[FAILURES] = losses.get(FAILURES, 0.0) + more_s
    for cause, wanted_s in ((REDO, redo_s), (CHECKPOINT, checkpoint_s), (DATA, data_s), (SLOW, slow_s)):
        take(cause, wanted_s)
    return left_s, losses


class LiveGoodput:
    """The account of one member, from its own events as they happen. It cannot see which other rank is slow."""

    def __init__(self) -> None:
        self._began_at: float | None = None
        self._last_at = 0.0
        self._good_s, self._losses = 0.0, dict.fromkeys(CAUSES, 0.0)
        self._stalled_s = self._redo_s = 0.0
        self._num_steps = self._num_samples = self._num_redone = 0
        self._replica_s = self._step_s = 0.0

    def take(self, event: TrainingEvent) -> None:
        if self._began_at is None:
            self._began_at = self._last_at = event.at
        if isinstance(event, RecoveryPhase):
            if event.name in STALLS:
                self._stalled_s += max(0.0, event.took_s)
            elif event.name == REDO:
                self._redo_s += max(0.0, event.took_s)
        elif isinstance(event, StepCommitted):
            self._committed(event)

    def account(self) -> Account:
        """Return it as of the last committed step."""
        return Account(
            wall_s=0.0 if self._began_at is None else self._last_at - self._began_at,
            good_s=self._good_s,
            losses=dict(self._losses),
            num_steps=self._num_steps,
            num_samples=self._num_samples,
            num_redone=self._num_redone,
            mean_replicas=self._replica_s / self._step_s if self._step_s else 0.0,
        )

    def _committed(self, event: StepCommitted) -> None:
        interval_s = max(0.0, event.at - self._last_at)
        good_s, losses = shares(
            interval_s,
            event.took_s,
            stalled_s=self._stalled_s,
            redo_s=self._redo_s,
            checkpoint_s=event.seconds.get("checkpoint", 0.0),
            data_s=event.seconds.get("data", 0.0),
            gap=OUTSIDE if self._num_steps else START,
        )
        self._last_at += interval_s
        self._good_s += good_s
        for cause, lost_s in losses.items():
            self._losses[cause] += lost_s
        self._stalled_s = self._redo_s = 0.0
        self._num_steps += 1
        self._num_samples += event.num_samples
        self._num_redone += event.redone
        self._replica_s += event.replicas * interval_s
        self._step_s += interval_s


@dataclass
class CommittedStep:
    """One committed step, as all members told it. ``at``: when the first one knew of it."""

    step: int
    at: float
    told: dict[str, StepCommitted]
    is_rollback: bool = False

    @property
    def any(self) -> StepCommitted:
        """What one of them told, always the same one."""
        return self.computed[0]

    @property
    def computed(self) -> list[StepCommitted]:
        """What those told that computed the step; a newcomer commits steps again that the others computed before.

        Of those that have thinned their records only the ones with the fewest steps in a line.
        """
        told = [self.told[member] for member in sorted(self.told)]
        least = min(map(num_steps_of, told))
        told = [each for each in told if num_steps_of(each) == least]
        return [each for each in told if each.seconds] or told

    @property
    def num_steps(self) -> int:
        """More than one in a record that was thinned."""
        return num_steps_of(self.any)


def commits_of(events: Iterable[TrainingEvent]) -> list[CommittedStep]:
    """Return the committed steps in the order of time. ``events``: of all members of one job, in that order.

    A step that comes a second time from the same member, or from a process that was started after those that committed
    it had ended, begins a rollback. Clocks of hosts may differ: a member's own order counts, not that between members.
    """
    found: list[CommittedStep] = []
    latest: dict[int, int] = {}  # by step: the number of its last commit
    last: dict[str, tuple[int, int]] = {}  # by member: its last step, and the number of that commit
    started: dict[str, float] = {}
    seen_at: dict[str, float] = {}
    for event in events:
        if isinstance(event, TrainingStarted):
            started.setdefault(event.member, event.at)
        if not isinstance(event, StepCommitted):
            continue
        number = latest.get(event.step)
        step_before, number_before = last.get(event.member, (None, -1))
        if number is None:
            is_same, is_rollback = False, step_before is not None and event.step <= step_before
        elif step_before is None:
            began_at = started.get(event.member, 0.0)
            is_same = began_at <= found[number].at or any(seen_at[other] >= began_at for other in found[number].told)
            is_rollback = not is_same
        elif event.step > step_before:
            is_same, is_rollback = event.member not in found[number].told, False
        else:
            is_same = number > number_before
            is_rollback = not is_same
        if is_same and number is not None:
            found[number].told[event.member] = event
        else:
            if is_rollback:
                latest = {step: each for step, each in latest.items() if step < event.step}
            number = latest[event.step] = len(found)
            found.append(
                CommittedStep(step=event.step, at=event.at, told={event.member: event}, is_rollback=is_rollback)
            )
        last[event.member], seen_at[event.member] = (event.step, number), event.at
    return found


def account_of(events: Sequence[TrainingEvent], recoveries: Sequence[Recovery]) -> Account:
    """Return the account of one job, from the events of all its members in the order of time."""
    if not events:
        return Account()
    began_at, ended_at = events[0].at, max(each.at for each in events)
    losses = dict.fromkeys(CAUSES, 0.0)
    good: list[tuple[int, float]] = []  # by step, of those that were not rolled back
    last_at, before = began_at, None
    replica_s = 0.0
    commits = commits_of(events)
    stalls, redos = _spans(recoveries, STALLS), _spans(recoveries, (REDO,))
    starts = sorted(each.at for each in events if isinstance(each, TrainingStarted))
    for commit in commits:
        at = max(commit.at, last_at)
        if commit.is_rollback:
            undone = sum(good_s for step, good_s in good if step >= commit.step)
            good = [(step, good_s) for step, good_s in good if step < commit.step]
            losses[ROLLBACK] += undone
        good_s, lost = shares(
            at - last_at,
            median_low([each.took_s for each in commit.computed]),
            stalled_s=_overlap(stalls, last_at, at),
            redo_s=_overlap(redos, last_at, at),
            checkpoint_s=_middle(commit, "checkpoint"),
            data_s=_middle(commit, "data"),
            slow_s=_slow(commit),
            gap=_gap(before, commit, starts),
        )
        good.append((commit.step, good_s))
        for cause, lost_s in lost.items():
            losses[cause] += lost_s
        replica_s += commit.any.replicas * (at - last_at)
        last_at, before = at, commit
    losses[OUTSIDE if commits else START] += max(0.0, ended_at - last_at)
    stepped_s = last_at - began_at
    return Account(
        wall_s=ended_at - began_at,
        good_s=sum(good_s for _, good_s in good),
        losses=losses,
        num_steps=sum(each.num_steps for each in {each.step: each for each in commits}.values()),
        num_samples=sum(each.any.num_samples for each in {each.step: each for each in commits}.values()),
        num_redone=sum(each.any.redone for each in commits),
        mean_replicas=replica_s / stepped_s if stepped_s > 0 else 0.0,
    )


def _gap(before: CommittedStep | None, commit: CommittedStep, starts: Sequence[float]) -> str:
    """Return the cause of what lies between the last commit and the first try of this step."""
    if before is None:
        return START
    has_survivor = not before.told.keys().isdisjoint(commit.told)
    has_started = any(before.at < at <= commit.at for at in starts)
    return OUTSIDE if has_survivor or not has_started else FAILURES


def _spans(recoveries: Sequence[Recovery], names: Sequence[str]) -> list[tuple[float, float]]:
    """Return when somebody was in one of these phases, without what newcomers do while the others go on."""
    spans = [
        (span.began_at, span.ended_at)
        for recovery in recoveries
        if recovery.kind != "start"
        for track in recovery.tracks
        for span in track.spans
        if span.name in names and track.rank not in recovery.came
    ]
    joined: list[tuple[float, float]] = []
    for began_at, ended_at in sorted(spans):
        if joined and began_at <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], ended_at)
        else:
            joined.append((began_at, ended_at))
    return joined


def _overlap(spans: Sequence[tuple[float, float]], from_at: float, to_at: float) -> float:
    return sum(max(0.0, min(ended_at, to_at) - max(began_at, from_at)) for began_at, ended_at in spans)


def _middle(commit: CommittedStep, part: str) -> float:
    return median_low([each.seconds.get(part, 0.0) for each in commit.computed])


def _slow(commit: CommittedStep) -> float:
    own = [sum(each.seconds.values()) - each.seconds.get(WAIT, 0.0) for each in commit.computed]
    return max(own) - median_low(own)
