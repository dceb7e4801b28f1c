"""Say from a ledger whether each sample was committed once, and what is wrong if not. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

NUM_SHOWN: Final = 20
"""So many problems are shown in words."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """What the steps are made of, as one member's ledger says at its begin.

    ``num_samples``: of an epoch; None: of a stream without end. ``is_once``: whether no sample comes twice in an epoch,
    which a sampler may want otherwise. ``first_step``: that this member saw.
    """

    global_batch: int
    micro_batch: int
    num_samples: int | None = None
    drop_last: bool = False
    is_once: bool = True
    first_step: int = field(default=0, compare=False)


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A step that counts, as ``member`` knows it: who computed which micro-batches, and the sample ids of each of them.

    Every member writes the whole step, so a member that dies right behind a commit leaves no gap.
    """

    member: str
    step: int
    generation: int
    done: Mapping[str, Sequence[int]]
    samples: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Rewound:
    """The training went back to ``step``: what earlier generations committed from there on does not count.

    ``before``: lost members. If there are any, their commits from there on do not count, in any generation; commits of
    other members do.
    """

    member: str
    step: int
    generation: int
    before: Sequence[str] = ()

    def voids(self, record: Committed) -> bool:
        is_before = record.member in self.before if self.before else record.generation < self.generation
        return record.step >= self.step and is_before


Record = Committed | Rewound


@dataclass(frozen=True)
class Problem:
    step: int
    what: str

    def __str__(self) -> str:
        return f"step {self.step}: {self.what}"


@dataclass(frozen=True, kw_only=True)
class LedgerReport:
    """``steps``: that count. ``samples``: in these. ``void``: steps committed before a way back, and not counted.

    ``torn``: where a line was cut off as its writer died; that is no problem as long as another member wrote the step.
    """

    steps: int
    samples: int
    void: int
    problems: tuple[Problem, ...]
    torn: tuple[str, ...] = ()

    def __str__(self) -> str:
        counted = f"{self.steps} steps with {self.samples} samples"
        if not self.problems:
            return f"{counted}: each sample once, the global batch constant"
        lines = [str(problem) for problem in self.problems[:NUM_SHOWN]]
        if len(self.problems) > NUM_SHOWN:
            lines.append(f"and {len(self.problems) - NUM_SHOWN} more")
        return "\n".join([f"{counted}, and {len(self.problems)} problems:", *lines])


def check_records(data: Mapping[str, Data], records: Iterable[Record], torn: Sequence[str] = ()) -> LedgerReport:
    """Merge the records of all members, in any order. ``data``: what each member's ledger begins with."""
    records = list(records)
    rewinds = [record for record in records if isinstance(record, Rewound)]
    by_step: dict[int, list[Committed]] = defaultdict(list)
    void = set()
    for record in records:
        if isinstance(record, Committed):
            if any(back.voids(record) for back in rewinds):
                void.add((record.step, record.generation))
            else:
                by_step[record.step].append(record)
    last: dict[str, int] = {}
    for step, each in by_step.items():
        for record in each:
            last[record.member] = max(step, last.get(record.member, step))
    check = _Check(data)
    for step in sorted(by_step):
        check.step(step, _standing(by_step[step], last))
    return LedgerReport(
        steps=len(by_step),
        samples=check.num_samples,
        void=len({step for step, _ in void}),
        problems=tuple(check.problems),
        torn=tuple(torn),
    )


def _standing(records: Sequence[Committed], last: Mapping[str, int]) -> list[Committed]:
    """Leave out what was written in an older generation by members that went no further. ``last``: step, by member.

    A member may be the only one that knew that a step counted, and die: then the others have computed it again.
    """
    newest = max(record.generation for record in records)
    return [record for record in records if record.generation == newest or last[record.member] > record.step]


class _Check:
    """Goes through the steps in their order."""

    def __init__(self, data: Mapping[str, Data]) -> None:
        self.problems: list[Problem] = []
        self.num_samples = 0
        self._data = next(iter(data.values())) if data else None
        self._last = min((each.first_step for each in data.values()), default=0) - 1
        self._seen: dict[int, dict[str, int]] = defaultdict(dict)  # of the epochs that may still go on
        for member, other in data.items():
            if other != self._data:
                self._report(0, f"{member} had other data than {next(iter(data))}: {other}, not {self._data}")

    def step(self, step: int, records: Sequence[Committed]) -> None:
        if step > self._last + 1:
            self._report(self._last + 1, f"nobody wrote steps {self._last + 1} to {step - 1}")
        self._last = step
        first = records[0]
        for other in records[1:]:
            if _by_micro_batch(other) != _by_micro_batch(first):
                self._report(
                    step,
                    f"committed in two ways: {_words(first)} (generation {first.generation}, says {first.member}) and "
                    f"{_words(other)} (generation {other.generation}, says {other.member})",
                )
            elif other.samples != first.samples:
                self._report(step, f"{first.member} and {other.member} say that it had different samples")
        self._check_micro_batches(first)
        self._check_samples(first)

    def _check_micro_batches(self, record: Committed) -> None:
        doers = _by_micro_batch(record)
        expected = len(record.samples) if self._data is None else self._data.global_batch // self._data.micro_batch
        for number in range(expected):
            if len(doers[number]) != 1:
                by = f"{len(doers[number])} times, by {', '.join(doers[number])}" if doers[number] else "by nobody"
                self._report(record.step, f"micro-batch {number} was computed {by}")
        for number in sorted(set(doers) - set(range(expected))):
            self._report(record.step, f"micro-batch {number} was computed, and a step has {expected}")

    def _check_samples(self, record: Committed) -> None:
        count = sum(len(ids) for ids in record.samples)
        self.num_samples += count
        if self._data is None:
            return
        if count != self._data.global_batch:
            self._report(record.step, f"{count} samples, not the global batch of {self._data.global_batch}")
            return
        if not self._data.is_once:
            return
        names = [name for ids in record.samples for name in ids]
        epochs = _epochs(self._data, record.step)
        for epoch, name in zip(epochs, names, strict=True):
            if name in self._seen[epoch]:
                where = f"in step {self._seen[epoch][name]}"
                self._report(record.step, f"sample {name} came in epoch {epoch} before, {where}")
            self._seen[epoch][name] = record.step
        for epoch in [epoch for epoch in self._seen if epoch < epochs[0]]:
            del self._seen[epoch]

    def _report(self, step: int, what: str) -> None:
        self.problems.append(Problem(step, what))


def _by_micro_batch(record: Committed) -> dict[int, list[str]]:
    doers: dict[int, list[str]] = defaultdict(list)
    for member in sorted(record.done):
        for number in record.done[member]:
            doers[number].append(member)
    return doers


def _words(record: Committed) -> str:
    return ", ".join(f"{member} did {list(numbers)}" for member, numbers in sorted(record.done.items()))


def _epochs(data: Data, step: int) -> list[int]:
    """Return the epoch of each sample of a step, as ``Positions`` has it."""
    size, num = data.global_batch, data.num_samples
    if num is None:
        return [0] * size
    if data.drop_last:
        return [step // (num // size)] * size
    return [sample // num for sample in range(step * size, (step + 1) * size)]
