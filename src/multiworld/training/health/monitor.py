"""Look after the health of one member: collect what the decisions need, carry them out, and say what happened."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..engine.decision import Outcome
from ..engine.facts import Facts, MoreFacts
from ..engine.gradients import local
from ..errors import BadStepError, MiscomputingError
from ..events import BadStep, Miscomputed, ReplicasDiverged, SlowRank, SlowRankRecovered
from ..recovery.records import Member
from ..state import StateDict, Stateful, TrainingState
from .bad_steps import MAX_IN_A_ROW, BadSteps, OnBadStep
from .digest import Piece, digests, schedule
from .options import Health, Replay
from .replay import GradientReplay
from .slow_ranks import Recovered, SlowRanks
from .snapshot import Snapshot
from .step_times import Own
from .verdict import Verdict, judge

logger = logging.getLogger(__name__)

HISTORY: Final = "health"
SNAPSHOT: Final = "snapshot"
DATA: Final = ("data", "loader")
Publish = Callable[..., None]
"""``publish(kind of event, **its fields)``; see ``Job``."""


class HealthMonitor:
    """The engine's ``StepHealth``. ``parameters`` and ``buffers``: by name, in the same order on all members.

    With a GradScaler gradients that are not finite are usual: ``has_scaler``. ``shard``: which part of a replica of
    several processes this is; then a wrong member is named, but stays.
    """

    def __init__(
        self,
        options: Health,
        on_bad_step: OnBadStep | None,
        replay: Replay | None,
        *,
        parameters: Mapping[str, nn.Parameter],
        buffers: Mapping[str, Tensor],
        optimizers: Sequence[Optimizer],
        state: TrainingState,
        publish: Publish,
        rank: Callable[[], int],
        has_scaler: bool,
        shard: int | None = None,
    ) -> None:
        self._options, self._on_bad_step, self._replay_options = options, on_bad_step, replay
        self._parameters, self._buffers, self._optimizers = parameters, buffers, list(optimizers)
        self._publish, self._rank = publish, rank
        self._shard = shard
        self._looks_at_gradients = on_bad_step is not None and not has_scaler
        self._digests: tuple[int, dict[str, str]] = (-1, {})  # of the state that this step begins with
        self._schedule: tuple[tuple[str, ...] | None, list[list[Piece]]] = (None, [])
        self._reported: frozenset[str] = frozenset()
        self._slow = SlowRanks(options.slow_ranks) if options.slow_ranks is not None else None
        self._bad = BadSteps(options.loss_spike)
        self._replay = GradientReplay([*parameters.values()], [*parameters], [*buffers.values()])
        self._miscomputed = ""
        self._num_given_up = 0
        self._snapshot: Snapshot | None = None
        if on_bad_step is not None:  # then all must decide alike, newcomers too
            state.add(HISTORY, _History(self._bad))
        if on_bad_step == "rollback":
            self._snapshot = Snapshot(lambda: _rolled_back(state.parts))
            state.add(SNAPSHOT, self._snapshot)

    # ---- what the engine asks (see ``StepHealth``)

    def began(self, step: int) -> None:
        """Compute the digests of the state that the step begins with, of some of its tensors."""
        every = self._options.compare_every
        if every:
            tensors = self._compared()
            self._digests = (step, digests(tensors, self._pieces(tensors)[step % every]))

    def _compared(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        if "parameters" in self._options.compare:
            tensors.update(self._parameters)
        if "buffers" in self._options.compare:
            tensors.update(self._buffers)
        if "optimizers" in self._options.compare:
            for number, optimizer in enumerate(self._optimizers):
                tensors.update(_optimizer_tensors(f"optimizer.{number}", optimizer))
        return {name: local(tensor) for name, tensor in tensors.items()}

    def _pieces(self, tensors: Mapping[str, Tensor]) -> list[list[Piece]]:
        names = tuple(tensors)
        if names != self._schedule[0]:  # an optimizer has its state only after its first step
            sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
            self._schedule = (names, schedule(sizes, self._options.compare_every))
        return self._schedule[1]

    def own_facts(self, step: int, reduced: Sequence[Tensor]) -> MoreFacts:
        facts: MoreFacts = {}
        of_step, found = self._digests
        if of_step == step and found:  # shards are compared with the same shards of other replicas
            shard = "" if self._shard is None else f"shard {self._shard}: "
            facts["digests"] = {shard + name: value for name, value in found.items()}
        if self._miscomputed:
            facts["miscomputed"] = self._miscomputed
        if self._looks_at_gradients:
            facts["is_finite"] = are_finite(reduced)
        return facts

    def wrong(self, step: int, members: Sequence[Member], facts: Sequence[Facts]) -> frozenset[int]:
        verdict = judge(facts)
        if self._shard is not None:
            verdict = replace(verdict, wrong=frozenset())
        if verdict.divergence is not None or verdict.miscomputed:
            self._tell(step, [each.rank for each in members], verdict)
        self._miscomputed = ""
        return verdict.wrong

    def given_up(self, step: int) -> None:
        self._num_given_up += 1
        reason = "its parameters or its gradients differ from what they must be"
        if self._num_given_up > 1:
            raise MiscomputingError(self._rank(), step, reason)
        logger.error("step %d: this rank (%d) gives up its state, and gets it anew: %s", step, self._rank(), reason)
        self._digests = (-1, {})

    def skips(self, step: int, members: Sequence[Member], outcome: Outcome, facts: Sequence[Facts]) -> bool:
        self.look_for_slow_ranks(step, members, facts)
        not_finite = [member.rank for member, each in zip(members, facts, strict=True) if not each.is_finite]
        bad = self._bad.heard(outcome.values, not_finite)
        snapshot = self._snapshot
        if bad is None:
            if snapshot is not None and (snapshot.step < 0 or step % self._options.snapshot_every == 0):
                snapshot.take(step)
            return False
        action = self._on_bad_step
        back_to = snapshot.step if snapshot is not None and snapshot.step >= 0 else None
        self._publish(BadStep, step=step, reason=bad.reason, action=action or "report", back_to=back_to)
        logger.warning("step %d is bad: %s; on_bad_step=%r", step, bad.reason, action)
        if action is None:
            return False
        if action == "raise" or self._bad.num_in_a_row >= MAX_IN_A_ROW:
            raise BadStepError(step, bad.reason, self._bad.num_in_a_row)
        if snapshot is not None and back_to is not None:
            snapshot.restore()
        return True

    def repeats(self, step: int) -> bool:
        return self._replay_options is not None and (step + 1) % self._replay_options.every == 0

    def begin(self) -> None:
        self._replay.begin()

    def again(self) -> None:
        self._replay.again()

    def compare(self) -> None:
        self._miscomputed = self._replay.differing()

    # ---- events

    def _tell(self, step: int, ranks: Sequence[int], verdict: Verdict) -> None:
        removed = tuple(ranks[place] for place in sorted(verdict.wrong))
        for place, name in verdict.miscomputed:
            self._publish(Miscomputed, step=step, wrong_rank=ranks[place], name=name, is_removed=place in verdict.wrong)
            logger.error(
                "step %d: rank %d computed a micro-batch twice, and the gradient of %s was another one the second time",
                step, ranks[place], name,
            )  # fmt: skip
        divergence = verdict.divergence
        if divergence is None:
            return
        key = divergence.first
        if not removed and key in self._reported:
            return  # nothing was done about it, so it comes again and again
        self._reported |= {key}
        wrong = tuple(ranks[int(place)] for place in divergence.wrong)
        differing = tuple(ranks[int(place)] for place in divergence.differing)
        self._publish(
            ReplicasDiverged,
            step=step,
            name=divergence.first,
            num_names=divergence.num_names,
            wrong=wrong,
            differing=differing,
            removed=removed,
        )
        logger.error(
            "step %d: replicas differ in %s%s: %s",
            step,
            divergence.first,
            f" and {divergence.num_names - 1} more" if divergence.num_names > 1 else "",
            f"rank {', '.join(map(str, wrong))} is wrong" if wrong else "it is not known which of them is right",
        )

    def look_for_slow_ranks(self, step: int, members: Sequence[Member], facts: Sequence[Facts]) -> None:
        if self._slow is None or members[0].rank != self._rank():
            return
        owns = {member.id: Own(each.seconds, len(each.done)) for member, each in zip(members, facts, strict=True)}
        rank_of = {member.id: member.rank for member in members}
        for found in self._slow.heard(owns):
            rank = rank_of[found.member]
            if isinstance(found, Recovered):
                self._publish(SlowRankRecovered, step=step, slow_rank=rank)
                logger.info("step %d: rank %d is as fast as the others again", step, rank)
                continue
            self._publish(
                SlowRank,
                step=step,
                slow_rank=rank,
                factor=found.factor,
                part=found.part,
                part_factor=found.part_factor,
            )
            logger.warning(
                "step %d: rank %d needs %.1f times as long as the others; most is lost in %s (%.1f times)",
                step, rank, found.factor, found.part, found.part_factor,
            )  # fmt: skip


def _rolled_back(parts: Mapping[str, Stateful]) -> dict[str, Stateful]:
    """Return what a rollback restores: not the data, which goes on."""
    kept = (HISTORY, SNAPSHOT, *DATA)
    return {name: part for name, part in parts.items() if name.split(".")[0] not in kept}


class _History:
    """What was heard of the last steps, as a part of the training's state."""

    def __init__(self, bad: BadSteps) -> None:
        self._bad = bad

    def state_dict(self) -> StateDict:
        values, num_in_a_row = self._bad.history()
        return {"values": torch.tensor(values, dtype=torch.float64), "num_in_a_row": num_in_a_row}

    def load_state_dict(self, state: StateDict) -> None:
        self._bad.take_history(state["values"].tolist(), int(state["num_in_a_row"]))


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether no value is NaN or infinite, nor so large that their sum is. Reads each once.

    What is not finite stays so in a sum, which takes a tenth of the time of a look at each value.
    """
    sums = [each.sum(dtype=_summed_as(each)) for each in tensors if each.is_floating_point()]
    return all(bool(torch.isfinite(each)) for each in sums)


def _summed_as(tensor: Tensor) -> torch.dtype:
    """Return a type in which many finite values of 16 bits have a finite sum."""
    return torch.float32 if tensor.element_size() < 4 else tensor.dtype


def _optimizer_tensors(prefix: str, optimizer: Optimizer) -> dict[str, Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{prefix}.{index}.{key}": value
        for index, parameter in enumerate(parameters)
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }
