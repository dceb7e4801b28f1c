"""Judge a run of the demo by what its replicas said: beside the same training undisturbed. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from .records import Begun, Done, Finished, Record


@dataclass(frozen=True, kw_only=True)
class Kill:
    """``at``: the machine's monotonic clock."""

    rank: int
    pid: int
    at: float
    step: int


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of the report. ``holds`` is None for what is only told."""

    name: str
    value: str
    holds: bool | None = None


@dataclass(kw_only=True)
class Run:
    """One training from its beginning to its end. ``error``: why it ended early."""

    records: list[Record] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    took_s: float = 0.0
    error: str = ""

    @property
    def done(self) -> list[Done]:
        return [each for each in self.records if isinstance(each, Done)]

    @property
    def digests(self) -> set[str]:
        return {each.digest for each in self.records if isinstance(each, Finished)}

    def losses(self) -> list[float]:
        """Of each step in order, as the processes said that were not killed: a killed one's last may not count."""
        killed = {each.pid for each in self.kills}
        found = {each.step: each.loss for each in self.done if each.pid not in killed}
        return [found[step] for step in sorted(found)]

    def pauses_s(self) -> list[float]:
        """For each kill, the time until a survivor had done another step."""
        pauses = []
        for kill in self.kills:
            after = [
                each.at for each in self.done if each.pid != kill.pid and each.at > kill.at and each.step > kill.step
            ]
            if after:
                pauses.append(min(after) - kill.at)
        return pauses

    def returns_s(self) -> list[float]:
        """For each kill, the time until the replacement had done a step."""
        returns = []
        for kill in self.kills:
            begun = [each for each in self.records if isinstance(each, Begun) and each.rank == kill.rank]
            after = [each.at for each in begun if each.at > kill.at and each.step >= kill.step]
            if after:
                returns.append(min(after) - kill.at)
        return returns


@dataclass(frozen=True, kw_only=True)
class Report:
    """``alone``: the training on one replica, undisturbed; ``disturbed``: that with the kills."""

    alone: Run
    disturbed: Run
    steps: int
    replicas: int
    global_batch: int
    num_kills: int

    @property
    def holds(self) -> bool:
        return not self.error and all(check.holds is not False for check in self.checks())

    @property
    def error(self) -> str:
        return self.alone.error or self.disturbed.error

    def checks(self) -> list[Check]:
        alone, run = self.alone, self.disturbed
        losses, wanted = run.losses(), alone.losses()
        pauses, returns = run.pauses_s(), run.returns_s()
        batches = {each.num_samples for each in run.done}
        finished = sum(isinstance(each, Finished) for each in run.records)
        redone = sum({each.step: each.redone for each in run.done}.values())
        return [
            Check(
                name="replicas killed",
                value=f"{len(run.kills)} of {self.num_kills} planned: rank "
                f"{', '.join(str(kill.rank) for kill in run.kills) or '-'}",
                holds=len(run.kills) == self.num_kills,
            ),
            Check(
                name="next step of the survivors after a kill",
                value=_seconds(pauses),
                holds=len(pauses) == len(run.kills),
            ),
            Check(
                name="replacement had done a step after", value=_seconds(returns), holds=len(returns) == len(run.kills)
            ),
            Check(name="micro-batches dealt again", value=str(redone)),
            Check(
                name="steps that count",
                value=f"{len(losses)} of {self.steps}, each with {_numbers(batches)} samples",
                holds=len(losses) == self.steps and batches == {self.global_batch},
            ),
            Check(
                name="replicas that finished",
                value=f"{finished} of {self.replicas}",
                holds=finished == self.replicas,
            ),
            Check(
                name="loss of each step as without kills",
                value=f"{sum(a == b for a, b in zip(losses, wanted, strict=False))} of {self.steps} equal in all bits",
                holds=losses == wanted,
            ),
            Check(
                name="parameters as without kills",
                value="equal in all bits" if run.digests == alone.digests else "different",
                holds=run.digests == alone.digests and len(run.digests) == 1,
            ),
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "holds": self.holds,
            "error": self.error,
            "checks": [{"name": each.name, "value": each.value, "holds": each.holds} for each in self.checks()],
            "losses": self.disturbed.losses(),
            "losses_without_kills": self.alone.losses(),
            "kills": [{"rank": each.rank, "step": each.step} for each in self.disturbed.kills],
            "pauses_s": self.disturbed.pauses_s(),
            "returns_s": self.disturbed.returns_s(),
            "seconds": self.disturbed.took_s,
            "seconds_without_kills": self.alone.took_s,
        }


def _seconds(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} s (most {max(values):.2f} s)" if values else "-"


def _numbers(values: set[int]) -> str:
    return " or ".join(map(str, sorted(values))) or "no"
