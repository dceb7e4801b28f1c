"""What a trainer and its synchronization work with together."""

from __future__ import annotations

from dataclasses import dataclass

from ..data.base import StepLoader
from ..recovery.team import Team
from ..state import TrainingState
from .beginning import Beginning
from .observers import RecoveryObserver, StepObserver
from .services import Services
from .standing import Standing
from .transfers import Transfers


@dataclass(frozen=True, kw_only=True)
class EngineParts:
    """Of one member."""

    team: Team
    state: TrainingState
    loader: StepLoader
    services: Services
    standing: Standing
    transfers: Transfers
    beginning: Beginning
    observer: StepObserver
    recoveries: RecoveryObserver


def engine_parts(
    team: Team,
    state: TrainingState,
    loader: StepLoader,
    services: Services,
    observer: StepObserver,
    recoveries: RecoveryObserver,
) -> EngineParts:
    """Make those that follow from the others."""
    standing, transfers = Standing(team, state), Transfers(team, state, recoveries.state_received)
    return EngineParts(
        team=team,
        state=state,
        loader=loader,
        services=services,
        standing=standing,
        transfers=transfers,
        beginning=Beginning(team, state, standing, transfers, services),
        observer=observer,
        recoveries=recoveries,
    )
