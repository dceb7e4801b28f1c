"""Whether a training with failures is the training without: losses, bits, samples, and what is left behind."""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from multiworld.bench.report import Bound, Line
from multiworld.bench.samples import median

from ..elastic.job import TrialFailed
from ..elastic.journal import Entry
from .run import Run, Strike
from .sides import OURS, Side

__all__ = ["SMOOTH_TASKS", "exact", "growth", "losses", "samples"]

STEPS, FAILURES = 200, 5
END_S = 240.0
SMOOTH_TASKS = ("gpt", "clusters")
"""Without max-pooling, which takes another input where two are nearly equal and sums are rounded in another order."""
PLACES = ("forward", "backward", "all-reduce", "commit", "optimizer")


@dataclass
class Course:
    """What one training did: the loss of each step, the ends of its ranks, and what each step had."""

    losses: dict[int, float] = field(default_factory=dict)
    ends: dict[int, Entry] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    disagreements: int = 0

    @property
    def digests(self) -> dict[str, set[str]]:
        """Of the model and the optimizer on all ranks, or of each layer on its owners: one, if all are equal."""
        found: dict[str, set[str]] = defaultdict(set)
        for entry in self.ends.values():
            parts = entry.fields.get("layers") or {"all": f"{entry['digest']} {entry['optimizer']}"}
            for part, digest in parts.items():
                found[part].add(digest)
        return found

    @property
    def num_unequal(self) -> int:
        """Parts of the model that differ among those that hold them."""
        return sum(len(each) != 1 for each in self.digests.values())


def follow(
    options: Sequence[str],
    *,
    side: Side = OURS,
    replicas: int = 4,
    failures: int = 0,
    seed: int = 0,
    steps: int = STEPS,
) -> Course:
    """Train, with so many kills at random places on the way, and return what it did."""
    random_ = random.Random(seed)
    course = Course()
    with Run(side, replicas, [*options, "--steps", str(steps)]) as run:
        run.start()
        after = 0.0
        for number in range(failures):
            due = (number + 1) * steps // (failures + 2)
            run.await_steady(after=after, steps=2)
            run.wait(lambda due=due: _newest(run) >= due, END_S, f"step {due}")  # type: ignore[misc]
            strike = run.strike([random_.randrange(replicas)], random_.choice(PLACES))
            course.strikes.append(strike)
            after = strike.at
        course.ends = run.finish(END_S)
        course.entries = list(run.journal.entries)
    for entry in course.entries:
        if entry.event == "commit":
            known = course.losses.setdefault(entry["step"], entry["loss"])
            course.disagreements += known != entry["loss"]
    if sorted(course.losses) != list(range(steps)):
        raise TrialFailed(f"steps are missing: {set(range(steps)) - set(course.losses)}")
    return course


def losses(alternations: int, side: Side = OURS, tasks: Sequence[str] = ("digits", "gpt")) -> list[Line]:
    """The loss of each step with five failures, against none; without dropout, as sums are rounded in another order.

    That may change which of two nearly equal inputs a max-pooling takes, so a single training can differ by more: the
    promise is for the median. Only ``exact=True`` promises each of them.
    """
    lines = []
    for task in tasks:
        options = ["--task", task, "--dropout", "0"]
        plain = follow(options, side=side)
        worst, final, unequal = [], [], 0
        for number in range(alternations):
            struck = follow(options, side=side, failures=FAILURES, seed=number)
            deviations = [abs(struck.losses[step] / loss - 1) for step, loss in plain.losses.items()]
            worst.append(max(deviations))
            final.append(deviations[-1])
            unequal += struck.num_unequal + struck.disagreements
            print(f"  losses, {task} {number + 1}: worst {worst[-1]:.2e}, last {final[-1]:.2e}", flush=True)
        name = f"{task}: relative deviation of the loss of {STEPS} steps, {FAILURES} failures"
        lines += [
            Line(
                name=f"{name}, median",
                unit="",
                value=median(worst),
                bound=Bound.at_most(1e-6),
                details={"last step": median(final)},
            ),
            Line(name=f"{name}, worst of {alternations}", unit="", value=max(worst)),
            Line(name=f"{task}: ranks that differ in the end", unit="", value=unequal, bound=Bound.at_most(0)),
        ]
    return lines


def exact(alternations: int, side: Side = OURS, others: Sequence[int] = (1, 2, 3)) -> list[Line]:
    """With ``exact=True`` and dropout: the same bits with failures, and with these ``others`` numbers of replicas."""
    options = ["--exact", "--dropout", "0.1"]
    plain = follow(options, side=side)
    courses = {f"{FAILURES} failures, {number + 1}": _struck(options, number, side) for number in range(alternations)}
    for replicas in others:
        courses[f"{replicas} replicas"] = follow(options, side=side, replicas=replicas)
    different = {
        name: sum(course.losses[step] != loss for step, loss in plain.losses.items())
        + (course.digests != plain.digests)
        for name, course in courses.items()
    }
    for name, count in different.items():
        print(f"  exact, {name}: {count} differences", flush=True)
    return [
        Line(
            name=f"exact: trainings of {len(courses)} that are not bit-identical",
            unit="",
            value=sum(count > 0 for count in different.values()),
            bound=Bound.at_most(0),
        )
    ]


def _struck(options: Sequence[str], seed: int, side: Side) -> Course:
    return follow(options, side=side, failures=FAILURES, seed=seed)


def samples(num_schedules: int, seed: int, side: Side = OURS) -> list[Line]:
    """Random kills: every sample of each step in exactly one committed micro-batch, whoever computed it."""
    wrong = batches = failed = 0
    for number in range(num_schedules):
        try:
            course = follow(["--ids", "--task", "digits"], side=side, failures=2, seed=seed + number, steps=80)
        except TrialFailed as error:
            failed += 1
            print(f"  samples, seed {seed + number}: {error}", file=sys.stderr, flush=True)
            continue
        found = count_samples(course.entries)
        wrong += found[0]
        batches += found[1]
        print(f"  samples, seed {seed + number}: {found[0]} wrong, {found[1]} steps of another size", flush=True)
    return [
        Line(
            name=f"samples not committed once, in {num_schedules} kill schedules",
            unit="",
            value=wrong,
            bound=Bound.at_most(0),
        ),
        Line(name="steps with another global batch", unit="", value=batches, bound=Bound.at_most(0)),
        Line(name="schedules that failed", unit="", value=failed, bound=Bound.at_most(0)),
    ]


def count_samples(entries: Sequence[Entry], global_batch: int = 32, num_samples: int = 1797) -> tuple[int, int]:
    """Return how many samples were missing or doubled in their step, and how many steps had another size."""
    counted = [entry for entry in entries if entry.event == "counted"]
    wrong, by_step = _by_number(entries, counted) if counted else _by_process(entries, global_batch)
    sizes = 0
    epoch: Counter[int] = Counter()
    for ids in by_step.values():
        sizes += ids.total() != global_batch
        wrong += sum(count != 1 for count in ids.values())
        epoch.update(ids)
    epochs = len(by_step) * global_batch // num_samples
    wrong += sum(count > epochs + 2 for count in epoch.values())
    return wrong, sizes


def _by_process(entries: Sequence[Entry], global_batch: int) -> tuple[int, dict[int, Counter[int]]]:
    """Return the samples of each step where each process commits what it has computed.

    A process that died after its gradients counted did not say ``commit``: what it had computed counts if nobody else
    has computed it.
    """
    by_step: dict[int, Counter[int]] = {}
    died: dict[int, list[int]] = {}
    committed = {(entry.pid, entry["step"]) for entry in entries if entry.event == "commit"}
    for entry in entries:
        if entry.event == "commit":
            by_step.setdefault(entry["step"], Counter()).update(entry.fields.get("ids", ()))
        elif entry.event == "computed" and (entry.pid, entry["step"]) not in committed:
            died.setdefault(entry["step"], []).extend(entry["ids"])
    for step, ids in by_step.items():
        if ids.total() < global_batch:
            ids.update([each for each in dict.fromkeys(died.get(step, ())) if each not in ids])
    return 0, by_step


def _by_number(entries: Sequence[Entry], counted: Sequence[Entry]) -> tuple[int, dict[int, Counter[int]]]:
    """Return the samples of each step where members say with which micro-batches it counts; also how often they differ
    on that, or on the samples of a micro-batch.
    """
    read: dict[tuple[int, int], list[int]] = {}
    numbers: dict[int, list[int]] = {}
    wrong = 0
    for entry in entries:
        if entry.event == "computed":
            wrong += read.setdefault((entry["step"], entry["micro_batch"]), entry["ids"]) != entry["ids"]
    for entry in counted:
        wrong += numbers.setdefault(entry["step"], entry["micro_batches"]) != entry["micro_batches"]
    by_step = {
        step: Counter(each for number in found for each in read.get((step, number), ()))
        for step, found in sorted(numbers.items())
    }
    return wrong, by_step


def growth(num_kills: int, side: Side = OURS) -> list[Line]:
    """What the process of rank 0 has open, after kills and joins of the others one after the other."""
    with Run(side, options=["--steps", "1000000", "--count-resources"]) as run:
        run.start()
        after = 0.0
        kept = run.await_steady(steps=45)[0]
        first: list[int] = []
        for number in range(num_kills + 5):
            if number == 5:  # the first ones load code
                run.await_steady(after=after, steps=25)
                first = _resources(run, kept)
            run.await_steady(after=after, steps=2)
            strike = run.strike([1 + number % 3], PLACES[number % len(PLACES)])
            run.recovery_s(strike, 10.0)
            after = strike.at
            print(f"  growth, kill {number + 1}: {_resources(run, kept)}", flush=True)
        run.await_steady(after=after, steps=25)
        last = _resources(run, kept)
    growths = [end - begin for begin, end in zip(first, last, strict=True)]
    return [
        Line(
            name=f"descriptors more after {num_kills} kills and joins",
            unit="",
            value=growths[0],
            bound=Bound.at_most(0),
        ),
        Line(name=f"threads more after {num_kills} kills and joins", unit="", value=growths[1], bound=Bound.at_most(0)),
        Line(
            name=f"memory after {num_kills} kills and joins, of that before",
            unit="%",
            value=100 * growths[2] / first[2],
            bound=Bound.at_most(5.0),
            details={"MB before": first[2] / 1e6, "MB after": last[2] / 1e6},
        ),
    ]


def _resources(run: Run, pid: int) -> list[int]:
    run.journal.read()
    found = [entry["resources"] for entry in run.journal.entries if entry.pid == pid and "resources" in entry.fields]
    return list(found[-1]) if found else []


def _newest(run: Run) -> int:
    for entry in reversed(run.journal.entries):
        if entry.event == "commit":
            return int(entry["step"])
    return -1
