"""Carry out an assignment: move layers, form the worlds of owners, and make what gradients are summed in."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ...errors import WorldClosedError
from ..engine.engine_parts import EngineParts
from ..recovery.records import Generation
from ..recovery.transfer import DamagedStateError
from ..state import StateDict
from .accumulating import Accumulation
from .assignment import Role
from .holdings import Holdings
from .moving import Moving, Shipment, shipments
from .owners import OwnersWorlds, owned_by
from .work import StepWork, Work

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What this member works with in a generation. ``role``: None if it has nothing to do. ``work``: of each step.

    ``got_bytes``: what it got from ``num_sources`` members.
    """

    role: Role | None
    work: Work
    accumulations: list[Accumulation]
    got_bytes: int
    num_sources: int


class Preparing:
    """Of one member. All members of a generation prepare together, as they begin its first step."""

    def __init__(self, parts: EngineParts, holdings: Holdings, *, exact: bool) -> None:
        self._team, self._state, self._loader = parts.team, parts.state, parts.loader
        self._holdings, self._exact = holdings, exact
        self.worlds = OwnersWorlds()

    def prepare(self, generation: Generation) -> Prepared:
        """Hold the layers of this member's role, as all other members do. Raises world errors: then nobody has dropped
        any layer.
        """
        assignment, team = generation.assignment, self._team
        assert assignment is not None, "a generation of a training in pipelines has an assignment"
        me, world, holdings = team.membership.member.id, team.world, self._holdings
        first_source = next(iter(generation.layers))
        sent, got = (
            shipments(assignment.moves, generation.stateless, first_source, me, outgoing=outgoing)
            for outgoing in (True, False)
        )
        moving = Moving(world, generation.place_of, sent, got, self._captured)
        role, layers = assignment.role_of(me), assignment.layers_of(me)
        uses, buffers = holdings.uses_of(layers), holdings.changing_buffers_of(layers)
        owned = owned_by(
            assignment,
            generation.place_of,
            {name: (each.held_in, each.computed_in) for name, each in uses.items()},
            {name: holdings.layers_with(name) for name in buffers},
        )
        worlds = self.worlds.form(world, [each.owners for each in owned])
        self._take(moving)
        team.meet()  # nobody drops a layer before all have got theirs
        holdings.hold(layers)
        leaves = {name: each.leaf for name, each in uses.items()}
        step_work = StepWork(assignment)
        shares = [step_work.micro_batches_of(each.id) for each in generation.members]
        accumulations = [
            Accumulation(
                each,
                worlds.get(each.owners),
                [shares[place] if place in each.computing else () for place in each.owners],
                leaves,
                buffers,
                holdings.modules_of(layers),
                num_micro_batches=self._loader.num_micro_batches,
                exact=self._exact,
                recompute=role is not None and role.recompute,
            )
            for each in owned
        ]
        return Prepared(
            role=role,
            work=step_work.of(me),
            accumulations=accumulations,
            got_bytes=moving.size_bytes,
            num_sources=len(got),
        )

    def _captured(self, shipment: Shipment) -> StateDict:
        return {
            "common": self._state.capture() if shipment.is_first else None,
            "layers": self._holdings.capture(shipment.layers),
        }

    def _take(self, moving: Moving) -> None:
        """Wait for all, then take all. Raises the world's error."""
        world = self._team.world
        try:
            states = moving.wait()
        except DamagedStateError as damaged:
            logger.warning("%s; it is asked for again", damaged)
            world.abort()
            raise WorldClosedError(world.name, world.generation) from damaged
        for state in states:
            if state["common"] is not None:
                self._state.restore(state["common"])
            self._holdings.put(state["layers"])
