"""Makes up what the members of a training say, with failures in it: pure, so that each run is the same."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from multiworld.training.events import (
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
from multiworld.world.launcher.pipelines import PipelineRanks

STEP_S = 0.05
NUM_LAYERS = 8


@dataclass
class Run:
    """Members that commit steps of 50 ms. ``events``: what each said, by its id, in its order."""

    num_members: int = 3
    job: str = "gpt"
    total: int = 60
    at: float = 1_000_000.0
    step: int = 0
    generation: int = 1
    events: dict[str, list[TrainingEvent]] = field(default_factory=dict)
    members: dict[int, str] = field(default_factory=dict)
    num_came: int = 0
    slow: dict[int, float] = field(default_factory=dict)
    has_pipelines: bool = False
    """All members form one pipeline, or two if there are four or more."""
    pipelines: tuple[PipelineRanks, ...] = ()
    """Instead, these: a test may change them."""

    def __post_init__(self) -> None:
        for rank in range(self.num_members):
            self._begin(rank)
        self.at += 1.0
        self._change(tuple(range(self.num_members)))

    def say(self, rank: int, kind: type[TrainingEvent], at: float | None = None, **fields: object) -> None:
        if kind is MembershipChanged:
            fields["members"] = tuple(sorted(self.members.values()))  # in the order in which they came
        event = kind(
            job=self.job,
            member=self.members[rank],
            rank=rank,
            generation=self.generation,
            at=self.at if at is None else at,
            **fields,
        )
        self.events.setdefault(self.members[rank], []).append(event)

    def steps(self, how_many: int, *, took_s: float | None = None, redone: int = 0) -> Run:
        for _ in range(how_many):
            slowest = max((self.slow.get(rank, 1.0) for rank in self.members), default=1.0)
            self.at += STEP_S * slowest
            for rank in self.members:
                self._commit(rank, STEP_S * slowest if took_s is None else took_s, slowest, redone)
            self.step += 1
            took_s, redone = None, 0
        return self

    def lose(self, lost: int, *, cause: str = "PeerDiedError") -> Run:
        """A member is lost in the middle of a step; the others go on after 0.2 s, and commit it."""
        del self.members[lost]
        self.at += 0.02
        for rank in self.members:
            at = self.at + 0.001 * rank
            self.say(rank, MemberLost, at, lost_rank=lost, step=self.step, cause=cause, detail="its socket closed")
            self.say(rank, RecoveryPhase, at, name="detect", step=self.step, took_s=0.005)
        for name, took_s in (("agree", 0.03), ("form", 0.06)):
            self.at += took_s
            for rank in self.members:
                self.say(rank, RecoveryPhase, name=name, step=self.step, took_s=took_s)
        self.generation += 1
        self._form_pipelines()
        for rank in self.members:
            self.say(rank, MembershipChanged, step=self.step, ranks=tuple(self.members), gone=(lost,))
        if self.has_pipelines:
            self.at += 0.02
            for rank in self.members:
                self.say(rank, RecoveryPhase, name="move", step=self.step, took_s=0.02)
                self.say(rank, StateReceived, step=self.step, size_bytes=1000 + rank, sources=1, took_s=0.02)
        self.at += 0.04
        for rank in self.members:
            self.say(rank, RecoveryPhase, name="redo", step=self.step, took_s=0.04)
        return self.steps(1, took_s=0.2, redone=2)

    def join(self, rank: int) -> Run:
        """A newcomer takes the state from the others, who wait for 30 ms."""
        self._begin(rank)
        self.generation += 1
        self.at += 0.03
        self.members = dict(sorted(self.members.items()))
        self._form_pipelines()
        for each in self.members:
            self.say(each, RecoveryPhase, name="form", step=self.step, took_s=0.03)
            self.say(each, MembershipChanged, step=self.step, ranks=tuple(self.members), came=(rank,))
        self.say(rank, StateReceived, self.at + 0.01, step=self.step, size_bytes=8_000_000, sources=2, took_s=0.5)
        return self.steps(1)

    def end(self) -> Run:
        for rank in self.members:
            self.say(rank, TrainingEnded, step=self.step - 1)
        return self

    def in_order(self) -> list[TrainingEvent]:
        return sorted((each for its in self.events.values() for each in its), key=lambda each: each.at)

    def _begin(self, rank: int) -> None:
        self.num_came += 1
        self.members[rank] = f"m{self.num_came:03d}"
        self.say(rank, TrainingStarted, step=self.step, total=self.total, pid=100 + self.num_came)

    def _form_pipelines(self) -> None:
        if not self.has_pipelines:
            return
        num_layers = max(NUM_LAYERS, len(self.members))
        ranks, count = tuple(self.members), 2 if len(self.members) >= 4 else 1
        cut = -(-len(ranks) // count)
        groups = [ranks[:cut], ranks[cut:]][:count]
        pipelines = self.pipelines or tuple(
            PipelineRanks(
                ranks=group,
                starts=tuple(num_layers * stage // len(group) for stage in range(len(group))),
                num_micro_batches=16 // count,
                busy=(0.75,) * len(group),
            )
            for group in groups
        )
        for rank in self.members:
            self.say(rank, PipelinesChanged, step=self.step, num_layers=num_layers, pipelines=pipelines, num_moved=3)

    def _change(self, came: Iterable[int]) -> None:
        self._form_pipelines()
        for rank in self.members:
            self.say(rank, MembershipChanged, step=self.step, ranks=tuple(self.members), came=tuple(came))

    def _commit(self, rank: int, took_s: float, slowest: float, redone: int) -> None:
        own = STEP_S * self.slow.get(rank, 1.0)
        seconds = {"data": 0.1 * own, "forward": 0.3 * STEP_S, "backward": own - 0.1 * own - 0.35 * STEP_S}
        self.say(
            rank,
            StepCommitted,
            step=self.step,
            values={"loss": 4.0 * math.exp(-self.step / 40) + 0.5},
            num_samples=64,
            replicas=len(self.members),
            took_s=took_s,
            seconds={**seconds, "optimizer": 0.05 * STEP_S, "wait": STEP_S * slowest - own},
            redone=redone,
        )
