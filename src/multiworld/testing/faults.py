"""Plans of faults: which, when and to whom. Pure values, made from a seed, so that a failed test can be replayed."""

from __future__ import annotations

import contextlib
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class FaultKind(str, Enum):
    """What can be done to a target: a worker for the first five, a simulated host or a relay for the others."""

    KILL = "kill"
    STOP = "stop"
    CONTINUE = "continue"
    EXIT = "exit"
    BLOCK = "block"
    CUT = "cut"
    RESTORE = "restore"
    DROP = "drop"
    LOSE = "lose"
    DELAY = "delay"
    FREEZE = "freeze"
    RESET = "reset"
    INJECT = "inject"


@dataclass(frozen=True)
class Fault:
    """One fault: ``at_s`` seconds after the plan starts, ``kind`` happens to ``target``.

    ``amount`` is what the kind needs: seconds for BLOCK and DELAY, percent for LOSE; unused by others.
    """

    at_s: float
    kind: FaultKind
    target: str
    amount: float = 0.0

    def __post_init__(self) -> None:
        if self.at_s < 0:
            raise ValueError(f"at_s is {self.at_s}; a fault cannot happen before its plan starts")
        object.__setattr__(self, "kind", FaultKind(self.kind))  # JSON holds its value

    def __str__(self) -> str:
        amount = f" {self.amount:g}" if self.amount else ""
        return f"{self.at_s:8.4f} s  {self.kind.value} {self.target}{amount}"


@dataclass(frozen=True)
class FaultPlan:
    """Faults in the order of their times, and the seed that they came from (``None``: written by hand)."""

    faults: tuple[Fault, ...]
    seed: int | None = None

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.faults, key=lambda fault: fault.at_s))
        object.__setattr__(self, "faults", ordered)

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        targets: Sequence[str],
        kinds: Sequence[FaultKind] = (FaultKind.KILL,),
        num_faults: int = 1,
        within_s: float = 1.0,
    ) -> FaultPlan:
        """Draw ``num_faults`` faults evenly over ``[0, within_s]``, targets and kinds; equal arguments, equal plan."""
        if not targets or not kinds:
            raise ValueError("a random plan needs at least one target and one kind")
        draw = random.Random(seed)
        return cls(
            tuple(
                Fault(draw.uniform(0.0, within_s), draw.choice(list(kinds)), draw.choice(list(targets)))
                for _ in range(num_faults)
            ),
            seed,
        )

    def between(self, after_s: float, until_s: float) -> tuple[Fault, ...]:
        """Return the faults with ``after_s < at_s <= until_s``: what is due since the last look."""
        return tuple(fault for fault in self.faults if after_s < fault.at_s <= until_s)

    def to_json(self) -> str:
        """Return the plan as one line, for ``from_json``."""
        return json.dumps(
            {"seed": self.seed, "faults": [{**asdict(fault), "kind": fault.kind.value} for fault in self.faults]}
        )

    @classmethod
    def from_json(cls, text: str) -> FaultPlan:
        """Read what ``to_json`` wrote. Raises ``ValueError`` or ``TypeError`` for anything else."""
        fields: dict[str, Any] = json.loads(text)
        return cls(tuple(Fault(**fault) for fault in fields["faults"]), fields["seed"])

    def __str__(self) -> str:
        head = "fault plan" if self.seed is None else f"fault plan of seed {self.seed}"
        rows = "".join(f"\n  {fault}" for fault in self.faults)
        return f"{head}:{rows}\n  replay: FaultPlan.from_json({self.to_json()!r})"


@contextlib.contextmanager
def shown_on_failure(plan: FaultPlan) -> Iterator[FaultPlan]:
    """Print ``plan`` to standard error when the block raises; the exception goes on."""
    try:
        yield plan
    except BaseException:
        sys.stderr.write(f"{plan}\n")
        raise
