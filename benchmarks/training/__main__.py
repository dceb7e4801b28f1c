"""Measure what resilient training promises, beside its peers in the same run. Exits with 1 if a bound was missed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from multiworld.bench.report import Line

from ..suite import Suite
from . import beside, disturbed, faithful
from .alarms import alarms
from .families import families
from .kills import kills
from .overhead import checkpoints, overhead
from .pipeline_kills import pipeline_kills
from .pipeline_schedules import pipeline_schedules
from .pipeline_steps import joins, measured, pipeline_overhead
from .planning import predicted, templates
from .policies import policies
from .reconfigured import coverage, instantiation, moves
from .replayed import simulate
from .saves import killed_saves
from .scheduled import schedules, simulated
from .scheduled_pipelines import simulated_growth, simulated_kills
from .sides import OURS_PIPELINES
from .split_backward import zero_bubble

LINES: dict[str, tuple[str, Callable[[argparse.Namespace], list[Line]]]] = {
    "overhead": ("steps while nothing fails, beside plain DDP", lambda o: overhead(o.alternations, o.steps)),
    "kill": ("one of four replicas killed in each phase", lambda o: kills(o.alternations, o.kills, o.seed)),
    "stop": ("one of four replicas stopped", lambda o: disturbed.stops(o.alternations)),
    "cut": (
        "a host of three or four cut off, or two halves parted (needs root)",
        lambda o: disturbed.cuts(o.alternations),
    ),
    "two": ("two replicas killed, the second while the first is mended", lambda o: disturbed.doubles(o.pairs, o.seed)),
    "agent": ("an agent killed, the one with the store, too", lambda o: disturbed.agents(o.alternations)),
    "loss": ("the losses of 200 steps with five failures", lambda o: faithful.losses(o.alternations)),
    "exact": ("bits with failures, and with other numbers of replicas", lambda o: faithful.exact(o.alternations)),
    "samples": ("samples of each step under random kills", lambda o: faithful.samples(o.schedules, o.seed)),
    "simulated": ("a thousand kill schedules with the real decisions, and no processes", lambda o: simulated(o.seed)),
    "schedules": (
        "failures in a recovery, two at once, partitions: 500 schedules, some with processes",
        lambda o: schedules(o.schedules, o.seed),
    ),
    "growth": ("what is open after kills and joins", lambda o: faithful.growth(o.joins)),
    "save": ("a checkpoint every 20 steps, beside none", lambda o: checkpoints(o.alternations, o.steps)),
    "killed-save": (
        "a training process, its writer, or both killed in a save",
        lambda o: killed_saves(o.saves, o.seed),
    ),
    "resume": ("all replicas lost, on three instead of four again", lambda o: beside.resume(o.alternations)),
    "disk": ("a full disk under checkpoints (needs root)", lambda o: beside.full_disk()),
    "drain": ("one of two hosts asked to leave", lambda o: beside.drain(o.alternations)),
    "flip": ("one bit of one of three replicas flipped", lambda o: beside.flip(o.alternations, o.seed)),
    "slow": ("one of four ranks slower", lambda o: beside.slow(o.alternations, o.seed)),
    "alarms": ("slow ranks and false alarms, simulated", lambda o: alarms(o.noisy_steps, o.slow_ranks, o.seed)),
    "templates": ("templates of pipelines: made in what time, and how good", lambda o: templates(o.seed)),
    "predicted": ("what a template says of a step, against a simulation of it", lambda o: predicted(o.seed)),
    "simulate": ("Oobleck's published failures at its published rates, replayed", lambda o: simulate()),
    "instantiation": ("pipelines for 64 nodes, and plans that were foreseen", lambda o: instantiation(o.seed)),
    "coverage": ("plans for up to 60 nodes under random kills", lambda o: coverage(o.seed)),
    "moves": ("what changes of plans move, and who sends how much of it", lambda o: moves(o.seed)),
    "policies": ("throughput after losses, and whether the best policy is chosen", lambda o: policies(o.seed)),
    "families": (
        "GPT-2, Llama, BERT, T5, a ResNet and experts, cut from their configurations",
        lambda o: families(),
    ),
    "pipe-kill": (
        "a rank of pipelines killed in each phase of a step and of a recovery",
        lambda o: pipeline_kills(o.alternations, o.kills, o.seed),
    ),
    "pipe-overhead": (
        "pipelines: steps while nothing fails, beside torch's pipelines with DDP",
        lambda o: pipeline_overhead(o.alternations, o.steps),
    ),
    "pipe-measured": (
        "pipelines: what templates say of a step, against what it takes here",
        lambda o: measured(o.alternations, o.steps),
    ),
    "pipe-zero-bubble": (
        "pipelines: a step with a split backward, beside 1F1B",
        lambda o: zero_bubble(o.alternations),
    ),
    "pipe-join": ("pipelines: a process joins four", lambda o: joins(o.alternations)),
    "pipe-schedules": (
        "pipelines: failures in a recovery, two at once, the coordinator, partitions: 500, some with processes",
        lambda o: pipeline_schedules(o.schedules, o.simulated // 2, o.seed),
    ),
    "pipe-simulated": (
        "pipelines: a thousand kill schedules with the real engine, and no processes; a quarter as many of growth",
        lambda o: [*simulated_kills(o.simulated, o.seed), *simulated_growth(o.simulated // 4, o.seed)],
    ),
    "pipe-loss": (
        "pipelines: the losses of 200 steps with five failures",
        lambda o: faithful.losses(o.alternations, OURS_PIPELINES, faithful.SMOOTH_TASKS),
    ),
    "pipe-exact": (
        "pipelines: bits with failures, and with other numbers of processes",
        lambda o: faithful.exact(o.alternations, OURS_PIPELINES, (2, 3, 5)),
    ),
    "pipe-samples": (
        "pipelines: samples of each step under random kills",
        lambda o: faithful.samples(o.schedules, o.seed, OURS_PIPELINES),
    ),
    "pipe-growth": (
        "pipelines: what is open after kills and joins",
        lambda o: faithful.growth(o.joins, OURS_PIPELINES),
    ),
    "diloco": ("bytes in rounds of 50 steps", lambda o: beside.diloco(o.steps)),
}
NOT_REPEATED = (
    "two",
    "alarms",
    "samples",
    "simulated",
    "schedules",
    "growth",
    "killed-save",
    "disk",
    "diloco",
    "pipe-samples",
    "pipe-growth",
    "pipe-schedules",
    "pipe-simulated",
    "templates",
    "predicted",
    "instantiation",
    "coverage",
    "moves",
    "policies",
    "families",
    "simulate",
)
SUITE = Suite(
    name="training",
    lines=LINES,
    reference="plain DDP on gloo",
    other_references={
        "save": "without checkpoints",
        "simulate": "Oobleck by the same rules",
        "pipe-overhead": "torch's pipelines with DDP",
        "pipe-measured": "its templates",
        "pipe-zero-bubble": "1F1B",
    },
    not_alternated=NOT_REPEATED,
)


def _arguments() -> argparse.Namespace:
    parser = SUITE.parser(__doc__)
    parser.add_argument("--steps", type=int, default=200, help="of a training without failures (default 200)")
    parser.add_argument("--kills", type=int, default=100, help="in all (default 100)")
    parser.add_argument("--pairs", type=int, default=20, help="of two that are killed (default 20)")
    parser.add_argument("--schedules", type=int, default=50, help="of kills, each a training (default 50)")
    parser.add_argument(
        "--simulated",
        type=int,
        default=1000,
        help="of pipelines, of kills without processes, and half as many of other failures in all (default 1,000)",
    )
    parser.add_argument("--saves", type=int, default=30, help="in which something is killed (default 30)")
    parser.add_argument("--joins", type=int, default=50, help="of what is open afterwards (default 50)")
    parser.add_argument("--noisy-steps", type=int, default=100_000, help="simulated at each setting (default 100,000)")
    parser.add_argument("--slow-ranks", type=int, default=1000, help="simulated at each setting (default 1,000)")
    parser.add_argument("--quick", action="store_true", help="one alternation, 14 kills, 60 steps: not to be believed")
    options = parser.parse_args()
    if options.alternations < 1:
        parser.error(f"--alternations {options.alternations}: expected at least 1")
    if options.quick:
        options.alternations, options.kills, options.steps = 1, 14, 60
        options.pairs, options.schedules, options.joins, options.saves = 3, 3, 6, 6
        options.noisy_steps, options.slow_ranks, options.simulated = 5000, 100, 20
    return options


if __name__ == "__main__":
    sys.exit(SUITE.run(_arguments()))
