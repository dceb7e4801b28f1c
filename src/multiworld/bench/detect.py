"""Measure how long every surviving member of a world takes to know that another was killed or stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from .options import Options
from .report import Bound, Line
from .samples import percentile
from .team import Team, Teammate

ABOUT = (
    "Worlds of three processes with default settings; the victim is each rank in turn, and hosts the store every other "
    "time. Time from just before the signal until World.wait_broken() returned, on every survivor; the 99th percentile "
    "over all. Pending are two receives and an all_reduce on each survivor. Raw Gloo: of a receive from the victim, "
    "pending in the same processes at the same time; idle it notices nothing."
)
BACKENDS = ("tcp", "gloo")
MEMBER = "detect_member:DetectMember"
WORLD_SIZE = 3
NUM_SURVIVORS = WORLD_SIZE - 1
BATCH = 4  # victims started at a time: imports while a fault is timed would disturb it
LEASE_MS = 2_000
KILL_BOUND = Bound.at_most(250)
RAISE_BOUND = Bound.at_most(50)
STOP_BOUND = Bound.at_most(LEASE_MS + 250)


@dataclass(frozen=True)
class Trial:
    """One fault: which rank it hits, whether that hosts the store, whether operations are pending."""

    number: int
    backend: str
    kind: str
    pending: bool

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.backend}-{self.number}"

    @property
    def victim_rank(self) -> int:
        return self.number % WORLD_SIZE

    @property
    def victim_serves(self) -> bool:
        return self.number % 2 == 1

    @property
    def survivor_ranks(self) -> list[int]:
        return [rank for rank in range(WORLD_SIZE) if rank != self.victim_rank]


@dataclass
class Found:
    """Times of all trials of one kind in milliseconds, one per survivor or operation, and the causes that were told."""

    known: list[float] = field(default_factory=list)
    raised: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)
    fenced: list[float] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    num_raw_pending: int = 0


class Ward:
    """The two survivors of all trials, their store, and victims that wait for their turn."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._survivors = team.members
        self._endpoints = team.endpoints

    def victims(self, count: int) -> Iterator[Teammate]:
        """Yield new processes, each to be used for one fault."""
        for first in range(0, count, BATCH):
            hired = self._team.hire(range(NUM_SURVIVORS, NUM_SURVIVORS + min(BATCH, count - first)))
            for victim in hired:
                victim.ask("meet", **self._endpoints)
                yield victim

    def kill(self, trial: Trial, victim: Teammate, found: Found) -> None:
        self._form(trial, victim, raw=trial.pending)
        killed_at = victim.worker.kill()
        self._collect(found, killed_at)
        if trial.pending:
            raised = [survivor.ask("found_raw") for survivor in self._survivors]
            found.raw += [(at - killed_at) * 1e3 for at in raised]
        self._forget(self._survivors)
        victim.worker.close()

    def stop(self, trial: Trial, victim: Teammate, found: Found) -> None:
        self._form(trial, victim, raw=True)
        stopped_at = victim.worker.stop()
        self._collect(found, stopped_at)
        raw = [survivor.tell("found_raw") for survivor in self._survivors]
        continued_at = victim.worker.cont()
        found.fenced.append((victim.ask("found")["at"] - continued_at) * 1e3)
        victim.ask("release_raw", others=trial.survivor_ranks)
        outcomes = [survivor.answer(number) for survivor, number in zip(self._survivors, raw, strict=True)]
        found.num_raw_pending += outcomes.count(None)  # it never noticed
        self._forget([*self._survivors, victim])

    def _form(self, trial: Trial, victim: Teammate, *, raw: bool) -> None:
        store_url = victim.ask("serve_worlds") if trial.victim_serves else self._endpoints["store_url"]
        members = list(self._survivors)
        members.insert(trial.victim_rank, victim)
        fields = {"world_size": WORLD_SIZE, "store_url": store_url, "backend": trial.backend, "raw": raw}
        numbers = [member.tell("join", name=trial.name, rank=rank, **fields) for rank, member in enumerate(members)]
        for member, number in zip(members, numbers, strict=True):
            member.answer(number)
        if trial.pending:
            first, second = trial.survivor_ranks
            self._survivors[0].ask("begin", victim=trial.victim_rank, others=[second])
            self._survivors[1].ask("begin", victim=trial.victim_rank, others=[first])

    def _collect(self, found: Found, at: float) -> None:
        numbers = [survivor.tell("found") for survivor in self._survivors]
        for survivor, number in zip(self._survivors, numbers, strict=True):
            told = survivor.answer(number)
            found.known.append((told["at"] - at) * 1e3)
            found.raised += [max(0.0, raised_at - told["at"]) * 1e3 for raised_at in told["raised_at"]]
            found.causes.append(told["cause"])

    def _forget(self, members: Sequence[Teammate]) -> None:
        for member in members:
            member.ask("forget")


def measure(options: Options, note: Callable[[str], None]) -> list[Line]:
    """Return the lines for both kinds of fault and each backend."""
    lines = []
    with Team(MEMBER, NUM_SURVIVORS) as team:
        ward = Ward(team)
        for backend in options.backends:
            for pending in (False, True):
                note(f"{options.trials} × SIGKILL, {'operations pending' if pending else 'idle'}, {backend}")
                lines += _killed(ward, backend, pending, options.trials)
            note(f"{options.trials} × SIGSTOP, operations pending, {backend}")
            lines += _stopped(ward, backend, options.trials)
    return lines


def _killed(ward: Ward, backend: str, pending: bool, num_trials: int) -> list[Line]:
    found = Found()
    for number, victim in enumerate(ward.victims(num_trials)):
        ward.kill(Trial(number, backend, f"kill-{pending}", pending), victim, found)
    name = f"SIGKILL, {'operations pending' if pending else 'idle'}, {backend}"
    lines = [_line(name, found.known, KILL_BOUND, found.raw), _causes(name, found, "PeerDiedError")]
    if pending:
        lines.insert(1, _line(f"{name}: then until all raised", found.raised, RAISE_BOUND))
    return lines


def _stopped(ward: Ward, backend: str, num_trials: int) -> list[Line]:
    found = Found()
    [victim] = ward.victims(1)  # continued, it joins again
    for number in range(num_trials):
        ward.stop(Trial(number, backend, "stop", pending=True), victim, found)
    name = f"SIGSTOP, operations pending, {backend}"
    raw = f"raw Gloo: {found.num_raw_pending} of {NUM_SURVIVORS * num_trials} receives still pending"
    return [
        _line(name, found.known, STOP_BOUND, note=raw),
        _line(f"{name}: then until all raised", found.raised, RAISE_BOUND),
        _line(f"{name}: after SIGCONT, until it knows", found.fenced),
        _causes(name, found, "PeerStoppedError"),
    ]


def _line(name: str, times: list[float], bound: Bound | None = None, raw: Sequence[float] = (), note: str = "") -> Line:
    return Line(
        name=name,
        unit="ms",
        value=percentile(times, 99),
        reference=percentile(raw, 99) if raw else None,
        bound=bound,
        details={"p50": percentile(times, 50), "max": max(times), "n": len(times)},
        note=note,
    )


def _causes(name: str, found: Found, expected: str) -> Line:
    wrong = [cause for cause in found.causes if cause != expected]
    note = f"instead of {expected}: {', '.join(sorted(set(wrong)))}" if wrong else expected
    return Line(name=f"{name}: told another cause", unit="", value=len(wrong), bound=Bound.at_most(0), note=note)
