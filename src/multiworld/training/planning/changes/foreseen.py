"""Plans for each next single loss, made in advance: one at a time, between steps."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import PlanError
from ..plan import Plan
from ..template_set import TemplateSet
from .conditions import Conditions
from .reconfiguration import CheckpointNeeded, Reconfiguration, reconfigure

Outcome = Reconfiguration | CheckpointNeeded | PlanError


class Foreseen:
    """What follows from the loss of each member of ``plan``, which is the present one."""

    def __init__(self, plan: Plan, templates: TemplateSet, conditions: Conditions) -> None:
        self._plan, self._templates, self._conditions = plan, templates, conditions
        self._left = [*plan.members, *plan.idle][::-1]
        self._outcomes: dict[str, Outcome] = {}

    @property
    def is_complete(self) -> bool:
        return not self._left

    def make_next(self) -> bool:
        """Make the plan for one more member; return whether any are left."""
        if self._left:
            self.outcome(self._left[-1])
        return bool(self._left)

    def outcome(self, lost: str) -> Outcome:
        """Return what follows from this loss; made now if it has not been made yet. A PlanError is returned, too."""
        if lost not in self._outcomes:
            self._outcomes[lost] = self._made(lost)
            self._left.remove(lost)
        return self._outcomes[lost]

    @property
    def outcomes(self) -> Mapping[str, Outcome]:
        """Those that have been made, by lost member."""
        return self._outcomes

    def _made(self, lost: str) -> Outcome:
        try:
            return reconfigure(self._plan, lost=[lost], templates=self._templates, conditions=self._conditions)
        except PlanError as error:
            return error
