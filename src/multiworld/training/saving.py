"""What is kept of a training's state, on disk and in the memory of hosts, and after which steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .engine.decision import Outcome
from .engine.facts import Facts, MoreFacts
from .engine.services import Services
from .options import TrainingOptions
from .pipeline.work import StepWork
from .recovery.records import Generation
from .recovery.team import Team
from .replica.replica import Replica
from .state import TrainingState

if TYPE_CHECKING:
    from .checkpoint.keeper import CheckpointKeeper
    from .copies.keeper import CopyKeeper

Publish = Callable[..., None]


class Saving:
    """Of one member. All calls but ``ask`` on the training thread."""

    def __init__(
        self, options: TrainingOptions, replica: Replica, *, member: str, state: TrainingState, publish: Publish
    ) -> None:
        self._replica = replica
        self._keeper: CheckpointKeeper | None = None
        self._copies: CopyKeeper | None = None
        self._is_asked = self._is_due = False
        config = options.checkpoint
        if config is None:
            return
        from .checkpoint.keeper import CheckpointKeeper  # with DCP, which takes a second

        self._keeper = CheckpointKeeper(config, job=options.name, member=member, state=state, publish=publish)
        if config.copies:
            from .copies.keeper import CopyKeeper, run_of
            from .copies.memory import HostMemory

            self._copies = CopyKeeper(
                HostMemory(run_of(config.directory, options.name), replica.size),
                copies=config.copies,
                every_steps=config.copy_interval,
                shard=replica.rank,
                num_shards=replica.size,
                member=member,
                state=state,
                publish=publish,
            )

    @property
    def has_place(self) -> bool:
        """Whether a checkpoint could be taken at all."""
        return self._keeper is not None

    def attach(self, services: Services) -> None:
        """Be what the engine asks for a state to begin with, and what it tells others of."""
        if self._keeper is not None:
            services.saved_step, services.restart = self._keeper.saved_step, self._keeper.restart
            services.own_facts = self._own_facts
        if self._copies is not None:
            services.memory = self._copies

    def ask(self) -> None:
        """Take a checkpoint after the present step, too. Any thread."""
        self._is_asked = True

    def _own_facts(self, step: int) -> MoreFacts:
        facts: MoreFacts = {"save": True} if self._is_asked else {}
        if self._copies is not None:
            facts["copies"] = self._copies.own_facts()
        return facts

    def committed(self, team: Team, generation: Generation, facts: Sequence[Facts], outcome: Outcome) -> None:
        """A step counts: hear who has the state, and what the others have asked for."""
        if self._keeper is not None:
            by_facts = len(facts) == len(generation.members)  # else they are of members of an earlier generation
            ready = [
                member.id
                for place, member in enumerate(generation.members)
                if (facts[place].is_ready if by_facts else member.id not in generation.stateless)
            ]
            writers: Sequence[str] | None = None  # those that have parts of the state for themselves
            if generation.assignment is not None:
                writers = StepWork(generation.assignment).members_of(0)
            elif self._replica.size > 1:
                writers = ready[: self._replica.size]
            self._keeper.on_members(generation.number, ready, writers)
            self._is_due = outcome.save
            self._is_asked = self._is_asked and not outcome.save
        if self._copies is not None and generation is team.generation:  # else not all members hear of this step
            self._copies.heard(team.world, generation, facts)

    def applied(self, since: int | None) -> None:
        """The state is that of the next step. ``since``: see ``Trainer.savable_since``."""
        if self._keeper is not None and since is not None:
            self._keeper.after_step(since, asked=self._is_due)
        if self._copies is not None:
            self._copies.after_step()

    def end(self, *, is_complete: bool, has_failed: bool) -> None:
        """The steps are over: write what is being written to its end, and the result of all steps. Idempotent."""
        if self._keeper is not None:
            self._keeper.close(is_complete=is_complete, has_failed=has_failed)

    def close(self, *, is_complete: bool, has_failed: bool) -> None:
        """No member needs this one's copies any more. After ``end``. Idempotent."""
        if self._copies is not None:
            self._copies.close(is_complete=is_complete, has_failed=has_failed)
