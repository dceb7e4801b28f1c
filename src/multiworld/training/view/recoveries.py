"""Merge what the members saw of each recovery into one timeline of phases. Pure.

A member's part of a recovery begins with the first sign of it (a lost member, a phase, a change of the membership) and
ends with the first step that it commits after a change of the membership. Parts that end in the same generation are of
one recovery. A second failure before that step is part of the same recovery.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from ..events import (
    MemberLost,
    MembershipChanged,
    RecoveryPhase,
    StateReceived,
    StepCommitted,
    TrainingEnded,
    TrainingEvent,
    TrainingStarted,
)

DETECT, MOVE, TRANSFER = "detect", "move", "transfer"
PHASES = (DETECT, "agree", "plan", "form", MOVE, TRANSFER, "redo")
"""In their order. ``plan`` is a part of ``agree``."""
MAX_STEPS_WITHOUT_CHANGE = 3  # a recovery that has changed no membership by then does not change it any more
NEAR_S = 1.0  # clocks of hosts differ

Kind = Literal["failure", "join", "leave", "start"]


@dataclass(frozen=True, kw_only=True)
class PhaseSpan:
    """One phase on one member, in Unix time."""

    name: str
    began_at: float
    ended_at: float

    @property
    def took_s(self) -> float:
        return self.ended_at - self.began_at


@dataclass(frozen=True, kw_only=True)
class Track:
    """What one member went through, in its own order."""

    rank: int
    member: str
    spans: tuple[PhaseSpan, ...]


@dataclass(frozen=True, kw_only=True)
class MergedPhase:
    """A phase over all members: from the first that began it to the last that ended it.

    ``took_s``: of the slowest member, which is ``slowest_rank``.
    """

    name: str
    began_at: float
    ended_at: float
    took_s: float
    slowest_rank: int
    num_members: int


@dataclass(frozen=True, kw_only=True)
class LostRank:
    """A member that was lost, with the evidence of the first that saw it. ``seen_by``: ranks."""

    rank: int
    cause: str
    detail: str
    at: float
    seen_by: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The state that a newcomer was sent, or the layers that a member of a pipeline was sent."""

    rank: int
    step: int
    size_bytes: int
    sources: int
    took_s: float


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """``committed_at``: when the next step was committed, None if none was. ``generation``: the one that it led to.

    ``redone``: how many micro-batches of that step were computed again.
    """

    job: str
    kind: Kind
    step: int
    generation: int
    began_at: float
    ended_at: float
    committed_at: float | None
    lost: tuple[LostRank, ...] = ()
    came: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    phases: tuple[MergedPhase, ...] = ()
    tracks: tuple[Track, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    redone: int = 0

    @property
    def took_s(self) -> float:
        """From the first sign of it to the next committed step, or to the last sign of it if none was committed."""
        return max(0.0, (self.ended_at if self.committed_at is None else self.committed_at) - self.began_at)


@dataclass
class _Part:
    """What one member saw of one recovery."""

    job: str
    member: str
    rank: int
    opened_in: int
    step: int
    is_first: bool
    began_at: float = inf
    ended_at: float = -inf
    changed_to: int | None = None
    committed_at: float | None = None
    redone: int = 0
    lost: list[MemberLost] = field(default_factory=list)
    changes: list[MembershipChanged] = field(default_factory=list)
    spans: list[PhaseSpan] = field(default_factory=list)
    num_commits: int = 0

    @property
    def is_newcomer(self) -> bool:
        """Whether this member came while the others trained."""
        return self.is_first and any(
            self.rank in each.came and set(each.ranks) > set(each.came) for each in self.changes
        )

    @property
    def leads_to(self) -> int:
        """The generation after it, as far as this member knows."""
        return self.opened_in if self.changed_to is None else self.changed_to

    @property
    def least_generation(self) -> int:
        """The first generation that a recovery of this can lead to: a member is lost in one, and gone in the next."""
        return self.opened_in + bool(self.lost)

    @property
    def has_changed_nothing(self) -> bool:
        """Whether nobody was lost, and nothing was agreed: the world ended, for the error of a program, say."""
        return not self.lost and not self.changes and all(each.name == DETECT for each in self.spans)

    def saw(self, began_at: float, ended_at: float) -> None:
        self.began_at, self.ended_at = min(self.began_at, began_at), max(self.ended_at, ended_at)


class _Member:
    """Cuts the events of one member into parts."""

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.transfers: list[StateReceived] = []
        self._open: _Part | None = None
        self._has_committed = False

    def take(self, event: TrainingEvent) -> None:
        if isinstance(event, MemberLost):
            part = self._part(event, event.step)
            part.lost.append(event)
            part.saw(event.at, event.at)
        elif isinstance(event, RecoveryPhase):
            is_late = self._open is None and event.name == TRANSFER and bool(self.parts)
            part = self.parts[-1] if is_late else self._part(event, event.step)
            began_at = event.at - max(0.0, event.took_s)
            part.spans.append(PhaseSpan(name=event.name, began_at=began_at, ended_at=event.at))
            part.saw(began_at, event.at)
        elif isinstance(event, MembershipChanged):
            part = self._part(event, event.step)
            part.changes.append(event)
            part.changed_to = event.generation
            part.saw(event.at, event.at)
        elif isinstance(event, StateReceived):
            self._received(event)
        elif isinstance(event, StepCommitted):
            self._committed(event)
        elif isinstance(event, TrainingEnded | TrainingStarted):
            if self._open is not None and self._open.has_changed_nothing:
                self.parts.remove(self._open)
            self._open = None

    def _received(self, event: StateReceived) -> None:
        """The transfer went on beside the steps of the others, and may end after the first commit."""
        self.transfers.append(event)
        part = self._open or (self.parts[-1] if self.parts else None)
        if part is not None and not any(each.name in (MOVE, TRANSFER) for each in part.spans):
            began_at = max(event.at - max(0.0, event.took_s), part.began_at)
            part.spans.append(PhaseSpan(name=TRANSFER, began_at=min(began_at, event.at), ended_at=event.at))
            part.saw(event.at, event.at)

    def _part(self, event: TrainingEvent, step: int) -> _Part:
        if self._open is None:
            self._open = _Part(
                job=event.job,
                member=event.member,
                rank=event.rank,
                opened_in=event.generation,
                step=step,
                is_first=not self._has_committed,
            )
            self.parts.append(self._open)
        return self._open

    def _committed(self, event: StepCommitted) -> None:
        self._has_committed = True
        part = self._open
        if part is None:
            return
        part.num_commits += 1
        if part.changed_to is None and part.lost and part.num_commits < MAX_STEPS_WITHOUT_CHANGE:
            return  # the step counts although a member was lost in it; the membership changes after it
        part.committed_at, part.redone = event.at, event.redone
        if part.changed_to is None:
            part.changed_to = event.generation
        self._open = None


def recoveries_of(events: Iterable[TrainingEvent]) -> list[Recovery]:
    """Return the recoveries in their order. ``events``: of all members, each member's own in its order.

    The members' first formation, which nothing preceded, is of the kind ``start``.
    """
    members: dict[tuple[str, str], _Member] = {}
    for event in events:
        members.setdefault((event.job, event.member), _Member()).take(event)
    parts = [part for each in members.values() for part in each.parts]
    found = sorted((_merged(group) for group in _groups(parts)), key=lambda each: (each.began_at, each.generation))
    return _with_transfers(found, [each for member in members.values() for each in member.transfers])


def _groups(parts: Sequence[_Part]) -> list[list[_Part]]:
    """Return the parts of each recovery together."""
    closed: dict[tuple[str, int], list[_Part]] = {}
    loose: list[_Part] = []  # the member was lost itself before it knew how the recovery ends
    for part in sorted(parts, key=lambda each: (each.began_at, each.member)):
        if part.committed_at is None:
            loose.append(part)
        else:
            closed.setdefault((part.job, part.leads_to), []).append(part)
    groups = [cut for group in closed.values() for cut in _cut_by_time(group)]
    ends = [(group[0], min(each.began_at for each in group), max(each.ended_at for each in group)) for group in groups]
    alone: dict[tuple[str, int], list[_Part]] = {}
    for part in loose:
        near = [
            (abs(began_at - part.began_at), number)
            for number, (one, began_at, ended_at) in enumerate(ends)
            if one.job == part.job
            and one.leads_to >= part.least_generation
            and began_at - NEAR_S <= part.ended_at
            and part.began_at <= ended_at + NEAR_S
        ]
        if near:
            groups[min(near)[1]].append(part)
        else:
            alone.setdefault((part.job, part.leads_to), []).append(part)
    return groups + [cut for group in alone.values() for cut in _cut_by_time(group)]


def _cut_by_time(group: list[_Part]) -> list[list[_Part]]:
    """A run that was started anew counts its generations from 1 again: part what lies a minute or more apart."""
    cut: list[list[_Part]] = []
    ended_at = -inf
    for part in sorted(group, key=lambda each: (each.began_at, each.member)):
        if part.began_at - ended_at >= 60.0:
            cut.append([])
        cut[-1].append(part)
        ended_at = max(ended_at, part.ended_at)
    return cut


def _merged(parts: list[_Part]) -> Recovery:
    parts = sorted(parts, key=lambda each: (each.rank, each.member, each.began_at))
    before = [each for each in parts if not each.is_newcomer] or parts
    began_at = min(each.began_at for each in before)  # a newcomer waits to be admitted, and nobody waits for it
    committed = [each.committed_at for each in before if each.committed_at is not None]
    changes = [change for each in parts for change in each.changes]
    last = max(changes, key=lambda each: (each.generation, each.at, each.member), default=None)
    came = _ranks(rank for change in changes for rank in change.came)
    gone = _ranks(rank for change in changes for rank in change.gone)
    lost = _lost([each for part in parts for each in part.lost], gone)
    kind: Kind
    if lost:
        kind = "failure"
    elif all(each.is_first for each in parts):
        kind = "start"
    else:
        kind = "join" if came or not gone else "leave"
    return Recovery(
        job=parts[0].job,
        kind=kind,
        step=max(each.step for each in before),
        generation=max(each.leads_to for each in parts),
        began_at=began_at,
        ended_at=max([began_at, *(each.ended_at for each in parts), *committed]),
        committed_at=max(began_at, min(committed)) if committed else None,
        lost=lost,
        came=came,
        gone=gone,
        ranks=() if last is None else last.ranks,
        phases=_phases(parts, before, began_at),
        tracks=_tracks(parts, began_at),
        redone=max(each.redone for each in parts),
    )


def _tracks(parts: Sequence[_Part], began_at: float) -> tuple[Track, ...]:
    """Return what each member went through since then."""
    tracks = (
        Track(rank=each.rank, member=each.member, spans=tuple(sorted(_since(each.spans, began_at), key=_when)))
        for each in parts
    )
    return tuple(each for each in tracks if each.spans)


def _since(spans: Iterable[PhaseSpan], began_at: float) -> list[PhaseSpan]:
    return [
        each if each.began_at >= began_at else replace(each, began_at=began_at)
        for each in spans
        if each.ended_at > began_at or each.began_at >= began_at
    ]


def _when(span: PhaseSpan) -> tuple[float, float, str]:
    return span.began_at, span.ended_at, span.name


def _phases(parts: Sequence[_Part], before: Sequence[_Part], began_at: float) -> tuple[MergedPhase, ...]:
    """Return the phases of those who were there before, and the transfers of all."""
    spans: dict[str, list[tuple[_Part, PhaseSpan]]] = {}
    for part in parts:
        for span in _since(part.spans, began_at):
            if part in before or span.name == TRANSFER:
                spans.setdefault(span.name, []).append((part, span))
    return tuple(_phase(name, spans[name]) for name in sorted(spans, key=_place_of))


def _place_of(name: str) -> tuple[int, str]:
    return (PHASES.index(name), "") if name in PHASES else (len(PHASES), name)


def _phase(name: str, spans: Sequence[tuple[_Part, PhaseSpan]]) -> MergedPhase:
    took: dict[tuple[int, str], float] = {}
    for part, span in spans:
        took[part.rank, part.member] = took.get((part.rank, part.member), 0.0) + span.took_s
    slowest = max(took, key=lambda each: (took[each], each))
    return MergedPhase(
        name=name,
        began_at=min(span.began_at for _, span in spans),
        ended_at=max(span.ended_at for _, span in spans),
        took_s=took[slowest],
        slowest_rank=slowest[0],
        num_members=len(took),
    )


def _lost(seen: Sequence[MemberLost], gone: Sequence[int]) -> tuple[LostRank, ...]:
    """Return each lost rank once, as the first that saw it did. Where nobody knows whose loss it was, ``gone`` says."""
    known = {each.lost_rank for each in seen}
    unnamed = [rank for rank in gone if rank not in known]
    by_rank: dict[int, list[MemberLost]] = {}
    for event in sorted(seen, key=lambda each: (each.at, each.rank, each.member)):
        rank = event.lost_rank if event.lost_rank >= 0 or len(unnamed) != 1 else unnamed[0]
        by_rank.setdefault(rank, []).append(event)
    if len(by_rank) > 1:
        by_rank.pop(-1, None)  # the others have seen whose it was
    found = [
        LostRank(
            rank=rank,
            cause=told[0].cause,
            detail=told[0].detail,
            at=told[0].at,
            seen_by=_ranks(each.rank for each in told),
        )
        for rank, told in by_rank.items()
    ]
    return tuple(sorted(found, key=lambda each: (each.at, each.rank)))


def _ranks(ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(set(ranks)))


def _with_transfers(found: list[Recovery], received: Sequence[StateReceived]) -> list[Recovery]:
    """Give each transfer to the last recovery before its end that its rank came with, or got other layers in."""
    taken: dict[int, list[Transfer]] = {}
    for event in sorted(received, key=lambda each: (each.at, each.rank, each.member)):
        number = max(
            (
                number
                for number, each in enumerate(found)
                if each.job == event.job
                and each.began_at <= event.at
                and (event.rank in each.came or (event.rank in each.ranks and _has_moved(each)))
            ),
            default=None,
        )
        if number is not None:
            transfer = Transfer(
                rank=event.rank,
                step=event.step,
                size_bytes=event.size_bytes,
                sources=event.sources,
                took_s=event.took_s,
            )
            taken.setdefault(number, []).append(transfer)
    return [_replaced(each, tuple(taken.get(number, ()))) for number, each in enumerate(found)]


def _has_moved(recovery: Recovery) -> bool:
    return any(each.name == MOVE for each in recovery.phases)


def _replaced(recovery: Recovery, transfers: tuple[Transfer, ...]) -> Recovery:
    return replace(recovery, transfers=transfers) if transfers else recovery
