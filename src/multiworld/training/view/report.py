"""What happened in a training, from the events of all its members: for people as text, for programs as JSON. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median, median_low

from ...observe.curve import CurvePoint, curve_of
from ...wire.messages import Json
from ..events import (
    CopySaved,
    MemberLost,
    MembershipChanged,
    PipelinesChanged,
    RecoveryPhase,
    StateReceived,
    StepCommitted,
    TrainingEnded,
    TrainingEvent,
    TrainingStarted,
)
from .goodput import CAUSES, WAIT, Account, CommittedStep, account_of, commits_of
from .progress import main_value
from .recoveries import Recovery, recoveries_of
from .thinning import num_steps_of
from .words import number

SLOW_FACTOR = 1.3
SLOW_STEPS = 20
MAX_NOTES = 200
KNOWN = (
    TrainingStarted,
    StepCommitted,
    MemberLost,
    RecoveryPhase,
    MembershipChanged,
    PipelinesChanged,
    StateReceived,
    CopySaved,
    TrainingEnded,
)


@dataclass(frozen=True, kw_only=True)
class MemberReport:
    """One process. ``first_step`` and ``last_step`` are what it committed, None if nothing."""

    rank: int
    member: str
    pid: int
    began_at: float
    ended_at: float
    first_step: int | None
    last_step: int | None
    end: str


@dataclass(frozen=True, kw_only=True)
class SlowRank:
    """A rank whose own time was longer than that of the middle rank, in ``num_steps`` steps.

    ``factor``: the median over those steps. ``part``: where most of the excess was.
    """

    rank: int
    factor: float
    part: str
    num_steps: int
    first_step: int
    last_step: int


@dataclass(frozen=True, kw_only=True)
class Note:
    """An event of another kind, such as a checkpoint that failed: its kind, and its fields as text."""

    at: float
    rank: int
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TrainingReport:
    """One training. ``curve``: steps and the means of ``value_name``; ``replicas``: from which step on how many.

    ``num_thinned``: of so many steps the record has only means and sums, over up to ``max_per_line`` steps each.
    """

    job: str
    began_at: float
    ended_at: float
    first_step: int | None
    last_step: int | None
    total: int | None
    max_replicas: int
    value_name: str | None
    curve: tuple[CurvePoint, ...]
    replicas: tuple[tuple[int, int], ...]
    last_values: Mapping[str, float]
    account: Account
    recoveries: tuple[Recovery, ...]
    members: tuple[MemberReport, ...]
    slow_ranks: tuple[SlowRank, ...]
    notes: tuple[Note, ...]
    num_notes: int
    num_thinned: int
    max_per_line: int
    pipelines: tuple[PipelinesChanged, ...] = ()
    """Of each generation, in its order; empty for a training of replicas."""

    @property
    def members_noun(self) -> str:
        """What goes on or is lost: a ``replica``, or a ``process`` of a pipeline."""
        return "process" if self.pipelines else "replica"

    @property
    def failures(self) -> list[Recovery]:
        return [each for each in self.recoveries if each.kind == "failure"]


def reports_of(events: Sequence[TrainingEvent]) -> list[TrainingReport]:
    """Return a report of each training, in the order of their beginnings. ``events``: in the order of time."""
    by_job: dict[str, list[TrainingEvent]] = {}
    for event in events:
        by_job.setdefault(event.job, []).append(event)
    return [_report(job, its) for job, its in by_job.items()]


def report_json(report: TrainingReport) -> Json:
    """Return the report for JSON, with what is computed from it; numbers that JSON does not have are null."""
    account = {
        **asdict(report.account),
        "goodput": report.account.goodput,
        "samples_per_s": report.account.samples_per_s,
    }
    recoveries = [{**asdict(each), "took_s": each.took_s, "tracks": _tracks(each)} for each in report.recoveries]
    return _plain({**asdict(report), "account": account, "recoveries": recoveries})


def _tracks(recovery: Recovery) -> list[Json]:
    return [
        {
            "rank": track.rank,
            "member": track.member,
            "spans": [{**asdict(span), "took_s": span.took_s} for span in track.spans],
        }
        for track in recovery.tracks
    ]


def _report(job: str, events: list[TrainingEvent]) -> TrainingReport:
    recoveries = recoveries_of(events)
    commits = commits_of(events)
    totals = [each.total for each in events if isinstance(each, TrainingStarted) and each.total is not None]
    last = commits[-1] if commits else None
    name = None if last is None else main_value(last.any.values)
    notes = [_note(each) for each in events if not isinstance(each, KNOWN)]
    return TrainingReport(
        job=job,
        began_at=events[0].at,
        ended_at=max(each.at for each in events),
        first_step=min((each.step - each.num_steps + 1 for each in commits), default=None),
        last_step=None if last is None else last.step,
        total=totals[-1] if totals else None,
        max_replicas=max((each.any.replicas for each in commits), default=0),
        value_name=name,
        curve=tuple(curve_of((each.step, each.any.values[name]) for each in commits if name in each.any.values))
        if name is not None
        else (),
        replicas=tuple(_changes(commits)),
        last_values={} if last is None else dict(last.any.values),
        account=account_of(events, recoveries),
        recoveries=tuple(each for each in recoveries if each.kind != "start"),
        members=tuple(_members(events)),
        slow_ranks=tuple(_slow_ranks(commits)),
        notes=tuple(notes[:MAX_NOTES]),
        num_notes=len(notes),
        num_thinned=sum(each.num_steps for each in commits if each.num_steps > 1),
        max_per_line=max((each.num_steps for each in commits), default=1),
        pipelines=tuple(_pipelines(events)),
    )


def _pipelines(events: Sequence[TrainingEvent]) -> list[PipelinesChanged]:
    """Return the pipelines of each generation once: all of its members tell them."""
    found: list[PipelinesChanged] = []
    for event in events:
        if isinstance(event, PipelinesChanged) and not any(_is_same(event, each) for each in found):
            found.append(event)
    return found


def _is_same(one: PipelinesChanged, other: PipelinesChanged) -> bool:
    """A run that was started anew counts its generations from 1 again, with other members."""
    return (one.generation, one.step, one.pipelines) == (other.generation, other.step, other.pipelines)


def _changes(commits: Sequence[CommittedStep]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for commit in commits:
        if not found or found[-1][1] != commit.any.replicas:
            found.append((commit.step - commit.num_steps + 1, commit.any.replicas))
    return found


def _members(events: Sequence[TrainingEvent]) -> list[MemberReport]:
    by_member: dict[str, list[TrainingEvent]] = {}
    for event in events:
        by_member.setdefault(event.member, []).append(event)
    lost = {(each.lost_rank, each.at): each for each in events if isinstance(each, MemberLost)}
    found = []
    for member, its in by_member.items():
        steps = [each for each in its if isinstance(each, StepCommitted)]
        ended_at = max(each.at for each in its)
        found.append(
            MemberReport(
                rank=its[-1].rank,
                member=member,
                pid=next((each.pid for each in its if isinstance(each, TrainingStarted)), 0),
                began_at=its[0].at,
                ended_at=ended_at,
                first_step=steps[0].step - num_steps_of(steps[0]) + 1 if steps else None,
                last_step=steps[-1].step if steps else None,
                end=_end(its, [each for each in lost.values() if each.lost_rank == its[-1].rank]),
            )
        )
    return sorted(found, key=lambda each: (each.rank, each.began_at))


def _end(its: Sequence[TrainingEvent], lost: Sequence[MemberLost]) -> str:
    """Return how a member ended, as far as its record or the others tell."""
    last = next((each for each in reversed(its) if isinstance(each, TrainingEnded)), None)
    if last is not None:
        return (last.error or last.reason or "done").partition("\n")[0]
    ended_at = max(each.at for each in its)
    seen = min((each for each in lost if each.at >= ended_at - 1.0), key=lambda each: each.at, default=None)
    return "its record has no end" if seen is None else f"lost: {seen.cause}"


def _slow_ranks(commits: Sequence[CommittedStep]) -> list[SlowRank]:
    slow: dict[int, list[tuple[CommittedStep, float, str]]] = {}  # by rank, with the factor and the part
    for commit in commits:
        own = {each.rank: _own(each) for each in commit.computed}
        if len(own) < 2:
            continue
        middle = median_low([sum(parts.values()) for parts in own.values()])
        for rank, parts in own.items():
            total = sum(parts.values())
            if middle > 0 and total > SLOW_FACTOR * middle:
                others = [each for other, each in own.items() if other != rank]
                excess = {
                    part: took - median_low([each.get(part, 0.0) for each in others]) for part, took in parts.items()
                }
                slow.setdefault(rank, []).append((commit, total / middle, max(excess, key=lambda p: excess[p])))
    return [
        SlowRank(
            rank=rank,
            factor=median(factor for _, factor, _ in steps),
            part=Counter(part for _, _, part in steps).most_common(1)[0][0],
            num_steps=sum(commit.num_steps for commit, _, _ in steps),
            first_step=steps[0][0].step - steps[0][0].num_steps + 1,
            last_step=steps[-1][0].step,
        )
        for rank, steps in sorted(slow.items())
        if sum(commit.num_steps for commit, _, _ in steps) >= SLOW_STEPS
    ]


def _own(event: StepCommitted) -> dict[str, float]:
    return {part: took_s for part, took_s in event.seconds.items() if part != WAIT}


def _note(event: TrainingEvent) -> Note:
    common = {each.name for each in fields(TrainingEvent)}
    told = {each.name: getattr(event, each.name) for each in fields(event) if each.name not in common}
    shown = {name: number(value) if isinstance(value, float) else value for name, value in told.items()}
    text = ", ".join(f"{name} {value}" for name, value in shown.items() if value not in ("", None, (), {}))
    kind = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(event).__name__).strip()
    return Note(at=event.at, rank=event.rank, kind=kind, text=text)


def _plain(value: Json) -> Json:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def lossy_causes(account: Account) -> list[tuple[str, float]]:
    """Return the causes that took time, the greatest first."""
    found = [(cause, account.losses.get(cause, 0.0)) for cause in CAUSES]
    return sorted((each for each in found if each[1] > 0), key=lambda each: -each[1])
