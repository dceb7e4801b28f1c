"""What does not change while a job runs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from .options import DEFAULT_SHUTDOWN_S, MORE_RESTARTS, RestartBudget, RestartPolicy


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """``policy`` and ``budget``: what is started again when a worker fails, and how often.

    ``default_budget``: of this command, if its user gave none; None: as ``Restarts`` has it.
    """

    min_nodes: int
    max_nodes: int
    policy: RestartPolicy = RestartPolicy.AUTO
    budget: RestartBudget | None = None
    default_budget: RestartBudget | None = None
    join_timeout_s: float = 600.0
    """How long to wait for hosts while there are fewer than ``min_nodes``."""
    cut_off_s: float = 600.0
    """How long a host that is cut off from most others waits for them, without workers."""
    last_call_s: float = 3.0
    """How long to wait for more than ``min_nodes`` at first."""
    shutdown_s: float = DEFAULT_SHUTDOWN_S
    resume_s: float = 3.0
    """How long a coordinator that takes over waits for the agents it knows of."""
    more_restarts: str = MORE_RESTARTS
    """How the user of this command has more of them."""
