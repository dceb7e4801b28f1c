"""Make the engine of a training in pipelines from what its program has handed over."""

from __future__ import annotations

from ..agreed import agreed
from ..data.base import StepLoader
from ..engine.engine_parts import engine_parts
from ..engine.observers import RecoveryObserver, StepObserver
from ..engine.services import Services
from ..engine.trainer import Trainer
from ..options import TrainingOptions
from ..parts import digest_of
from ..recovery.state_parts import check_parts
from ..recovery.team import Team
from ..state import TrainingState
from .model import LayeredStage, Loss
from .parts import PipelinedParts
from .pipelined import Pipelined


def make_pipelined_trainer(
    team: Team,
    state: TrainingState,
    parts: PipelinedParts,
    loss: Loss,
    loader: StepLoader,
    observer: StepObserver,
    recoveries: RecoveryObserver,
    options: TrainingOptions,
) -> Trainer:
    """Raises TypeError that names a part of the state which cannot be sent to others."""
    check_parts({name: part.state_dict() for name, part in state.parts.items()})
    digest = digest_of(agreed(parts, state, loader, options, options.tolerate))
    engine = engine_parts(team, state, loader, Services(), observer, recoveries)
    model = LayeredStage(parts.model, loss, parts.device, seed=options.seed if options.exact else None)
    synchronization = Pipelined(engine, parts.holdings, model, exact=options.exact)
    trainer = Trainer(engine, synchronization, digest=digest)
    if all(part is not loader for part in state.parts.values()):
        state.add("data", loader)  # one of the program's own
    return trainer
