"""Carry out an assignment: move layers, form the worlds of owners, and make what gradients are summed in."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ...errors import WorldClosedError
from ...world.world import World
from ..engine.engine_parts import EngineParts
from ..engine.progress import StepProgress
from ..recovery.records import Generation
from ..recovery.transfer import DamagedStateError
from ..state import StateDict
from .accumulating import Accumulation
from .assignment import Role
from .collecting import Collected, packed, unpacked
from .holdings import Holdings
from .moving import Moving, Shipment, shipments
from .owners import Owned, OwnersWorlds, owned_by
from .prefetching import Prefetching
from .remaining import StepShares
from .work import Work

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What this member works with in a generation. ``role``: None if it has nothing to do.
    ``collected``: of the generation's step; ``next_work``: of all later ones.

    ``got_bytes``: what it got from ``num_sources`` members. ``prefetching``: what is moved beside the steps.
    """

    role: Role | None
    collected: Collected
    next_work: Work
    got_bytes: int
    num_sources: int
    prefetching: Prefetching | None


class Preparing:
    """Of one member. All members of a generation prepare together, as they begin its first step."""

    def __init__(self, parts: EngineParts, holdings: Holdings, *, exact: bool) -> None:
        self._team, self._state, self._loader = parts.team, parts.state, parts.loader
        self._recoveries = parts.recoveries
        self._holdings, self._exact = holdings, exact
        self.worlds = OwnersWorlds()
        self._formed: Mapping[tuple[int, ...], World] = {}
        """Those of the present generation, by the places of their members."""

    def prepare(self, generation: Generation, own: Collected) -> Prepared:
        """Hold the layers of this member's role, as all other members do. ``own``: what it has of this step.

        Raises world errors: then nobody has dropped any layer, and ``own`` is as it was.
        """
        assignment, team = generation.assignment, self._team
        assert assignment is not None, "a generation of a training in pipelines has an assignment"
        me, world, holdings = team.membership.member.id, team.world, self._holdings
        first_source, remaining = next(iter(generation.layers)), generation.remaining
        handed = () if remaining is None else remaining.handed
        sent, got = (
            shipments(assignment.moves, generation.stateless, first_source, me, outgoing=outgoing, handed=handed)
            for outgoing in (True, False)
        )
        moving = Moving(world, generation.place_of, sent, got, partial(self._captured, own))
        coming = _coming_layers(generation, me)
        shares = StepShares(assignment, remaining)
        self._formed = self.worlds.form(world, [each.owners for each in self._owned(generation, shares)])
        states = self._take(moving)
        prefetching = None
        if generation.coming is not None:  # after what was moved: messages between two members keep their order
            prefetching = Prefetching(generation, world, holdings, me, self._got)
        team.meet()  # nobody drops a layer before all have got theirs
        kept = shares.kept_by(me)
        kept_sums, kept_losses = own.sums(holdings.contents.summed_in(kept)) if kept else {}, own.losses(kept)
        holdings.hold(assignment.layers_of(me), ahead=coming & holdings.held)
        holdings.expect(coming - holdings.held)
        before = own.progress
        progress = StepProgress(began=before.began, num_redone=before.num_redone, seconds=before.seconds)
        collected = self._collected(generation, shares, self._state.step, progress)
        collected.begin_with(
            shares.begun_with(me),
            [kept_sums, *(unpacked(each["sums"]) for each in states)],
            [kept_losses, *(each["losses"] for each in states)],
        )
        return Prepared(
            role=assignment.role_of(me),
            collected=collected,
            next_work=StepShares(assignment, None).work_of(me),
            got_bytes=moving.size_bytes,
            num_sources=len(got),
            prefetching=prefetching,
        )

    def _got(self, size_bytes: int, num_sources: int, took_s: float) -> None:
        self._recoveries.state_received(self._state.step, size_bytes, num_sources, took_s)

    def next_step(self, collected: Collected, step: int) -> Collected:
        """Return what collects another step of the present generation than the one before it."""
        if not collected.is_after_loss:
            collected.begin_step(step, collected.progress)
            return collected
        collected.close()
        generation = self._team.generation
        assert generation.assignment is not None
        return self._collected(generation, StepShares(generation.assignment, None), step, collected.progress)

    def _owned(self, generation: Generation, shares: StepShares) -> list[Owned]:
        assignment, contents = generation.assignment, self._holdings.contents
        assert assignment is not None
        layers = self._needed(generation)
        return owned_by(
            assignment,
            generation.place_of,
            {name: (each.held_in, each.computed_in) for name, each in contents.uses_of(layers).items()},
            {name: contents.layers_with(name) for name in contents.changing_buffers_of(layers)},
            shares.kind,
            coming=generation.coming,
        )

    def _needed(self, generation: Generation) -> frozenset[int]:
        """Return the layers whose gradients this member needs."""
        assignment, me = generation.assignment, self._team.membership.member.id
        assert assignment is not None
        return _coming_layers(generation, me).union(assignment.layers_of(me))

    def _collected(self, generation: Generation, shares: StepShares, step: int, progress: StepProgress) -> Collected:
        assignment, contents, me = generation.assignment, self._holdings.contents, self._team.membership.member.id
        assert assignment is not None
        role, layers = assignment.role_of(me), assignment.layers_of(me)
        needed = self._needed(generation)
        uses, buffers = contents.uses_of(needed), contents.changing_buffers_of(needed)
        leaves = {name: each.leaf for name, each in uses.items()}
        ids = [each.id for each in generation.members]

        def accumulation(owned: Owned) -> Accumulation:
            computed_in = uses[owned.uses[0]].computed_in if owned.uses else contents.layers_with(owned.buffers[0])
            mine = [layer for layer in computed_in if layer in layers]
            return Accumulation(
                owned,
                self._formed.get(owned.owners),
                [shares.of(ids[place], computed_in) for place in owned.owners],
                leaves,
                buffers,
                contents.modules_of(layers),
                num_micro_batches=self._loader.num_micro_batches,
                exact=self._exact,
                computes=bool(mine),
                recompute=role is not None and role.recompute,
                skipped=shares.present(mine[0]) if mine else (),
            )

        return Collected(
            step,
            [accumulation(each) for each in self._owned(generation, shares)],
            {layer: shares.present(layer) for layer in layers},
            progress,
            shares.work_of(me),
            is_last=assignment.num_layers - 1 in layers,
            is_after_loss=shares.keeps_any,
        )

    def _captured(self, own: Collected, shipment: Shipment) -> StateDict:
        return {
            "common": self._state.capture() if shipment.is_first else None,
            "layers": self._holdings.capture(shipment.layers),
            "sums": packed(own.sums(self._holdings.contents.summed_in(shipment.sums))) if shipment.sums else {},
            "losses": own.losses(shipment.sums),
        }

    def _take(self, moving: Moving) -> list[StateDict]:
        """Wait for all, then take all layers. Raises the world's error."""
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
        return states


def _coming_layers(generation: Generation, member: str) -> frozenset[int]:
    return frozenset() if generation.coming is None else frozenset(generation.coming.layers_of(member))
