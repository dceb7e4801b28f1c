"""Schedules of failures of a simulated training, each drawn from a seed."""

from __future__ import annotations

from collections import Counter

from .training import Training

__all__ = ["hit_in_recovery", "killed_at_random"]


def killed_at_random(seed: int, hit: Counter[str] | None = None) -> Training:
    """Train 4 ranks through some 6 kills, each of which is replaced at some time. ``hit``: counts what they hit."""
    training = Training(seed, size=4)
    to_start: list[int] = []
    for _ in range(6):
        for _ in range(training.random.randrange(5, 120)):
            training.act()
        if len(training.processes) > 1:
            victim = training.random.choice(list(training.processes.values()))
            if hit is not None:
                hit[victim.phase] += 1
            to_start.append(victim.member.rank)
            training.kill(victim)
        while to_start and training.random.random() < 0.6:
            training.start(to_start.pop())
    for rank in to_start:
        training.start(rank)
    return training


def hit_in_recovery(seed: int, hit: Counter[str] | None = None) -> tuple[Training, float]:
    """Two at once, and more while the others recover: killed, stopped for a while, parted, or two part.

    Returns how long those that are left took to the next step, too, before anything is mended; 0 if none is left.
    ``hit`` counts what was done.
    """
    training = Training(seed, size=5, num_hosts=1 + seed % 2)
    choose = training.random
    to_start: list[int] = []
    for _ in range(choose.randrange(60, 200)):
        training.act()
    for _ in range(choose.randrange(2, 6)):
        some = list(training.processes.values())
        if len(some) < 2:
            break
        one, other = choose.sample(some, 2)
        what = choose.choice(["kill", "kill two", "stop", "part", "cut"])
        if what == "cut" and training.num_hosts == 1:
            continue
        if hit is not None:
            hit[what] += 1
        if what == "stop":
            one.stopped_at = training.now
        elif what == "part":
            training.lose_each_other(one, other)
        elif what == "cut":
            training.cut(one.member.host)
        for victim in {"kill": [one], "kill two": [one, other]}.get(what, []):
            to_start.append(victim.member.rank)
            training.kill(victim)
        for _ in range(choose.choice([0, 2, 10, 40, 300])):
            training.act()
        if choose.random() < 0.5:
            training.heal()
    next_step_s = training.next_step_s() if training.may_go_on else 0.0
    training.heal()  # all faults end
    for each in training.processes.values():
        each.stopped_at = None
    for rank in to_start:
        training.start(rank)
    return training, next_step_s
