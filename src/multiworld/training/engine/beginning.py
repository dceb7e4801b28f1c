"""Begin where nobody has any state: with one from the memory of hosts, from a checkpoint, or as the program made it."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import WorldBrokenError, WorldClosedError
from ..copies.plan import MemoryPlan
from ..recovery.team import Team
from ..recovery.transfer import Receiving, Sending
from ..state import TrainingState
from .commit import exchange
from .facts import Facts
from .memory import CopiesUnusableError
from .restarting import restart_alike
from .services import Services
from .standing import Standing
from .transfers import Transfers


class Beginning:
    """One member of each shard loads the state, and all begin with it."""

    def __init__(
        self, team: Team, state: TrainingState, standing: Standing, transfers: Transfers, services: Services
    ) -> None:
        self._team, self._state, self._standing = team, state, standing
        self._transfers, self._services = transfers, services
        self.num_restarts = 0
        """How often this member began together with all others."""

    def begin(self, source: int, newcomers: Sequence[int]) -> None:
        """``source``: the place of the member that loads this shard; ``newcomers``: those that get it from there.

        Raises the world's error, CopiesUnusableError and DamagedStateError: then another generation has to be formed.
        """
        world, plan = self._team.world, self._team.generation.memory
        is_source = self._team.place == source
        if plan is not None:
            self._take_from_memory(plan)
        else:
            self._restart(is_source=is_source)
        if is_source:
            self._standing.has_state = True
            if newcomers:
                self._transfers.send(Sending(world, self._state.capture(), [source], newcomers))
        else:
            receiving = Receiving(world, [source])
            self._transfers.has_come(receiving, wait=True)
            self._transfers.take(receiving)
            self._standing.facts = []
        self._standing.has_state = True
        self.num_restarts += 1
        self._services.memory.begins(plan)

    def _restart(self, *, is_source: bool) -> None:
        """The sources load the newest checkpoint that all of them can read, if there is one."""
        if is_source:
            self._state.step = self._standing.held_step
        restart, replica = self._services.restart, self._team.replica
        if replica.size > 1:
            restart_alike(self._team.world, replica, self._state, restart, is_source=is_source)
        elif is_source:
            restart(None)

    def _take_from_memory(self, plan: MemoryPlan) -> None:
        """The sources load their shards. Raises CopiesUnusableError on all members if one of them cannot."""
        team, memory = self._team, self._services.memory
        is_well, error = False, None
        try:
            is_well = memory.fetch(team.world, team.generation, plan)
        except (WorldBrokenError, WorldClosedError) as broken:
            error = broken

        def hear() -> list[Facts]:
            if error is not None:
                raise error
            return exchange(team.world, Facts(step=plan.step, is_ready=is_well))

        facts = team.replica.as_one(hear)
        failed = [member.id for member, each in zip(team.generation.members, facts, strict=True) if not each.is_ready]
        if failed:
            memory.failed(plan, failed)
            raise CopiesUnusableError(plan.step, len(failed))
        memory.load()
