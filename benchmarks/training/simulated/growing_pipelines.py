"""Schedules in which a training in pipelines grows: what happens while newcomers get layers beside the steps."""

from __future__ import annotations

from .disturbed_pipelines import Disturbed, Schedule
from .pipelines import NUM_MORE, Program, Training

__all__ = ["hit_while_growing"]

NUM_STEPS = 24
FAULTS = ("none", "kill newcomer", "kill old", "kill any later", "join", "leave", "part")


def hit_while_growing(seed: int) -> Disturbed:
    """A process joins, and while it gets layers another one is lost, leaves or comes, or it is lost itself."""
    training = Training(
        seed,
        3 + seed % 4,
        num_steps=NUM_STEPS,
        exact=seed % 3 == 0,
        saved_step=1 if seed % 4 else None,
        prefetches=True,
    )
    with training:
        schedule = Schedule(training)
        choose = schedule.choose
        schedule.run(schedule.turns.some(0.05))
        for number in range(choose.randrange(1, NUM_MORE + 1)):
            training.start(training.size + number)
            fault = choose.choice(FAULTS)
            _await_growth(schedule)
            schedule.run(schedule.turns.some(0.02))
            _hit(schedule, fault)
            schedule.run(choose.choice([0.0, 0.01, 0.05, 0.3]))
        return schedule.end()


def _await_growth(schedule: Schedule, limit_s: float = 1.0) -> None:
    turns = schedule.turns
    until = turns.now + limit_s
    turns.at(until, lambda: None)
    schedule.training.run_while(lambda: turns.now < until and not _newcomers(schedule.training))


def _newcomers(training: Training) -> list[Program]:
    """Return those that have nothing to compute yet."""
    found = []
    for each in training.living:
        generation = each.generation
        if generation is not None and generation.coming is not None and generation.assignment is not None:
            found += [each] if each.membership.member.id in generation.assignment.idle else []
    return found


def _hit(schedule: Schedule, fault: str) -> None:
    training, choose = schedule.training, schedule.choose
    newcomers = _newcomers(training)
    old = [each for each in training.living if each not in newcomers]
    schedule.hit[f"{fault} in growth" if newcomers else fault] += 1
    if fault == "kill newcomer":
        schedule.kill(schedule.any_of(newcomers))
    elif fault == "kill old":
        schedule.kill(schedule.any_of(old))
    elif fault == "kill any later":
        schedule.run(schedule.turns.some(0.05))
        schedule.kill(schedule.any_of(training.living))
    elif fault == "join":
        training.start(training.size + choose.randrange(NUM_MORE))
    elif fault == "leave" and len(old) > 2:
        choose.choice(old).is_leaving = True
    elif fault == "part" and newcomers and old:
        training.worlds.part(choose.choice(newcomers).process, choose.choice(old).process)
