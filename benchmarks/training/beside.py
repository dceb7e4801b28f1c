"""What surrounds failures: checkpoints, total loss, a full disk, drains, slow and wrong ranks, and DiLoCo's traffic."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import median

from ..elastic.journal import Entry
from .disturbed import ENDLESS
from .run import Run
from .sides import OURS

__all__ = ["diloco", "drain", "flip", "full_disk", "resume", "slow"]

INTERVAL = 20
COMPARE_EVERY = 10
SEE_S = 60.0
QUIET_STEPS = 200
SYNC = {
    "whole": [],
    "fragments=4": ["--sync-fragments", "4"],
    'compress="int8"': ["--sync-compress", "int8"],
}
DATA_FACTOR = 200.0  # reading a sample takes microseconds: so that the data takes as long as the rest


def resume(alternations: int) -> list[Line]:
    """All of four replicas are killed, and the launcher; three go on from the newest checkpoint, to the same bits."""
    lost, resumed = [], 0
    steps = 120
    options = ["--exact", "--steps", str(steps), "--save-every", str(INTERVAL)]
    with _kept() as folder, Run(OURS, options=[*options, "--checkpoint", str(folder)]) as run:
        whole = run.start().finish(SEE_S * 4)
    expected = {_bits(entry) for entry in whole.values()}
    different = len(expected) - 1
    for number in range(alternations):
        with _kept() as folder:
            reached, began, bits = _lose_all(folder, options)
        resumed += began > 0
        lost.append(reached - began)
        different += len(bits | expected) - 1
        print(f"  resume {number + 1}: killed after step {reached}, went on at {began}", flush=True)
    return [
        Line(name="total loss: trainings that did not resume", unit="", value=alternations - resumed, bound=_none()),
        Line(name="total loss: steps lost, worst", unit="", value=max(lost), bound=Bound.at_most(INTERVAL + 1)),
        Line(name="resumed on three of four: ends with other bits", unit="", value=different, bound=_none()),
    ]


def _lose_all(folder: Path, options: Sequence[str]) -> tuple[int, int, set[str]]:
    """Return how many steps were done when all was killed, with which three replicas went on, and how they ended."""
    saving = [*options, "--checkpoint", str(folder / "checkpoints")]
    with Run(OURS, options=saving, keep=folder) as run:
        run.start()
        run.wait(lambda: _last(run, "saved") >= 2 * INTERVAL, SEE_S, "two checkpoints")
        run.nodes[0].kill()
        run.journal.read()
        reached = _last(run, "commit") + 1
    with Run(OURS, 3, saving, keep=folder) as again:
        ends = again.start().finish(SEE_S * 4)
        return reached, _last(again, "loaded"), {_bits(entry) for entry in ends.values()}


def full_disk() -> list[Line]:
    """Checkpoints go to a disk of 1 MB that is full: training goes on, and says so. Needs root."""
    with tempfile.TemporaryDirectory() as folder:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, text=True, check=False
        )
        if mounted.returncode:
            return [Line.not_measured("a full disk", mounted.stderr.strip())]
        try:
            Path(folder, "full").write_bytes(b"x" * 900_000)
            with Run(OURS, options=["--steps", "100", "--save-every", "20", "--checkpoint", folder]) as run:
                ends = run.start().finish(SEE_S * 4)
                failures = sum(entry.event == "not saved" for entry in run.journal.entries)
        finally:
            subprocess.run(["umount", "-l", folder], check=False)
    return [
        Line(name="a full disk: ranks that did not end", unit="", value=4 - len(ends), bound=_none()),
        Line(name="a full disk: failures that were told", unit="", value=failures, bound=Bound(at="least", limit=1)),
    ]


def drain(alternations: int) -> list[Line]:
    """One of two hosts is drained: it hands over, and no step is done again."""
    redone, pauses = [], []
    for _ in range(alternations):
        again, pause = _drain()
        redone.append(again)
        pauses.append(pause)
        print(f"  drain: {again} redone, pause {pause:.2f} s", flush=True)
    return [
        Line(name="drained: micro-batches done again", unit="", value=max(redone), bound=_none()),
        Line(name="drained: longest time between two steps", unit="s", value=median(pauses)),
    ]


def _drain() -> tuple[int, float]:
    """Return the micro-batches that were done again, and the longest time between two steps of those who stay."""
    with Run(OURS, 2, ENDLESS) as run:
        run.start_node(num_hosts=2)
        run.wait(lambda: "this agent coordinates" in run.nodes[0].output, 30.0, "a coordinator")
        run.start_node(num_hosts=2)
        before = run.await_steady(4)
        leaving = set(run.nodes[1].others())
        at = time.monotonic()
        command = [sys.executable, "-m", "multiworld", "drain", "--job", run.name, "1"]
        subprocess.run(command, check=True, capture_output=True, timeout=SEE_S)
        run.wait(lambda: bool(run.working(2, at, 8)), SEE_S, "two replicas that commit")
        commits = run.commits(at)
        stayed = [commits[pid] for pid in before.values() if pid not in leaving]
        longest = max(b.at - a.at for entries in stayed for a, b in itertools.pairwise(entries))
        return max(entry["redone"] for entries in stayed for entry in entries), longest


def flip(alternations: int, seed: int) -> list[Line]:
    """One bit of one parameter of one of three replicas is flipped: found within the interval, and the rank named."""
    random_ = random.Random(seed)
    late, wrong, took = 0, 0, []
    for _ in range(alternations):
        rank = random_.randrange(3)
        steps, named = _flip(rank)
        took.append(steps)
        late += steps > COMPARE_EVERY
        wrong += named != [rank]
        print(f"  flip in rank {rank}: found after {steps} steps, named {named}", flush=True)
    return [
        Line(name=f"a flipped bit: found later than {COMPARE_EVERY} steps", unit="", value=late, bound=_none()),
        Line(
            name="a flipped bit: another rank named",
            unit="",
            value=wrong,
            bound=_none(),
            details={"steps": median(took)},
        ),
    ]


def _flip(rank: int) -> tuple[int, list[int]]:
    """Return after how many steps it was found, and the ranks that were named."""
    with Run(OURS, 3, [*ENDLESS, "--global-batch", "24", "--compare-every", str(COMPARE_EVERY)]) as run:
        run.start()
        run.await_steady(steps=5)
        strike = run.strike([rank], "flip")
        run.wait(lambda: bool(_events(run, "diverged")), SEE_S, "a divergence")
        found = _events(run, "diverged")[0]
        return found["step"] - strike.entries[0]["step"], list(found["wrong"])


def slow(alternations: int, seed: int) -> list[Line]:
    """One of four ranks needs twice as long in its data or its backward; before that nobody may be named."""
    random_ = random.Random(seed)
    late = wrong = false_alarms = quiet_steps = 0
    took = []
    for number in range(alternations):
        part, rank = ("backward", "data")[number % 2], random_.randrange(4)
        alarms, steps, named = _slow(rank, part)
        false_alarms += alarms
        quiet_steps += QUIET_STEPS
        took.append(steps)
        late += steps > 20
        wrong += named != (rank, part)
        print(f"  slow in {part}: rank {rank}, named {named} after {steps} steps; {alarms} before", flush=True)
    return [
        Line(
            name="a slow rank: named later than 20 steps",
            unit="",
            value=late,
            bound=_none(),
            details={"steps": median(took)},
        ),
        Line(name="a slow rank: another rank or part named", unit="", value=wrong, bound=_none()),
        Line(
            name="false alarms in 1,000 steps",
            unit="",
            value=1000 * false_alarms / quiet_steps,
            bound=Bound.at_most(1.0),
            details={"steps": float(quiet_steps)},
        ),
    ]


def _slow(rank: int, part: str) -> tuple[int, int, tuple[int, str]]:
    """Return the alarms before it, after how many steps it was told, and which rank and part were named."""
    with Run(OURS, options=ENDLESS) as run:
        run.start()
        run.await_steady(steps=QUIET_STEPS, timeout_s=300.0)
        alarms = len(_events(run, "slow"))
        strike = run.strike([rank], part, 0, slow=DATA_FACTOR if part == "data" else 2.0)
        run.wait(lambda: len(_events(run, "slow")) > alarms, SEE_S, "a slow rank")
        found = _events(run, "slow")[alarms]
        return alarms, found["step"] - strike.entries[0]["step"], (found["slow"], found["part"])


def diloco(steps: int) -> list[Line]:
    """Bytes that a rank hands over, H = 50, beside the gradients of each step; and what a death costs the others."""
    every = 50
    periods = range(every - 1, max(2, steps // every) * every, every)  # whole ones: their last steps
    plain = _bytes_a_step([], periods)
    lines = []
    for name, options in SYNC.items():
        own = _bytes_a_step(["--sync", "diloco", "--sync-every", str(every), *options], periods)
        print(f"  {name}: {own / 1e3:.2f} kB a step, and {plain / 1e3:.2f} kB with DDP", flush=True)
        lines.append(
            Line(
                name=f"DiLoCo, H = {every}, {name}: bytes of DDP's over its own",
                unit="",
                value=plain / own,
                bound=Bound(at="least", limit=40.0),
                details={"kB a step with DDP": plain / 1e3, "kB a step with DiLoCo": own / 1e3},
            )
        )
    repeated, different = _death_in_a_round()
    return [
        *lines,
        Line(name="DiLoCo: steps that survivors did again", unit="", value=repeated, bound=_none()),
        Line(name="DiLoCo: other models at the end", unit="", value=different, bound=_none()),
    ]


def _bytes_a_step(options: Sequence[str], periods: Sequence[int]) -> float:
    """Return what the rank that hands over most does, from the end of the first period to that of the last one.

    The training goes on after that: its end synchronises what is not due yet, in the middle of a period perhaps.
    """
    first, last = periods[0], periods[-1]
    with Run(OURS, options=[*ENDLESS, *options]) as run:
        run.start()
        run.wait(lambda: _num_committed(run, last) == run.num_replicas, SEE_S * 5, f"step {last}")
        handed_over = [
            {entry["step"]: entry["bytes"] for entry in entries if entry["step"] in (first, last)}
            for entries in run.commits().values()
        ]
        return float(max(each[last] - each[first] for each in handed_over)) / (last - first)


def _num_committed(run: Run, step: int) -> int:
    return sum(entry["step"] == step for entry in _events(run, "commit"))


def _death_in_a_round() -> tuple[int, int]:
    """Return how many steps survivors did again after a death, and how many models differ from the first at the end."""
    options = ["--steps", "400", "--pause-s", "0.02", "--sync", "diloco", "--sync-every", "20", *SYNC["fragments=4"]]
    with Run(OURS, options=options) as run:
        run.start()
        run.await_steady(steps=25)
        strike = run.strike([1], "backward")
        run.wait(lambda: bool(run.working(4, strike.at, 25)), SEE_S, "four replicas that commit")
        ends = run.finish(SEE_S * 2)
        repeated = 0
        for pid in strike.survivors:
            steps_of = [entry["step"] for entry in _events(run, "commit") if entry.pid == pid]
            repeated += len(steps_of) - len(set(steps_of))
        return repeated, len({entry["digest"] for entry in ends.values()}) - 1


def _events(run: Run, event: str) -> list[Entry]:
    return [entry for entry in run.journal.entries if entry.event == event]


def _last(run: Run, event: str) -> int:
    return max((int(entry["step"]) for entry in run.journal.entries if entry.event == event), default=0)


def _bits(entry: Entry) -> str:
    return f"{entry['digest']} {entry['optimizer']}"


def _none() -> Bound:
    return Bound.at_most(0)


@contextmanager
def _kept() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="multiworld-checkpoints-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
