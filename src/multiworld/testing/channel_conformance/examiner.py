"""Examines one channel: starts the members, lets them play the checks, injects the faults, and judges."""

from __future__ import annotations

import itertools
import random
import unittest
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..crew import Call, Crew, Member
from ..deadlines import Deadline, scaled
from ..processes import Worker, WorkerFailedError
from ..worker_group import WorkerGroup
from .catalogue import Check, ConformanceError
from .checks import CHECKS
from .stage import Role
from .subject import Effort, Subject

PROGRAM = "multiworld.testing.channel_conformance.member:run"
OVERDUE_S = 5.0  # by which a member that has run out of time has said so, unless its event loop is blocked
AFTERMATH_S = 2.0  # in which the others see what one member's failure does to them
SHOWN_CHARS = 3000


@dataclass(frozen=True)
class _Failure:
    """What went wrong for one rank, and when."""

    at: float
    rank: int
    text: str


class Examiner:
    """Use it as a context manager: the processes, started by the first check, end with it."""

    def __init__(self, subject: Subject, effort: Effort | None = None) -> None:
        self.subject, self.effort = subject, effort or Effort()
        self._workers: WorkerGroup | None = None
        self._crew: Crew | None = None
        self._numbers = itertools.count()
        self._missing: list[Member] = []  # replacements that may not be ready
        self._all_ended = True  # all who played the last check have said so
        self._shown: dict[str, int] = {}  # how much each member had written when the check began

    def __enter__(self) -> Examiner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, name: str) -> None:
        """Carry out a check.

        Raises ``ConformanceError`` if the channel fails it, and ``unittest.SkipTest`` where it cannot be carried out.
        """
        check = CHECKS[name]
        self._skip(check)
        self._shown = {worker.name: len(worker.stderr) for worker in self._started()}
        try:
            if check.script is not None:
                check.script(self)
            else:
                for size in self._sizes(check):
                    self._perform(check, size)
        except Exception as error:
            verdict = self._verdict(check, error)
            if check.script is not None or not self._all_ended:
                self.close()  # what they may still do must not disturb the next check
            raise ConformanceError(verdict) from error

    def close(self) -> None:
        """Kill and reap all members. Idempotent; the next check starts new ones."""
        if self._workers is not None:
            self._workers.close()
        self._workers = self._crew = None
        self._missing.clear()

    @property
    def crew(self) -> Crew:
        """The members, all of them ready."""
        if self._crew is None:
            self._workers = WorkerGroup()
            self._crew = Crew(
                self._workers,
                self.subject.num_members,
                program=PROGRAM,
                launch=self.subject.launcher(sum(check.num_kills(self.effort) for check in CHECKS.values())),
                lease_s=self.subject.lease_s,
            )
        if self._missing:
            self._crew.await_ready(self._missing)
            self._missing.clear()
        return self._crew

    def chance(self, *key: object) -> random.Random:
        """Return a source of random numbers that follows from the seed."""
        return random.Random(f"{self.effort.seed} {key}")

    def new_name(self, name: str) -> str:
        """Return a name that no world has had."""
        return f"{name}-{next(self._numbers)}"

    def cast(self, size: int, chance: random.Random) -> list[int]:
        """Return so many members in any order; the n-th will have rank n."""
        return chance.sample(range(self.subject.num_members), size)

    def form(self, world: str, members: Sequence[int]) -> None:
        calls = [self.join(world, rank, members, "join") for rank in range(len(members))]
        for call in calls:
            call.result(30)

    def join(self, world: str, rank: int, members: Sequence[int], how: str) -> Call:
        """Let the member that has this rank join, by the command ``how``."""
        crew = self.crew
        return crew[members[rank]].call(
            how,
            world=world,
            rank=rank,
            world_size=len(members),
            store=crew.store,
            backend=self.subject.backend,
            device=str(self.subject.device_of(members[rank])),
            timeout_s=scaled(20.0),
        )

    def kill(self, member: int) -> float:
        """Kill a member, start another in its place, and return when."""
        crew = self.crew
        at = crew[member].worker.kill()
        crew.members[member] = crew.hire(member)
        self._missing.append(crew.members[member])
        return at

    def _perform(self, check: Check, size: int) -> None:
        """Let members play the check in a world of this size, and carry their words from one to the other."""
        members = self.crew.members[:size]
        label = self.new_name(f"{check.name}-{size}")
        for rank, member in enumerate(members):
            role = Role(
                check=check.name,
                label=label,
                rank=rank,
                size=size,
                store=self.crew.store,
                backend=self.subject.backend,
                device=str(self.subject.device_of(rank)),
                seed=self.effort.seed,
                num_moments=self.effort.num_moments,
                timeout_s=scaled(self.effort.check_timeout_s),
            )
            member.call("perform", **asdict(role))
        self._all_ended = False
        failures = self._conduct(label, members)
        if failures:
            raise ConformanceError(_describe(failures, size))

    def _conduct(self, label: str, members: Sequence[Member]) -> list[_Failure]:
        assert self._workers is not None
        ranks = {member.worker: rank for rank, member in enumerate(members)}
        deadline = Deadline(self.effort.check_timeout_s + OVERDUE_S)
        playing, met, failures = dict(ranks), dict[int, Any](), list[_Failure]()
        while playing:
            try:
                remaining_s = min(deadline.remaining_s(), AFTERMATH_S) if failures else deadline.remaining_s()
                worker, report = self._workers.await_first(
                    ("meeting", "ended"), remaining_s / scaled(1.0), among=list(playing), label=label
                )
            except WorkerFailedError as error:
                if failures:
                    return failures
                raise ConformanceError(f"a member does not answer any more: {error}") from error
            if report.event == "meeting":
                met[ranks[worker]] = report["value"]
            else:
                rank = playing.pop(worker)
                if report["failure"] is not None:
                    failures.append(_Failure(report.at, rank, report["failure"]))
            if failures:  # then those who wait for the others do so in vain
                for rank in met:
                    members[rank].call("dismiss", label=label)
                met.clear()
            if len(met) == len(members):
                for member in members:
                    member.call("proceed", label=label, values=[met[rank] for rank in range(len(members))])
                met.clear()
        self._all_ended = True
        return failures

    def _sizes(self, check: Check) -> list[int]:
        return [size for size in self.subject.world_sizes if size in check.sizes]

    def _skip(self, check: Check) -> None:
        if reason := self.subject.why_not():
            raise unittest.SkipTest(f"{self.subject.backend} does not work here: {reason}")
        if check.name in self.subject.skip:
            raise unittest.SkipTest(self.subject.skip[check.name])
        if self.subject.kill_ends_all and check.num_kills(self.effort):
            raise unittest.SkipTest(f"it kills a member, which ends all: {self.subject.kill_ends_all}")
        if check.num_members > self.subject.num_members or (check.part is not None and not self._sizes(check)):
            sizes = (
                f"a world of {' or '.join(map(str, check.sizes))}" if check.sizes else f"{check.num_members} members"
            )
            raise unittest.SkipTest(f"it needs {sizes}")

    def _verdict(self, check: Check, error: Exception) -> str:
        seed = self.effort.seed
        return (
            f"channel {self.subject.backend!r} breaks a promise: {check.promise}\n{error}\n"
            f"Again: python -m multiworld.testing.channel_conformance {self.subject.backend} "
            f"--only {check.name} --seed {seed}{'' if isinstance(error, WorkerFailedError) else self._written()}"
        )

    def _written(self) -> str:
        """Return what members wrote to standard error: warnings of the channel, or where a blocked one stands."""
        texts = {worker.name: worker.stderr[self._shown.get(worker.name, 0) :] for worker in self._started()}
        return "".join(f"\n{name} wrote:\n{text[-SHOWN_CHARS:]}" for name, text in texts.items() if text)

    def _started(self) -> list[Worker]:
        return [] if self._workers is None else self._workers.workers


def _describe(failures: Sequence[_Failure], size: int) -> str:
    first, *others = sorted(failures, key=lambda failure: failure.at)
    lines = [f"rank {first.rank} of {size}: {first.text}"]
    lines += [f"then rank {failure.rank}: {failure.text.splitlines()[0]}" for failure in others if failure.text]
    return "\n".join(lines)
