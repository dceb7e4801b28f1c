"""What the other parts of a job do for its engine: checkpoints, copies in memory, health, measured times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..health.timing import StepTimer
from .facts import MoreFacts
from .health import NoHealth, StepHealth
from .memory import Memory, NoMemory
from .restarting import Restart


@dataclass(kw_only=True)
class Services:
    """The job puts its parts in before the first step. Without them a training saves nothing, and never leaves.

    ``saved_step``: of the newest checkpoint that this member can read, -1 without one. ``restart``: called on the
    member whose state all begin with: it loads the newest checkpoint, if there is one. ``is_leaving``: whether this
    member was asked to leave. ``own_facts``: further fields of this member's ``Facts`` of a step.
    ``may_skip_optimizer``: a gradient scaler may leave the optimizer out in a step.
    """

    saved_step: Callable[[], int] = lambda: -1
    restart: Restart = lambda most: None
    memory: Memory = field(default_factory=NoMemory)
    is_leaving: Callable[[], bool] = lambda: False
    own_facts: Callable[[int], MoreFacts] = lambda step: {}
    health: StepHealth = field(default_factory=NoHealth)
    timer: StepTimer = field(default_factory=StepTimer)
    may_skip_optimizer: bool = False
