"""A training in pipelines whose plans and recoveries are those that the planner makes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import TooFewNodesError
from ..planning.changes.conditions import Conditions, Policy
from ..planning.changes.reconfiguration import CheckpointNeeded, reconfigure, start
from ..planning.plan import Pipeline, Plan
from ..planning.templates import Templates
from .replay import Standing

POLICIES = (Policy.REINSTANTIATE, Policy.BORROW, Policy.MERGE, Policy.REROUTE)


class Planned:
    """``policy``: the only one that is used where it is possible; None: the best one each time.

    ``restore_s``: what it takes to load a checkpoint, if a layer was lost with all that had it.
    """

    takes_joins = True

    def __init__(
        self, templates: Templates, conditions: Conditions, *, policy: Policy | None = None, restore_s: float
    ) -> None:
        allowed = frozenset(POLICIES) if policy is None else frozenset({policy})
        self._templates, self._conditions = templates, replace(conditions, allowed=allowed)
        self._restore_s, self._plan = restore_s, Plan(pipelines=(), iteration_s=0.0)
        self.name = "multiworld" if policy is None else f"only {policy.value}"
        self.samples_per_step = conditions.num_micro_batches * templates.profile.micro_batch
        self.num_chosen: dict[Policy, int] = {}
        """How often each policy was used."""

    def begun(self, nodes: Sequence[str]) -> Standing:
        try:
            self._plan = start(nodes, self._templates, self._conditions).plan
        except TooFewNodesError:
            return self._stopped()
        return Standing(rate=self._rate())

    def lost(self, nodes: Sequence[str], gone: Sequence[str]) -> Standing:
        return self._changed(nodes, gone)

    def joined(self, nodes: Sequence[str]) -> Standing:
        return replace(self._changed(nodes, ()), kept=1.0)

    def _changed(self, nodes: Sequence[str], gone: Sequence[str]) -> Standing:
        if not self._plan.pipelines:
            return replace(self.begun(nodes), pause_s=self._conditions.form_s + self._restore_s, kept=0.0)
        present = {*self._plan.members, *self._plan.idle}
        new = [node for node in nodes if node not in present]
        try:
            outcome = reconfigure(
                self._plan, templates=self._templates, conditions=self._conditions, lost=gone, joined=new
            )
        except TooFewNodesError:
            return self._stopped()
        if isinstance(outcome, CheckpointNeeded):
            self._plan = outcome.restart.plan
            pause_s = self._conditions.form_s + self._restore_s
            return Standing(rate=self._rate(), pause_s=pause_s, kept=0.0, from_checkpoint=True)
        whole = [each for each in self._plan.pipelines if not set(gone).intersection(each.members)]
        kept = sum(each.num_micro_batches for each in whole) / self._conditions.num_micro_batches
        fill = max((_fill(each) for each in whole), default=0.0)
        self._plan = outcome.plan
        self.num_chosen[outcome.policy] = self.num_chosen.get(outcome.policy, 0) + 1
        return Standing(rate=self._rate(), pause_s=outcome.cost.change_s, kept=kept, fill=fill)

    def _stopped(self) -> Standing:
        """Fewer nodes than hold the model: the training waits, and begins with the last checkpoint."""
        self._plan = Plan(pipelines=(), iteration_s=0.0)
        return Standing(rate=0.0, kept=0.0, from_checkpoint=True)

    def _rate(self) -> float:
        return self.samples_per_step / self._plan.iteration_s


def _fill(pipeline: Pipeline) -> float:
    """Return as which part of a step the pipeline fills, if its stages take equally long."""
    fill = len(pipeline.template.stages) - 1
    return fill / (pipeline.num_micro_batches + fill)


class Restarted:
    """A training that starts anew from its last checkpoint at each loss, and at each join. For comparison.

    ``restart_s``: from the loss until it computes again.
    """

    takes_joins = True
    name = "checkpoint and restart"

    def __init__(self, templates: Templates, conditions: Conditions, *, restart_s: float) -> None:
        self._templates, self._conditions, self._restart_s = templates, conditions, restart_s
        self.samples_per_step = conditions.num_micro_batches * templates.profile.micro_batch

    def begun(self, nodes: Sequence[str]) -> Standing:
        try:
            plan = start(nodes, self._templates, self._conditions).plan
        except TooFewNodesError:
            return Standing(rate=0.0)
        return Standing(rate=self.samples_per_step / plan.iteration_s)

    def lost(self, nodes: Sequence[str], gone: Sequence[str]) -> Standing:
        return replace(self.begun(nodes), pause_s=self._restart_s, kept=0.0, from_checkpoint=True)

    def joined(self, nodes: Sequence[str]) -> Standing:
        """It saves before it stops, as nobody was lost."""
        return replace(self.begun(nodes), pause_s=self._restart_s)
