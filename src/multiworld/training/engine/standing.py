"""How this member stands: whether it has the state of the training, where it is with it, and what it heard last."""

from __future__ import annotations

from ..recovery.team import Team
from ..recovery.transfer import Receiving
from ..state import TrainingState
from .decision import Outcome
from .facts import Facts
from .step import Step, StepPhase


class Standing:
    """Belongs to the training thread."""

    def __init__(self, team: Team, state: TrainingState) -> None:
        self._team, self._state = team, state
        self.has_state = False
        self.held_step = 0
        """The step of this process's own state, while it has not got the state of the others."""
        self.receiving: Receiving | None = None
        """The state on its way to this member; None if it waits for none."""
        self.facts: list[Facts] = []
        """Those that all members have heard last; empty if this member did not hear them."""
        self.outcome = Outcome()
        """What they mean."""
        self.step: Step | None = None
        """The one that the program holds."""
        self.has_left = False

    @property
    def is_computing(self) -> bool:
        return self.step is not None and self.step.phase is StepPhase.COMPUTING

    @property
    def is_last(self) -> bool:
        """Whether no step is left to do, for those who have the state."""
        limit = self._team.membership.limit
        return limit is not None and self._state.step >= limit

    @property
    def is_over(self) -> bool:
        return self.has_state and self.is_last

    def lose_state(self) -> None:
        """The others are ahead: what this process holds is of no use, unless all of them are lost."""
        if self.has_state:
            self.held_step = self._state.step
        self.has_state = False
