"""One member of a training without processes: a model with one weight, a loader, and a reduction of its own sums."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, cast

import torch
from torch import nn

from multiworld.errors import PeerDiedError, WorldBrokenError
from multiworld.training.data.base import StepLoader
from multiworld.training.engine.buffers import Buffers
from multiworld.training.engine.computing import Computing
from multiworld.training.engine.decision import Outcome
from multiworld.training.engine.engine_parts import EngineParts, engine_parts
from multiworld.training.engine.facts import Facts
from multiworld.training.engine.gradients import FlatBucket, Gradients
from multiworld.training.engine.services import Services
from multiworld.training.engine.step import Step
from multiworld.training.engine.synchronization import Synchronization
from multiworld.training.recovery.records import Generation
from multiworld.training.state import TrainingState
from multiworld.world.world import World

from .fake_team import FakeTeam

BROKEN: WorldBrokenError = PeerDiedError("t.1", 1, 1, "its socket closed")


class FakeLoader:
    """A batch of micro-batch i is a tensor with i + 1 in it."""

    num_micro_batches, micro_batch, num_steps = 4, 1, None

    def __init__(self) -> None:
        self.num_open = 0
        self.expected: list[tuple[int, tuple[int, ...]]] = []

    def epoch_of(self, step: int) -> int:
        return 0

    def expect(self, step: int, micro_batches: Sequence[int]) -> None:
        self.expected.append((step, tuple(micro_batches)))

    def fetch(self, step: int, micro_batches: Sequence[int]) -> Iterator[tuple[int, torch.Tensor]]:
        self.num_open += 1
        try:
            for number in micro_batches:
                yield number, torch.tensor([number + 1.0])
        finally:
            self.num_open -= 1


class OwnReduction:
    """Of one member: the sums. Raises ``error`` in each collective, if there is one."""

    def __init__(self) -> None:
        self.launched: list[int] = []
        self.error: WorldBrokenError | None = None
        self._buckets: Sequence[FlatBucket] = ()

    def begin_step(self, buckets: Sequence[FlatBucket], num_micro_batches: int) -> None:
        self._buckets, self.launched = buckets, []

    def end_micro_batch(self, micro_batch: int) -> None: ...

    def use(self, world: World | None, shares: Sequence[Collection[int]]) -> None: ...

    def launch(self, bucket: int) -> None:
        if self.error is not None:
            raise self.error
        self.launched.append(bucket)

    def wait(self) -> None:
        if self.error is not None:
            raise self.error
        for flat in self._buckets:
            flat.reduced.copy_(flat.sums)


class Runner:
    """Of a step: hands on to the synchronization."""

    def __init__(self, sync: Synchronization) -> None:
        self.sync = sync

    def micro_batches(self, step: Step) -> Iterator[Any]:
        return self.sync.micro_batches(step)

    def recorded(self, values: Any) -> None: ...

    def step_ended(self, step: Step) -> None:
        self.sync.step_ended(step)

    def step_failed(self, step: Step, error: BaseException) -> bool:
        return False


class Silent:
    """Observes steps and recoveries."""

    def __init__(self) -> None:
        self.applied: list[int] = []
        self.generations: list[tuple[int, int]] = []
        """Number and first step."""

    def step_committed(self, step: Step, generation: Generation, facts: Sequence[Facts], outcome: Outcome) -> None: ...

    def step_applied(self, step: Step) -> None:
        self.applied.append(step.index)

    def recovery_began(self, step: int, error: WorldBrokenError | None) -> None: ...

    def recovery_phase(self, name: str, step: int, took_s: float) -> None: ...

    def generation_began(self, before: Generation | None, now: Generation, step: int) -> None:
        self.generations.append((now.number, step))

    def state_received(self, step: int, size_bytes: int, sources: int, took_s: float) -> None: ...


class FakeMember:
    """A model with one weight, which is multiplied with the batch."""

    def __init__(self, *, seed: int | None = None, alone: bool = False) -> None:
        self.weight = nn.Parameter(torch.ones(1))
        self.team, self.loader, self.reduction, self.services = FakeTeam(), FakeLoader(), OwnReduction(), Services()
        self.computing = Computing(
            self.team.as_team(),
            Gradients([self.weight], ["weight"]),
            Buffers([]),
            self.reduction,
            cast(StepLoader, self.loader),
            self.services,
            seed=seed,
            alone=alone,
        )
        self.computing.begin_step(None)

    def parts(self, state: TrainingState, observer: Silent) -> EngineParts:
        """Return what a synchronization is made of."""
        return engine_parts(
            self.team.as_team(),
            state,
            cast(StepLoader, self.loader),
            self.services,
            observer,
            observer,
        )

    def backward(self, batch: torch.Tensor) -> None:
        (self.weight * batch).sum().backward()  # type: ignore[no-untyped-call]

    def compute(self, *share: int, step: int = 0) -> list[Any]:
        batches = []
        for batch in self.computing.compute(step, share):
            batches.append(batch.item())
            self.backward(batch)
        return batches
