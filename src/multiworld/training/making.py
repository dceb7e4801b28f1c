"""Make the engine of a job from what its program has handed over."""

from __future__ import annotations

from .agreed import agreed
from .data.base import StepLoader
from .engine.buffers import Buffers
from .engine.computing import Computing
from .engine.each_step import EachStep
from .engine.engine_parts import engine_parts
from .engine.gradients import Gradients
from .engine.observers import RecoveryObserver, StepObserver
from .engine.reduction import Reduction, SumReduction, TreeReduction
from .engine.services import Services
from .engine.shares import Shares
from .engine.synchronization import Synchronization
from .engine.trainer import Trainer
from .options import TrainingOptions
from .parts import TrainedParts, digest_of
from .recovery.state_parts import check_parts
from .recovery.team import Team
from .state import TrainingState
from .sync.outer import make_outer_step
from .sync.reduction import LocalReduction
from .sync.rounds import Rounds
from .sync.strategies import DiLoCo, LocalSGD


def make_trainer(
    team: Team,
    state: TrainingState,
    parts: TrainedParts,
    loader: StepLoader,
    observer: StepObserver,
    recoveries: RecoveryObserver,
    options: TrainingOptions,
    sync: LocalSGD | DiLoCo | None,
    world_size: int,
) -> tuple[Trainer, Gradients]:
    """Raises TypeError that names a part of the state which cannot be sent to others."""
    check_parts({name: part.state_dict() for name, part in state.parts.items()})
    parameters = parts.parameters
    gradients = Gradients(list(parameters.values()), list(parameters), separate=options.exact)
    checkpoint = None if options.checkpoint is None else options.checkpoint.agreed
    more = {"checkpoint": checkpoint, "sync": None if sync is None else sync.key}
    digest = digest_of({**agreed(parts, state, loader, options, options.batch), **more})
    services = Services()
    shares = Shares(
        loader.num_micro_batches,
        batch=options.batch,
        replica_size=options.replica_size,
        full_size=world_size // options.replica_size,
    )
    if sync is None:
        reduction: Reduction = TreeReduction() if options.exact else SumReduction()
        buffers = Buffers(list(parts.buffers.values()), separate=options.exact)
        seed = options.seed if options.exact else None
        computing = Computing(team, gradients, buffers, reduction, loader, services, seed=seed)
    else:
        computing = Computing(team, gradients, Buffers([]), LocalReduction(), loader, services, alone=True)
    engine = engine_parts(team, state, loader, services, observer, recoveries)
    synchronization: Synchronization
    if sync is None:
        synchronization = EachStep(engine, computing, shares)
    else:
        outer = make_outer_step(sync, parts.modules)  # now, as its anchors are what the program has loaded
        state.add("outer", outer)
        synchronization = Rounds(engine, computing, shares, sync, outer)
    trainer = Trainer(engine, synchronization, digest=digest)
    if all(part is not loader for part in state.parts.values()):
        state.add("data", loader)  # one of the program's own
    return trainer, gradients
