"""Schedules of failures of a simulated training in pipelines, each drawn from a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from multiworld.training.data.ledger_check import LedgerReport

from .network import LEASE_S
from .pipelines import NUM_MORE, SMALLEST, Program, Training

__all__ = ["HANG_S", "Disturbed", "hit_in_recovery", "killed_at_random"]

HANG_S = 10.0
NUM_STEPS, NUM_KILLS = 12, 5
END_S = 120.0
SHARE_OF_PHASES = 0.5
"""Of the kills, those that wait for a process to be in a phase."""

STEP_PHASES = ("data", "forward", "backward", "weights", "reduce", "facts", "optimizer", "meet")
RECOVERY_PHASES = ("agree", "form", "move")
FAULTS = ("kill", "kill two", "kill in a recovery", "stop", "part", "cut", "coordinator", "join", "leave")
OF_HOSTS = ("cut", "coordinator")


@dataclass(frozen=True, kw_only=True)
class Disturbed:
    """How a training went. ``longest_s``: without a step while all that live could go on, on the simulation's clock.

    ``hit``: how often each fault was done, what processes were at that were killed, and how processes ended.
    """

    report: LedgerReport
    longest_s: float
    hit: Counter[str]


class Schedule:
    """Does to a training what is asked, and looks whether it goes on."""

    def __init__(self, training: Training) -> None:
        self.training, self.turns, self.choose = training, training.turns, training.turns.random
        self.hit: Counter[str] = Counter()
        self._calm_since = 0.0
        self._longest_s = 0.0

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        until = self.turns.now + seconds
        self.turns.at(until, lambda: None)
        self._run_while(lambda: self.turns.now < until)

    def await_phase(self, phase: str, limit_s: float) -> Program | None:
        """Wait until a process is at this. None: none is within that time."""
        until = self.turns.now + limit_s
        self.turns.at(until, lambda: None)
        self._run_while(lambda: self.turns.now < until and not self._at(phase))
        return self.any_of(self._at(phase))

    def any_of(self, programs: list[Program]) -> Program | None:
        return self.choose.choice(programs) if programs else None

    def kill(self, program: Program | None) -> None:
        """It is replaced some time later."""
        if program is not None and not self.is_over:
            self.hit[f"killed in {program.process.phase}"] += 1
            self.training.kill(program)
            self._calm_since = self.turns.now
            self.training.start_later(program.rank)

    @property
    def is_over(self) -> bool:
        return self.training.is_lost or self.training.furthest >= self.training.num_steps

    def end(self) -> Disturbed:
        """Go on until all have done all steps, or have ended as some layers are with nobody."""
        training, until = self.training, self.turns.now + END_S
        self._run_while(lambda: bool(training.living or training.num_coming) and self.turns.now < until)
        assert self.turns.now < until, f"no end after {END_S} s: {training.describe()}"
        assert self.is_over, training.describe()
        training.check_ended()
        return Disturbed(report=training.report(), longest_s=self._longest_s, hit=self.hit)

    def _run_while(self, goes_on: Callable[[], bool]) -> None:
        def looked_at() -> bool:
            self._look()
            return goes_on()

        self.training.run_while(looked_at)

    def _at(self, phase: str) -> list[Program]:
        return [each for each in self.training.living if each.process.phase == phase]

    def _look(self) -> None:
        """Raise AssertionError if nobody goes on though all could."""
        training, now = self.training, self.turns.now
        ended = training.restart_failed()
        self.hit.update(ended)
        living = training.living
        is_calm = not training.network.is_cut and not any(each.process.is_stopped for each in living)
        if ended or self.is_over or not is_calm or len(living) < SMALLEST:
            self._calm_since = now
            return
        waited_s = now - max(training.counted_at, self._calm_since)
        self._longest_s = max(self._longest_s, waited_s)
        assert waited_s < HANG_S, f"no step for {waited_s:.1f} s: {training.describe()}"


def killed_at_random(seed: int) -> Disturbed:
    """Train through some kills, each of which is replaced: at any time, or in a phase that is chosen."""
    with _training(seed) as training:
        schedule = Schedule(training)
        choose = schedule.choose
        for _ in range(NUM_KILLS):
            if choose.random() < SHARE_OF_PHASES:
                victim = schedule.await_phase(choose.choice(STEP_PHASES + RECOVERY_PHASES), 0.2)
            else:
                schedule.run(schedule.turns.some(0.08))
                victim = schedule.any_of(training.living)
            schedule.kill(victim)
        return schedule.end()


def hit_in_recovery(seed: int) -> Disturbed:
    """Two at once, and more while the others recover; also processes that stop or part, hosts that are cut off, the
    loss of the coordinator's host, and processes that come and go.
    """
    with _training(seed) as training:
        schedule = Schedule(training)
        choose = schedule.choose
        schedule.run(schedule.turns.some(0.1))
        for _ in range(choose.randrange(1, 4)):
            faults = [each for each in FAULTS if each not in OF_HOSTS or training.has_all_hosts]
            if len(training.living) > 1 and not schedule.is_over:
                _hit(schedule, choose.choice(faults))
            schedule.run(choose.choice([0.0, 0.01, 0.05, 0.3, 2.0]))
        return schedule.end()


def _training(seed: int) -> Training:
    return Training(
        seed,
        4 + seed % 3,
        num_steps=NUM_STEPS,
        num_hosts=1 + seed // 3 % 4,
        exact=seed % 5 == 0,
        saved_step=1 if seed % 4 else None,
    )


def _hit(schedule: Schedule, fault: str) -> None:
    training, choose = schedule.training, schedule.choose
    schedule.hit[fault] += 1
    one, other = choose.sample(training.living, 2)
    if fault == "stop":
        _stop(schedule, one)
    elif fault == "part":
        training.worlds.part(one.process, other.process)
    elif fault == "cut":
        _cut(schedule)
    elif fault == "coordinator":
        _lose_coordinator(schedule)
    elif fault == "join":
        training.start(training.size + choose.randrange(NUM_MORE))
    elif fault == "leave":
        one.is_leaving = True
    else:
        schedule.kill(one)
    if fault == "kill two":
        schedule.kill(other)
    elif fault == "kill in a recovery":
        schedule.kill(schedule.await_phase(choose.choice(RECOVERY_PHASES), 0.5))


def _stop(schedule: Schedule, program: Program) -> None:
    """Stop it for a while that may be shorter or longer than a lease."""
    turns, process = schedule.turns, program.process
    turns.stop(process)
    schedule.training.worlds.stopped(process)
    turns.after(turns.some(LEASE_S), lambda: turns.go_on(process) if process.is_alive else None)


def _cut(schedule: Schedule) -> None:
    """Part the hosts in two for a while that may be shorter or longer than a lease."""
    training, choose = schedule.training, schedule.choose
    hosts = training.launcher.here
    training.cut(frozenset(choose.sample(hosts, choose.randrange(1, len(hosts)))))
    schedule.turns.after(schedule.turns.some(3 * LEASE_S), training.heal)


def _lose_coordinator(schedule: Schedule) -> None:
    """The host with the store is lost, with its processes. It returns some time later."""
    training = schedule.training
    training.lose_host(training.launcher.server.process.host)
    schedule.turns.after(schedule.turns.some(3.0), training.heal)
