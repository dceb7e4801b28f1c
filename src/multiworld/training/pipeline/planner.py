"""Give a generation its assignment: which pipelines its members form, and what has to be moved for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from ..planning.changes.conditions import Conditions
from ..planning.changes.moves import busiest_bytes, moves_to
from ..planning.changes.reconfiguration import CheckpointNeeded, Reconfiguration, reconfigure, start
from ..planning.in_flight import executed_in_flight
from ..planning.instantiation import instantiate
from ..planning.operations import Kind
from ..planning.plan import Move, Pipeline, Plan
from ..planning.template import Stage, Template
from ..planning.templates import Templates
from ..recovery.records import Generation
from .assignment import AssignedPipeline, Assignment, LayerMove, SharedOrder
from .experience import Experience
from .foresight import Foresight, Order, losses_to_foresee
from .growing import SMALL_BYTES, is_prefetched, kept, kept_layers
from .remaining import StepShares, remaining_of
from .seen import with_busy

OPERATION_S = 2e-5  # of a rerouted step, to simulate it on a busy processor


class Planner:
    """``num_micro_batches``: of a step. Any member may propose: what it proposes is in the generation's record.

    ``experience``: this member's, with which it proposes. ``foresight``: makes plans for it in advance. ``together``:
    see ``remaining_of``. ``split_backward``: members that compute for others may put off gradients of weights.
    """

    def __init__(
        self,
        templates: Templates,
        *,
        tolerate: int,
        num_micro_batches: int,
        experience: Experience | None = None,
        foresight: Foresight | None = None,
        together: Sequence[Sequence[int]] = (),
        split_backward: bool = False,
    ) -> None:
        self._templates, self._tolerate, self._num_micro_batches = templates, tolerate, num_micro_batches
        self._experience = Experience(now=time.monotonic()) if experience is None else experience
        self._foresight, self._together, self._split_backward = foresight, together, split_backward

    def check(self, num_members: int) -> None:
        """Raises PlanError if so many members cannot form pipelines, or a step has too few micro-batches for them."""
        instantiate(self._templates, num_members, tolerate=self._tolerate, num_micro_batches=self._num_micro_batches)

    def complete(self, generation: Generation, before: Generation | None, *, may_prefetch: bool = True) -> Generation:
        """Return the generation with its assignment. ``before``: the one that it follows. Raises PlanError.

        ``may_prefetch``: steps follow, beside which layers can be moved.
        """
        held = {member: frozenset(layers) for member, layers in generation.layers.items()}
        coming = None
        if before is None or before.assignment is None or generation.is_restart:
            assignment = self._begun(generation, held)
        else:
            assignment, coming = self._following(generation, before, before.assignment, held)
            if coming is not None and not may_prefetch:
                assignment, coming = coming, None
        of_lost = () if before is None else _of_lost(before, generation)
        remaining = remaining_of(assignment, generation.partial, of_lost=of_lost, together=self._together)
        return replace(generation, assignment=assignment, partial={}, remaining=remaining, coming=coming)

    def _begun(self, generation: Generation, held: Mapping[str, frozenset[int]]) -> Assignment:
        chosen = start([each.id for each in generation.members], self._templates, self._conditions(generation))
        return self._assignment(replace(chosen, moves=self._moves(chosen.plan, held)))

    def _following(
        self, generation: Generation, before: Generation, assignment: Assignment, held: Mapping[str, frozenset[int]]
    ) -> tuple[Assignment, Assignment | None]:
        """Return the assignment, and the one that comes once its moves were carried out beside the steps."""
        members = [each.id for each in generation.members]
        if before.coming is not None and is_prefetched(before.coming, members, held):
            return replace(before.coming, moves=()), None
        foreseen = self._foreseen(before, members, held)
        chosen = foreseen or self._changed(assignment, members, held, self._conditions(generation))
        present = kept(assignment, members, held)
        if present is None or busiest_bytes(chosen.moves) <= SMALL_BYTES:
            return self._assignment(chosen), None
        moves = self._moves(chosen.plan, kept_layers(present, chosen.plan.holdings(), held))
        return present, self._assignment(replace(chosen, moves=moves))

    def foresee(self, generation: Generation, member: str) -> None:
        """Have plans made for losses that this member would have to plan for, if that takes long. Returns at once."""
        if self._foresight is None or generation.assignment is None:
            return
        lost = losses_to_foresee([each.id for each in generation.members], member, self._num_micro_batches)
        if not lost:
            self._foresight.forget()
            return
        self._foresight.begin(
            Order(
                generation=generation.number,
                lost=lost,
                plan=self._plan(generation.assignment),
                templates=self._templates,
                conditions=replace(self._conditions(generation), operation_s=0.0),  # nobody waits for these plans
            )
        )

    def _foreseen(
        self, before: Generation, members: list[str], held: Mapping[str, frozenset[int]]
    ) -> Reconfiguration | None:
        """Return the plan that was made in advance; None if another change than one loss has come, or none was made."""
        lost = {each.id for each in before.members} - set(members)
        if (
            self._foresight is None
            or before.assignment is None
            or len(lost) != 1
            or len(members) >= len(before.members)
        ):
            return None
        if any(held.get(each, frozenset()) != frozenset(before.assignment.layers_of(each)) for each in members):
            return None  # the plan before was not carried out to its end
        outcome = self._foresight.outcome(before.number, *lost)
        return outcome if isinstance(outcome, Reconfiguration) else None

    def _conditions(self, generation: Generation) -> Conditions:
        return Conditions(
            tolerate=self._tolerate,
            num_micro_batches=self._num_micro_batches,
            expected_s=self._experience.expected_s(now=time.monotonic()),
            bytes_per_s=self._experience.bytes_per_s,
            form_s=self._experience.form_s,
            hosts={each.id: each.host for each in generation.members},
            divide_layers=False,
            split_backward=self._split_backward,
            operation_s=OPERATION_S,
        )

    def _changed(
        self, before: Assignment, members: list[str], held: Mapping[str, frozenset[int]], conditions: Conditions
    ) -> Reconfiguration:
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
        limits = {place: limit for each in chosen.shared for place, limit in each.limits.items()}
        alike = {(each.template, each.num_micro_batches) for each in chosen.plan.pipelines}
        usual = {key: executed_in_flight(*key, self._templates) for key in alike}
        assignment = Assignment(
            num_layers=self._templates.profile.num_layers,
            pipelines=tuple(
                _assigned(each, index, usual[each.template, each.num_micro_batches], limits)
                for index, each in enumerate(chosen.plan.pipelines)
            ),
            moves=tuple(
                LayerMove(first=each.layer, end=each.layer + 1, source=each.source, destination=each.destination)
                for each in chosen.moves
            ),
            policy=chosen.policy.value,
            iteration_s=chosen.plan.iteration_s,
            tolerates=chosen.plan.tolerates,
            needed=0 if chosen.plan.tolerates >= self._tolerate else (self._tolerate + 1) * self._templates.smallest,
            idle=chosen.plan.idle,
            reroutes=chosen.plan.reroutes,
            orders=tuple(_orders(chosen)),
        )
        return with_busy(assignment, self._templates.profile)

    def _plan(self, assignment: Assignment) -> Plan:
        return Plan(
            pipelines=tuple(self._pipeline(each, assignment) for each in assignment.pipelines),
            iteration_s=assignment.iteration_s,
            tolerates=assignment.tolerates,
            reroutes=assignment.reroutes,
            idle=assignment.idle,
        )

    def _pipeline(self, assigned: AssignedPipeline, assignment: Assignment) -> Pipeline:
        """Return it as an instance of our template, or of the proposer's if that has cut elsewhere."""
        template = self._foreign(assigned, assignment)
        size = len(assigned.members)
        if size in self._templates.sizes:
            ours = self._templates.template(size)
            if [each.first for each in ours.stages] == [each.first for each in template.stages]:
                template = ours
        return Pipeline(template=template, members=assigned.members, num_micro_batches=assigned.num_micro_batches)

    def _foreign(self, assigned: AssignedPipeline, assignment: Assignment) -> Template:
        """Return what pipelines that are cut like this one have in common, so that they can compute for each other."""
        alike = [each for each in assignment.pipelines if each.starts == assigned.starts]
        ends = (*assigned.starts[1:], self._templates.profile.num_layers)
        return Template(
            num_nodes=len(assigned.members),
            stages=tuple(
                Stage(first=first, end=end, node=node)
                for node, (first, end) in enumerate(zip(assigned.starts, ends, strict=True))
            ),
            num_micro_batches=max(each.num_micro_batches for each in alike),
            iteration_s=0.0,
            max_in_flight=tuple(map(min, zip(*(each.max_in_flight for each in alike), strict=True))),
            schedule=assigned.schedule,
            recompute=assigned.recompute,
        )


def _of_lost(before: Generation, generation: Generation) -> set[int]:
    """Return the micro-batches of the generation's step that members had to compute who are lost."""
    if before.assignment is None:
        return set()
    shares = StepShares(before.assignment, before.remaining if before.step == generation.step else None)
    lost = set(before.assignment.members).difference(each.id for each in generation.members)
    return {number for member in lost for number in shares.computed_by(member)}


def _assigned(
    pipeline: Pipeline, index: int, usual: Sequence[int], limits: Mapping[tuple[int, int], int]
) -> AssignedPipeline:
    """``usual``: micro-batches in flight by stage. ``limits``: by pipeline and stage, where members also compute for
    other pipelines.
    """
    template = pipeline.template
    assert [each.node for each in template.stages] == list(range(template.num_nodes)), "a stage on each node"
    return AssignedPipeline(
        members=pipeline.members,
        starts=tuple(each.first for each in template.stages),
        num_micro_batches=pipeline.num_micro_batches,
        max_in_flight=tuple(limits.get((index, stage), most) for stage, most in enumerate(usual)),
        schedule=template.schedule,
        recompute=template.recompute,
    )


def _orders(chosen: Reconfiguration) -> Iterator[SharedOrder]:
    """Number the micro-batches of simulated steps as the step does: pipeline after pipeline."""
    counts = [each.num_micro_batches for each in chosen.plan.pipelines]
    begins = list(accumulate(counts, initial=0))
    for step in chosen.shared:
        for (pipeline, stage), operations in step.simulated().items():
            numbered = ((each.kind, begins[each.pipeline] + each.micro_batch) for each in operations)
            yield SharedOrder(
                pipeline=pipeline,
                stage=stage,
                operations=tuple(number if kind is Kind.FORWARD else ~number for kind, number in numbered),
            )
