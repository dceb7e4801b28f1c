"""Semi-synchronous training: each member computes its inner steps alone, and an outer step ends each round of them.

What members agree on is counted in rounds, not in steps: ``step`` of an announcement and of a generation is the
number of a round. Inner steps need nobody. The outer step commits as a step does: all members have the mean, and all
have heard so, before anybody applies it. A member that is lost takes with it what it computed since the last outer
step; the others lose nothing, as what they have sent is summed up again in the next world.

The processes of a replica that has several compute inner steps together, and each sums up the payloads of its shard
with the same shards of other replicas. They decide as one: who hears of a loss tells the others of its replica.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import WorldBrokenError, WorldClosedError
from ..data.dealing import deal
from ..engine.commit import exchange
from ..engine.computing import Computing
from ..engine.decision import decide, means
from ..engine.engine_parts import EngineParts
from ..engine.facts import Facts
from ..engine.newcomer import Newcomer
from ..engine.progress import StepProgress
from ..engine.shares import Shares
from ..engine.step import Step, StepChange
from ..engine.synchronization import Advance
from ..health.timing import OPTIMIZER, WAIT
from ..recovery.records import Announcement, Generation
from ..recovery.transfer import Receiving, Sending
from ..replica.layout import places_of_shard, share_of_replicas
from .inner_times import NUM_KEPT, by_part, facts_of_steps
from .outer import OuterStep
from .reduction import OuterReduction
from .strategies import DiLoCo, LocalSGD
from .timetable import Due

logger = logging.getLogger(__name__)


@dataclass
class _QueuedRound:
    """A round that counted while this member had no state yet: what it needs to apply it later."""

    number: int
    means: Mapping[int, Tensor]
    values: Mapping[str, float]


class Rounds:
    """Synchronization of LocalSGD and DiLoCo.

    ``state.step`` counts inner steps. Between the end of a round and the first inner step of the next one all members
    have the same anchors and the same outer state: only there a state is taken for newcomers and checkpoints.
    """

    def __init__(
        self,
        parts: EngineParts,
        computing: Computing,
        shares: Shares,
        strategy: LocalSGD | DiLoCo,
        outer: OuterStep,
    ) -> None:
        self._team, self._state, self._loader = parts.team, parts.state, parts.loader
        self._services, self._standing = parts.services, parts.standing
        self._computing, self._gradients, self._shares = computing, computing.gradients, shares
        self._transfers, self._beginning = parts.transfers, parts.beginning
        self._observer = parts.observer
        self._newcomer = Newcomer(self._team, self._standing, self._transfers)
        self._advance: Advance
        self._strategy, self._outer = strategy, outer
        self._table = strategy.timetable()
        self._sums = OuterReduction(strategy.compress if isinstance(strategy, DiLoCo) else None)
        self._round = 0
        self._share: tuple[int, ...] = ()
        """This member's micro-batches of each step in this round. A death in between does not change them."""
        self._contributors = 1
        self._is_at_boundary = False
        self._has_ended_round = False
        self._has_all_means = False
        self._waiting_for_state: tuple[int, ...] = ()
        """Places of newcomers that get the state from here as soon as a round has ended."""
        self._round_values: dict[str, list[float]] = {}
        self._round_seconds: deque[Mapping[str, float]] = deque(maxlen=NUM_KEPT)
        """Of the last inner steps of this round."""
        self._rounds_then: deque[_QueuedRound] = deque()
        self._round_then: _QueuedRound | None = None

    # ---- the steps

    def attach(self, advance: Advance) -> None:
        self._advance = advance

    def begin_training(self, total: int | None) -> None:
        self._table = self._strategy.timetable(total)

    def between_steps(self) -> bool:
        """After an inner step look whether somebody was lost; after a round members may come and go.

        Not after the last one: those who have the state end then, and who waits for it would wait for them elsewhere.
        """
        if self._has_ended_round:
            self._has_ended_round = False
            return bool(self._table.steps_of(self._round))
        if self._standing.receiving is None:
            self._look_for_losses()
        return False

    def _look_for_losses(self) -> None:
        """Early, so that nobody waits for this member at the end of the round."""
        error = self._team.error
        if self._team.replica.all_true(error is None):
            return
        if error is None:  # only another process of this replica has heard of it
            self._team.world.abort()
        self._advance(error)

    @property
    def savable_since(self) -> int | None:
        return self._table.start_of(self._round - 1) if self._is_at_boundary and self._round else None

    @property
    def progress(self) -> StepProgress:
        return self._computing.progress

    def give_up(self) -> None:
        self._computing.give_up()

    def close(self) -> None:
        self._gradients.close()

    # ---- inner steps

    def micro_batches(self, step: Step) -> Iterator[Any]:
        self._computing.begin_step(None)
        self._deal()
        self._is_at_boundary = False
        if self._round_then is None:
            yield from self._computing.compute(step.index, self._shares.by_place[self._team.place])
            self._computing.reduce()
        progress = self._computing.progress
        self._gradients.apply(self._computing.unused)
        step.values = means([self._facts_of_step()]) if self._round_then is None else self._round_then.values
        step.num_samples = len(progress.done) * self._loader.micro_batch
        self._state.step += 1
        step.change(StepChange.COUNTED)
        facts = [self._facts_of_step()]
        self._observer.step_committed(step, self._team.generation, facts, decide(facts))
        self._services.timer.enter(OPTIMIZER)

    def _facts_of_step(self) -> Facts:
        progress = self._computing.progress
        values = {name: tuple(each) for name, each in progress.values.items()}
        return Facts(step=self._state.step, done=tuple(progress.done), values=values, seconds=progress.seconds)

    def _deal(self) -> None:
        size, num_members = self._team.replica.size, len(self._team.generation.members)
        mine = self._team.place // size
        shares = [self._share if number == mine else () for number in range(num_members // size)]
        self._shares.by_place = share_of_replicas(shares, size)
        self._computing.reduction.use(self._team.shard_world, shares)

    def _begin_round(self, place: int, num_members: int) -> None:
        """Deal the micro-batches of the whole round; all members do so alike, by the membership that it begins with."""
        size = self._team.replica.size
        ready = [number for number in range(num_members // size) if number * size not in self._shares.not_ready]
        self._contributors = len(ready)
        self._share = deal(self._loader.num_micro_batches, ready).get(place // size, ())
        self._has_all_means = False
        self._round_values = {}
        self._round_seconds.clear()

    # ---- outer steps

    def step_ended(self, step: Step) -> None:
        due = self._table.due(step.index)
        if self._round_then is not None:
            if due.apply:
                self._apply(due, self._round_then.means)
        else:
            self._round_seconds.append(self._computing.progress.seconds)
            for name, values in self._computing.progress.values.items():
                self._round_values.setdefault(name, []).extend(values)
            self._team.membership.look_for_newcomers()
            for fragment in due.send:
                self._sums.send(fragment, self._outer.payload(fragment))
            if due.apply:
                self._end_round(step, due)

    def _end_round(self, step: Step, due: Due) -> None:
        """Take the outer step together. If this member was given up meanwhile, it is a newcomer afterwards."""
        taken: dict[int, Tensor] = {}
        facts: list[Facts] | None = None
        while facts is None:
            dealt_in = self._team.place, len(self._team.generation.members)
            try:
                facts, dealt_in_then = self._team.replica.as_one(partial(self._complete_round, due, taken)), None
            except (WorldBrokenError, WorldClosedError) as error:
                facts, dealt_in_then = self._recover_round(error), dealt_in
                if not self._standing.has_state:
                    return
        self._apply(due, taken)
        for fragment in due.apply:
            self._sums.finish(fragment)
        step.values = means(facts)
        self._count_round(facts, dealt_in_then)

    def _complete_round(self, due: Due, taken: dict[int, Tensor]) -> list[Facts]:
        """Take the means, and hear the facts of all: who returns knows that the round counts. Raises the world's error.

        In a replica of several processes another one may have heard them: then this one has all means, too.
        """
        for fragment in due.apply:
            taken[fragment] = self._sums.mean(fragment, self._contributors)
        self._has_all_means = True
        return exchange(self._team.world, self._facts_of_round())

    def _apply(self, due: Due, taken: Mapping[int, Tensor]) -> None:
        for fragment in due.apply:
            self._outer.apply(fragment, taken[fragment], is_last=due.is_last)

    def _facts_of_round(self, *, is_ready: bool = True) -> Facts:
        """A value is the mean over this member's own micro-batches of the round."""
        own = Facts(step=self._round, values={name: tuple(each) for name, each in self._round_values.items()})
        return Facts(
            step=self._round,
            done=self._share if self._round_seconds else (),
            values={name: (value,) for name, value in means([own]).items()},
            inner_seconds=by_part(self._round_seconds, (WAIT,)),
            is_leaving=self._services.is_leaving(),
            newcomers=self._team.membership.newcomers,
            is_ready=is_ready,
        )

    def _recover_round(self, error: WorldBrokenError | WorldClosedError) -> list[Facts] | None:
        """Go on with those who are left. Returns the facts of this round if it counts already, else None."""
        number = self._round
        generation = self._advance(error)
        if generation is not None and self._standing.has_state and generation.step == number + 1:
            return list(generation.facts)
        return None

    def _count_round(self, facts: list[Facts], heard_in: tuple[int, int] | None = None) -> None:
        """The round counts, and was applied if this member has the state.

        ``heard_in``: this member learned it from others in a later generation, which have dealt the next round already
        in the one before; its place and the number of members there.
        """
        outcome = decide(facts, self._team.replica.size)
        self._standing.facts, self._standing.outcome = facts, outcome
        if heard_in is None:
            members = self._team.generation.members
            for of_step in facts_of_steps(facts):
                self._services.health.look_for_slow_ranks(self._state.step - 1, members, of_step)
        self._round += 1
        self._is_at_boundary = self._has_ended_round = True
        newcomers, self._waiting_for_state = self._waiting_for_state, ()
        if newcomers:
            self._send_state(newcomers)
        not_ready, contributors = self._shares.not_ready, self._contributors
        self._shares.not_ready = outcome.not_ready
        if heard_in is None:
            self._begin_round(self._team.place, len(self._team.generation.members))
            return
        if outcome.newcomers or outcome.leaving:  # then the others have not begun the next round yet
            self._shares.not_ready = not_ready
            heard_in = self._team.place, len(self._team.generation.members)
        self._begin_round(*heard_in)
        self._shares.not_ready, self._contributors = not_ready, contributors
        self._standing.outcome = replace(
            outcome, leaving=frozenset(), newcomers=()
        )  # those were places of another generation

    # ---- membership

    def end(self) -> None:
        pass

    def announced(self, common: Announcement) -> Announcement:
        return replace(common, step=self._round, is_complete=self._has_all_means)

    def first_step_of(self, generation: Generation) -> int:
        return self._table.start_of(generation.step)

    def begin_generation(self, generation: Generation) -> None:
        members, me = generation.members, self._team.membership.member.id
        size = self._team.replica.size
        same_shard = places_of_shard(self._team.place, len(members), size)
        newcomers = tuple(place for place in same_shard if members[place].id in generation.stateless)
        # One source, as members are at different inner steps: two would send states of different rounds.
        source = next((place for place in same_shard if members[place].id in generation.sources), 0)
        self._waiting_for_state = ()
        self._shares.not_ready = frozenset(
            place for place, each in enumerate(members) if each.id in generation.stateless
        )
        if generation.is_restart:
            self._shares.not_ready = frozenset()
            self._sums.clear()
            self._beginning.begin(source, [place for place in newcomers if place != source])
            self._outer.return_to_anchor()
            self._round, self._is_at_boundary = self._table.round_of(self._state.step), True
        elif me in generation.stateless:
            self._standing.lose_state()
            self._is_at_boundary = False
            self._round = generation.step
            self._sums.clear()
            self._rounds_then.clear()
            self._standing.receiving = Receiving(self._team.world, [source])
        elif newcomers and self._team.place == source:
            if self._is_at_boundary:
                self._send_state(newcomers)
            else:
                self._waiting_for_state = newcomers
        if not self._standing.has_state or self._is_at_boundary:
            self._begin_round(self._team.place, len(members))
        self._contributors = (len(members) - len(self._shares.not_ready)) // size
        is_behind = generation.step > self._round  # the round counts for others, so this member has all means of it
        self._has_all_means &= is_behind
        self._sums.use(self._team.shard_world, again=not is_behind)

    def _send_state(self, newcomers: Sequence[int]) -> None:
        world = self._team.world
        try:
            self._transfers.send(Sending(world, self._state.capture(), [world.rank], newcomers))
        except (WorldBrokenError, WorldClosedError):
            logger.debug("no state was sent, as the world is broken; the next generation has a source again")

    # ---- a newcomer

    def catch_up(self) -> Iterator[int]:
        """Take part in a round with nothing to give; once the state is here, apply what counted since it was taken."""
        if not self._newcomer.get_state(self._is_state_here, self._advance):
            return
        self._outer.return_to_anchor()
        now = self._round
        first = self._table.round_of(self._state.step)
        yield from self._replay_rounds([each for each in self._rounds_then if each.number >= first])
        self._rounds_then.clear()
        self._outer.return_to_anchor()  # what was mixed with it meanwhile came from no training of this member
        assert self._table.round_of(self._state.step) == now
        self._standing.has_state = self._is_at_boundary = self._has_ended_round = True

    def _is_state_here(self, receiving: Receiving) -> bool:
        is_here = bool(self._table.steps_of(self._round)) and self._take_part(receiving)
        if not is_here and self._table.steps_of(self._round):
            return False  # and take part in the next round
        self._transfers.has_come(receiving, wait=True)
        return True

    def _take_part(self, receiving: Receiving) -> bool:
        """Take part in a round with zeros, and keep what it gave. True: all were told that the state is here."""
        steps = self._table.steps_of(self._round)
        self._sums.clear()
        for step in steps:
            for fragment in self._table.due(step).send:
                self._sums.send(fragment, torch.zeros_like(self._outer.payload(fragment)))
        due = self._table.due(steps[-1])
        taken = self._means_of(due)
        is_ready = self._transfers.has_come(receiving)
        own = self._facts_of_round(is_ready=is_ready)
        facts = self._team.replica.as_one(lambda: exchange(self._team.world, own))
        self._rounds_then.append(_QueuedRound(self._round, taken, means(facts)))
        self._sums.clear()
        self._count_round(facts)
        self._is_at_boundary = False
        return is_ready

    def _means_of(self, due: Due) -> dict[int, Tensor]:
        """Return the means, in all processes of the replica. Raises if one of them cannot get them."""
        taken: dict[int, Tensor] = {}
        error = None
        try:
            taken = {fragment: self._sums.mean(fragment, self._contributors) for fragment in due.apply}
        except (WorldBrokenError, WorldClosedError) as raised:
            error = raised
        if not self._team.replica.all_true(error is None):
            self._team.world.abort()
            raise error or WorldClosedError(self._team.world.name, self._team.world.generation)
        return taken

    def _replay_rounds(self, rounds: Sequence[_QueuedRound]) -> Iterator[int]:
        """Yield the steps of rounds that counted meanwhile."""
        for each in rounds:
            self._round_then = each
            yield from self._table.steps_of(each.number)
            self._round_then = None
