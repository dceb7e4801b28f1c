"""Give a generation its assignment: which pipelines its members form, and what has to be moved for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from ..planning.changes.conditions import Conditions, Policy
from ..planning.changes.moves import moves_to
from ..planning.changes.reconfiguration import CheckpointNeeded, Reconfiguration, reconfigure, start
from ..planning.instantiation import instantiate
from ..planning.plan import Move, Pipeline, Plan
from ..planning.template import Stage, Template
from ..planning.templates import Templates
from ..recovery.records import Generation
from .assignment import AssignedPipeline, Assignment, LayerMove
from .experience import Experience
from .seen import with_busy

POLICIES = frozenset(Policy) - {Policy.REROUTE}
"""Those that the members can carry out."""


class Planner:
    """``num_micro_batches``: of a step. Any member may propose: what it proposes is in the generation's record."""

    def __init__(
        self, templates: Templates, *, tolerate: int, num_micro_batches: int, experience: Experience | None = None
    ) -> None:
        """``experience``: this member's, with which it proposes."""
        self._templates, self._tolerate, self._num_micro_batches = templates, tolerate, num_micro_batches
        self._experience = Experience(now=time.monotonic()) if experience is None else experience

    def check(self, num_members: int) -> None:
        """Raises PlanError if so many members cannot form pipelines, or a step has too few micro-batches for them."""
        instantiate(self._templates, num_members, tolerate=self._tolerate, num_micro_batches=self._num_micro_batches)

    def complete(self, generation: Generation, before: Generation | None) -> Generation:
        """Return the generation with its assignment. ``before``: the one that it follows. Raises PlanError."""
        held = {member: frozenset(layers) for member, layers in generation.layers.items()}
        conditions = Conditions(
            tolerate=self._tolerate,
            num_micro_batches=self._num_micro_batches,
            expected_s=self._experience.expected_s(now=time.monotonic()),
            bytes_per_s=self._experience.bytes_per_s,
            form_s=self._experience.form_s,
            hosts={each.id: each.host for each in generation.members},
            divide_layers=False,
            allowed=POLICIES,
        )
        members = [each.id for each in generation.members]
        chosen = None
        if before is not None and before.assignment is not None and not generation.is_restart:
            chosen = self._changed(before.assignment, members, held, conditions)
        if chosen is None:
            chosen = start(members, self._templates, conditions)
            chosen = replace(chosen, moves=self._moves(chosen.plan, held))
        return replace(generation, assignment=with_busy(self._assignment(chosen), self._templates.profile))

    def _changed(
        self, before: Assignment, members: list[str], held: Mapping[str, frozenset[int]], conditions: Conditions
    ) -> Reconfiguration | None:
        plan = self._plan(before)
        known = {*plan.members, *plan.idle}
        changed = reconfigure(
            plan,
            templates=self._templates,
            conditions=conditions,
            lost=known - set(members),
            joined=set(members) - known,
            held={member: held.get(member, frozenset()) for member in members},
        )
        assert not isinstance(changed, CheckpointNeeded), "the members have agreed that every layer is there"
        return changed

    def _moves(self, plan: Plan, held: Mapping[str, frozenset[int]]) -> tuple[Move, ...]:
        layer_bytes = [each.move_bytes for each in self._templates.profile.layers]
        return moves_to(plan.pipelines, held, layer_bytes, divide=False)

    def _assignment(self, chosen: Reconfiguration) -> Assignment:
        return Assignment(
            num_layers=self._templates.profile.num_layers,
            pipelines=tuple(map(_assigned, chosen.plan.pipelines)),
            moves=tuple(
                LayerMove(first=each.layer, end=each.layer + 1, source=each.source, destination=each.destination)
                for each in chosen.moves
            ),
            policy=chosen.policy.value,
            iteration_s=chosen.plan.iteration_s,
            tolerates=chosen.plan.tolerates,
            idle=chosen.plan.idle,
        )

    def _plan(self, assignment: Assignment) -> Plan:
        pipelines = tuple(self._pipeline(each) for each in assignment.pipelines)
        return Plan(
            pipelines=pipelines,
            iteration_s=assignment.iteration_s,
            tolerates=assignment.tolerates,
            idle=assignment.idle,
        )

    def _pipeline(self, assigned: AssignedPipeline) -> Pipeline:
        """Return it as an instance of our template, or of the proposer's if that has cut elsewhere."""
        size = len(assigned.members)
        if size in self._templates.sizes:
            template = self._templates.template(size)
            if tuple(each.first for each in template.stages) == assigned.starts:
                return Pipeline(
                    template=template, members=assigned.members, num_micro_batches=assigned.num_micro_batches
                )
        ends = (*assigned.starts[1:], self._templates.profile.num_layers)
        template = Template(
            num_nodes=size,
            stages=tuple(
                Stage(first=first, end=end, node=node)
                for node, (first, end) in enumerate(zip(assigned.starts, ends, strict=True))
            ),
            num_micro_batches=assigned.num_micro_batches,
            iteration_s=0.0,
            max_in_flight=assigned.max_in_flight,
            schedule=assigned.schedule,
            recompute=assigned.recompute,
        )
        return Pipeline(template=template, members=assigned.members, num_micro_batches=assigned.num_micro_batches)


def _assigned(pipeline: Pipeline) -> AssignedPipeline:
    template = pipeline.template
    assert [each.node for each in template.stages] == list(range(template.num_nodes)), "a stage on each node"
    return AssignedPipeline(
        members=pipeline.members,
        starts=tuple(each.first for each in template.stages),
        num_micro_batches=pipeline.num_micro_batches,
        max_in_flight=template.max_in_flight,
        schedule=template.schedule,
        recompute=template.recompute,
    )
