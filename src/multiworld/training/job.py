"""What a program sees of its training: join, hand over model, optimizers and data, and iterate over steps."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from ..channel.registry import find_channel
from ..elastic.worker.places import place as launcher_place
from ..world.joining.join_request import check_request
from ..world.launcher.launched import most_processes
from ..world.launcher.process_link import process_link
from ..world.liveness import DEFAULT_LEASE_S
from ..world.manager import WorldManager
from ..world.processes.vitals import host_identity
from ..world.world import World
from .checkpoint.config import Checkpoint
from .copies.plan import check_copies
from .data.base import StepLoader
from .data.map_loader import MapLoader
from .data.opening import open_loader
from .data.recorder import CommitRecorder
from .data.stream_loader import StreamLoader
from .engine.decision import Outcome
from .engine.facts import Facts
from .engine.step import Step
from .engine.trainer import Trainer
from .errors import StepError
from .events import (
    LeaveAsked,
    StepCommitted,
    TrainingEnded,
    TrainingStarted,
)
from .health.backward_start import BackwardStart
from .health.bad_steps import OnBadStep
from .health.leaving import LeaveRequest, LeaveSignals, Notice, NoticePoller, default_signals
from .health.monitor import HealthMonitor
from .health.options import Health, Replay
from .health.timing import step_timer
from .loop_exit import is_left_by_error
from .making import make_trainer
from .options import TrainingOptions
from .parts import TrainedParts
from .pipeline.assignment import Assignment
from .pipeline.parts import PipelinedParts
from .pipeline.pipe import Pipe
from .planning.installed import check_installed
from .publishing import Listener, Publisher
from .recovery.agreement import Rules
from .recovery.membership import Membership, MembershipOptions, OverError, new_member
from .recovery.records import Generation
from .recovery.team import Team
from .recovery_events import RecoveryEvents
from .replica.layout import check_replica_size
from .replica.replica import Replica
from .saving import Saving
from .settings import settings_of
from .state import Stateful, TrainingState
from .sync.allowed import check_sync
from .sync.strategies import DiLoCo, LocalSGD
from .view.view import View

if TYPE_CHECKING:
    from .pipeline.model import Loss
    from .pipeline.opened import Opened

logger = logging.getLogger(__name__)

Module = TypeVar("Module", bound=nn.Module)
AnyOptimizer = TypeVar("AnyOptimizer", bound=Optimizer)


def join(
    name: str = "training",
    *,
    min_replicas: int | None = None,
    batch: str = "constant",
    exact: bool = False,
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    store: str | None = None,
    token: str | None = None,
    backend: str = "auto",
    lease_s: float = DEFAULT_LEASE_S,
    join_timeout_s: float = 600.0,
    gather_s: float = 10.0,
    checkpoint: Checkpoint | None = None,
    record: str | os.PathLike[str] | None = None,
    progress: bool = True,
    replica_size: int = 1,
    on_bad_step: OnBadStep | None = None,
    replay: Replay | None = None,
    health: Health | None = None,
    leave_on: Sequence[signal.Signals] | None = None,
    notices: Sequence[Notice] = (),
    tolerate: int = 0,
) -> Job:
    """Join a training, and return this process's part of it. Under the launcher the name is enough.

    ``min_replicas``: with fewer the training waits for others. ``batch``: ``"constant"``: a lost replica's
    micro-batches are computed by the others; ``"drop"``: they are given up in the step of the loss; ``"shrink"``: a
    step has fewer micro-batches as long as a replica is missing. ``exact``: the result has the same bits after
    any failures, and for any number of replicas; ``seed`` is then that of each micro-batch's random numbers. ``rank``,
    ``world_size`` and ``store`` are the launcher's, or must be given. ``lease_s``: a replica that shows no sign of life
    for so long is lost. ``join_timeout_s``: how long the training waits for ``min_replicas``; ``gather_s``: how long
    its first step waits for all replicas. ``checkpoint``: take checkpoints, and begin with the newest one.
    ``record``: a folder in which each process records what happens, for ``multiworld train report``; by default below
    the launcher's ``--log-dir``, if it has one. ``progress``: one of the processes shows on standard error how the
    training stands. The configuration file of ``multiworld train`` says what holds where this call does not.
    ``replica_size``: how many processes hold one copy of the model together, see ``Job.replica``; ranks 0 to
    ``replica_size - 1`` are the first replica.

    ``on_bad_step``: what all replicas do when gradients or recorded values are not finite, or a loss is a spike:
    ``"raise"`` BadStepError, ``"skip"`` the optimizers in this step, or go back (``"rollback"``) to a copy of the state
    in memory and on with the next data; None: say so, and go on. ``replay``: compute a micro-batch twice now and then.
    ``health``: what else is watched. ``leave_on``: signals that mean ``job.leave()``; by default SIGTERM and
    SIGINT under the launcher, if the program does not handle them. ``notices``: functions that return the seconds
    which are left for this process, or None; they are asked now and then on a thread, and mean ``job.leave()``, too.
    ``tolerate``: of ``Job.pipeline``: each layer is held by one process more, so that any so many may be lost at once.
    """
    settings = settings_of()
    min_replicas = settings.min_replicas if min_replicas is None else min_replicas
    if checkpoint is None and settings.checkpoint is not None:
        said = settings.checkpoint
        default = Checkpoint(said.dir)
        checkpoint = replace(
            default,
            every_steps=default.every_steps if said.every_steps is None else said.every_steps,
            keep=default.keep if said.keep is None else said.keep,
        )
    options = TrainingOptions(
        name=name,
        min_replicas=1 if min_replicas is None else min_replicas,
        batch=batch,
        exact=exact,
        seed=seed,
        backend=backend,
        lease_s=lease_s,
        join_timeout_s=join_timeout_s,
        gather_s=gather_s,
        checkpoint=checkpoint,
        record=settings.record if record is None else os.fspath(record),
        progress=progress,
        replica_size=replica_size,
        on_bad_step=on_bad_step,
        replay=replay,
        health=Health() if health is None else health,
        tolerate=tolerate,
    )
    request = check_request(name, rank, world_size, store, backend, join_timeout_s, None, False)
    find_channel(request.backend, request.device)  # here: the first world is formed in the first step
    place = launcher_place()
    if place is not None:
        rank = place.rank if rank is None else rank
        world_size = place.world_size if world_size is None else world_size
    elif rank is None or world_size is None or store is None:
        raise TypeError(
            "training.join() needs rank, world_size and store: only a process that `multiworld run` started may leave "
            "them out"
        )
    job = Job(options, rank=rank, world_size=world_size, store=store, token=token)
    try:
        job.leave_on(default_signals(is_launched=place is not None) if leave_on is None else leave_on, notices)
    except BaseException:
        job.close(gracefully=False)
        raise
    return job


class Job:
    """This process's part of a training. Made by ``join``; used from one thread. A context manager."""

    def __init__(
        self, options: TrainingOptions, *, rank: int, world_size: int, store: str | None, token: str | None
    ) -> None:
        self.options, self.world_size = options, world_size
        self.state = TrainingState()
        self._parts: TrainedParts | PipelinedParts = TrainedParts()
        self._opened: Opened | None = None
        self._sync: LocalSGD | DiLoCo | None = None
        self._hooks: list[Any] = []
        self._loaders: list[MapLoader | StreamLoader] = []
        self._recorder: CommitRecorder | None = None
        self._leave = LeaveRequest()
        self._has_told_of_leave = False
        self._asked_by: list[LeaveSignals | NoticePoller] = []
        self._backward_start: BackwardStart | None = None
        self._trainer: Trainer | None = None
        self._closed = False
        size = options.replica_size
        check_replica_size(size, world_size)
        if options.checkpoint is not None:
            check_copies(options.checkpoint.copies, size, world_size)
        member = new_member(rank, host_identity().hex())
        link = process_link()
        self._view = View(
            rank=rank,
            member=member.id,
            record=options.record,
            stream=sys.stderr if options.progress else None,
            tell=None if link is None else link.tell,
        )
        self._manager = WorldManager(token=token, lease_s=options.lease_s)
        self.replica = Replica(options.name, rank, size, partial(self._join_world, store))
        """The processes that hold one copy of the model together; this one alone, unless ``replica_size`` was given."""
        if size > 1:
            member = replace(member, replica=self._id_of_replica(member.id))
        rules = Rules(
            min_members=options.min_replicas * size,
            expected=world_size,
            gather_s=options.gather_s,
            replica_size=size,
            return_s=options.join_timeout_s,
        )
        member_options = MembershipOptions(
            name=options.name, rules=rules, lease_s=options.lease_s, join_timeout_s=options.join_timeout_s, store=store
        )
        self._membership = Membership(self._manager, member, member_options)
        self._team = Team(
            self._manager, self._membership, self.replica, name=options.name, backend=options.backend, store=store
        )
        self._publisher = Publisher(options.name, self._membership, self._view.take)
        self._publish = self._publisher.publish
        self._saving = Saving(options, self.replica, member=member.id, state=self.state, publish=self._publish)
        self._is_complete = False

    @property
    def rank(self) -> int:
        """The launcher's, or what ``join`` was given. Where another member has that, the smallest that is free: a
        launcher numbers its processes anew when hosts are lost, and members keep the rank that they have.
        """
        return self._membership.member.rank

    def _join_world(self, store: str | None, name: str, rank: int, size: int) -> World:
        timeout_s = self.options.join_timeout_s
        return self._manager.blocking.join(name, rank, size, store, self.options.backend, timeout_s)

    def _id_of_replica(self, own: str) -> str:
        """Meet the other processes of this replica. Raises SetupError if they do not come."""
        try:
            return self.replica.agree_on_id(own)
        except BaseException:
            self._manager.close(timeout_s=1.0)
            self._view.close()
            raise

    def __repr__(self) -> str:
        return f"<Job {self.options.name!r} rank {self.rank} step {self.state.step}>"

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        self.close(gracefully=error is None)

    # ---- what is trained

    def replicate(self, module: Module, *, sync: LocalSGD | DiLoCo | None = None) -> Module:
        """Train this module together with the other replicas. Returns it; its parameters must not change in number.

        Every rank builds it in the same way; all begin with the values of one rank. ``sync``: replicas compute their
        steps alone, and meet once in many of them; by default their gradients are reduced in each step. Raises
        ValueError if the options of ``join`` or another module's ``sync`` do not allow it.
        """
        self._check_not_begun("replicate")
        if isinstance(self._parts, PipelinedParts):
            raise ValueError("job.replicate() was called after job.pipeline(): a job has replicas or pipelines")
        number = len(self._parts.modules)
        if number and sync != self._sync:
            raise ValueError(f"sync={sync!r}, but another module has sync={self._sync!r}: give all of them the same")
        check_sync(sync, self.options)
        self._sync = sync
        self._parts.add_module(module)
        self.state.add(f"model.{number}", module)
        return module

    def pipeline(
        self,
        model: nn.Module | None = None,
        *,
        stages: Sequence[nn.Module] | None = None,
        example: Any,
        loss: Loss,
        memory_bytes: int | None = None,
        device: torch.device | str | None = None,
        schedule: str = "auto",
    ) -> Pipe:
        """Train this model in several pipelines: it is cut into layers, and each process trains some of them.

        Every rank builds the same model. ``example``: a micro-batch as the loader gives it. ``loss``: called with the
        model's output and the target: the last of a batch that is a tuple, or the batch itself; returns the mean over
        the samples. ``stages``: modules, one after the other, in place of a model that is cut. ``memory_bytes``: of
        each process, which decides how few of them can hold the model; None: a device's own, or no limit. ``device``:
        on which this process trains its layers; None: where the model is. A model that is larger than one device is
        built on the CPU, and only a process's own layers go to its device. ``schedule``: "1f1b"; "zero-bubble", with
        which gradients of weights are computed where a process would wait otherwise; or "auto", the faster one for each
        size of pipelines.

        Raises CutError for a model that cannot be cut, with the place; PlanError if there are too few processes, also
        with all that the launcher may start (``--nnodes 1:2``): the first step waits for those that are lacking;
        ValueError for a device or a schedule that does not exist.
        """
        self._check_not_begun("pipeline")
        if isinstance(self._parts, PipelinedParts) or self._parts.modules:
            raise ValueError("a job trains one model in pipelines, and no replicas beside it")
        check_installed()
        from .pipeline.opening import open_pipeline  # with planning, which needs NumPy

        place = launcher_place()
        opened = self._opened = open_pipeline(
            model,
            stages,
            example,
            loss,
            self.options,
            num_nodes=self.world_size,
            most_nodes=max(self.world_size, most_processes()),
            memory_bytes=memory_bytes,
            device=device,
            schedule=schedule,
            is_replacement=place is not None and place.restarts > 0,
        )
        self._parts = opened.parts
        return Pipe(opened.parts, opened.templates, self._hook_optimizer, self._present_assignment)

    def _present_assignment(self) -> tuple[Assignment, str] | None:
        generation = self._membership.generation
        if generation is None or generation.assignment is None:
            return None
        return generation.assignment, self._membership.member.id

    def optimizer(self, optimizer: AnyOptimizer) -> AnyOptimizer:
        """Have the optimizer run only when a step counts. Returns it. There may be several."""
        self._check_not_begun("optimizer")
        if isinstance(self._parts, PipelinedParts):
            raise ValueError("job.optimizer() was called after job.pipeline(): call pipe.optimizer(factory)")
        self._parts.add_optimizer(optimizer)
        self._hook_optimizer(optimizer)
        self.state.add(f"optimizer.{len(self._parts.optimizers) - 1}", optimizer)
        return optimizer

    def _hook_optimizer(self, optimizer: Optimizer) -> None:
        self._check_not_begun("optimizer")
        self._hooks.append(optimizer.register_step_pre_hook(self._before_optimizer))
        self._hooks.append(optimizer.register_step_post_hook(self._after_optimizer))

    def track(self, **parts: Stateful) -> None:
        """Keep the state of schedulers, EMAs, scalers and metrics: objects with ``state_dict`` and ``load_state_dict``.

        Newcomers get this state, and checkpoints have it.
        """
        self._check_not_begun("track")
        for name, part in parts.items():
            self.state.add(f"tracked.{name}", part)

    def loader(
        self, dataset: Any, *, global_batch: int, ledger: str | os.PathLike[str] | None = None, **options: Any
    ) -> StepLoader:
        """Return the data of all replicas together, in steps of ``global_batch`` samples; the job closes it.

        ``options``: as of ``training.open_loader``: ``micro_batch``, ``shuffle``, ``seed``, ``num_workers``,
        ``sampler``, ``collate_fn``, ``epochs``, ``drop_last``, ``pin_memory``, ... ``ledger``: a folder in which each
        member writes down the sample ids of each step that counts; ``training.check_ledger`` reads it. Raises
        ValueError or TypeError for what can't be trained with.
        """
        self._check_not_begun("loader")
        loader = open_loader(dataset, global_batch=global_batch, **options)
        replicas = self.world_size // self.options.replica_size
        if loader.num_micro_batches < replicas and not isinstance(self._parts, PipelinedParts):
            loader.close()
            raise ValueError(
                f"global_batch={global_batch} has {loader.num_micro_batches} micro-batches of {loader.micro_batch}, "
                f"fewer than the {replicas} replicas: raise global_batch to {replicas * loader.micro_batch} at least, "
                "or lower micro_batch"
            )
        self._loaders.append(loader)
        name = "loader" if len(self._loaders) == 1 else f"loader.{len(self._loaders) - 1}"
        self.state.add(name, loader)
        if ledger is not None:
            self._recorder = CommitRecorder(ledger, self._membership.member.id, loader)
        return loader

    def steps(self, loader: StepLoader, total: int | None = None) -> Iterator[Step]:
        """Yield step after step, until ``total`` are committed or the data is over.

        After a loss the same step may come again; see ``Step``. Ends early if this replica is asked to leave. ``break``
        leaves the training, and the others go on. An error of the program between two steps is this replica's own: it
        is lost then.
        """
        if self._trainer is not None:
            raise StepError("job.steps() was called before; one job has one loop over its steps")
        self._parts.check_complete()
        if self._recorder is not None and self._sync is not None:
            raise ValueError("a ledger is of steps that all replicas commit together: leave out ledger, or sync")
        trainer = self._trainer = self._new_trainer(loader)
        error = reason = ""
        try:
            self._publish(TrainingStarted, step=self.state.step, total=total, pid=os.getpid())
            loader.expect(self.state.step, ())  # its workers start now, and not when the others wait for a newcomer
            yield from trainer.steps(total)
            self._is_complete = not trainer.standing.has_left
            reason = self._leave.reason or "it was asked to leave" if trainer.standing.has_left else ""
        except OverError as over:
            reason = f"all {over.step} steps were done before this process came"
            logger.warning("training %r: %s; another training needs another name", self.options.name, reason)
            trainer.services.restart(None)  # the program may want the result
        except GeneratorExit:
            error = trainer.failure or self.replica.failure
            if not error and is_left_by_error(sys._getframe().f_back):
                error = "the program raised an error between two steps"
            reason = "" if error else "the program left the loop over its steps"
            raise
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise
        finally:
            self._saving.end(is_complete=not error and not reason, has_failed=bool(error))
            self._publish(TrainingEnded, step=self.state.step, reason=reason, error=error)
            self._leave_training(gracefully=not error)
            if error or self.replica.size == 1:
                self.close(gracefully=not error)

    def _new_trainer(self, loader: StepLoader) -> Trainer:
        parts = self._parts
        parts.begin()
        recoveries = RecoveryEvents(self._publisher, self._team, lease_s=self.options.lease_s)
        if isinstance(parts, PipelinedParts):
            assert self._opened is not None
            num_nodes = max(self.world_size, self._opened.templates.smallest)  # fewer wait for those that are lacking
            trainer = self._opened.make_trainer(
                self._team, self.state, loader, self, recoveries, self.options, num_nodes
            )
            watched: list[nn.Parameter] = []
        else:
            trainer, gradients = make_trainer(
                self._team, self.state, parts, loader, self, recoveries, self.options, self._sync, self.world_size
            )
            watched = gradients.parameters
        services = trainer.services
        services.is_leaving = self._is_leaving
        services.may_skip_optimizer = any(isinstance(part, torch.amp.GradScaler) for part in self.state.parts.values())
        if watched:
            services.timer = step_timer(watched[0].device)
            self._backward_start = BackwardStart(watched, services.timer)
        services.health = self._new_health(has_scaler=services.may_skip_optimizer)
        self._saving.attach(services)
        trainer.ending.num_wanted = self._num_wanted
        return trainer

    def _num_wanted(self) -> int:
        place = launcher_place()
        return self.world_size if place is None else place.world_size

    @property
    def is_first(self) -> bool:
        """Whether this is the first of the present replicas: the one that prints, logs and saves what is wanted once.

        Another one is the first as soon as that one is lost. Before the first step, rank 0 is.
        """
        generation = self._membership.generation
        if generation is None:
            return self.rank == 0 and not self._closed  # one that came too late has nothing to write
        return generation.members[0] == self._membership.member

    def _new_health(self, *, has_scaler: bool) -> HealthMonitor:
        health = self.options.health
        if isinstance(self._parts, PipelinedParts):  # stages differ in what they hold, and in what they compute
            health = replace(health, compare_every=0, slow_ranks=None)
        elif self._sync is not None:  # replicas differ between two meetings; only their times are compared
            health = replace(health, compare_every=0)
        return HealthMonitor(
            health,
            self.options.on_bad_step,
            self.options.replay,
            parameters=self._parts.parameters,
            buffers=self._parts.buffers,
            optimizers=self._parts.optimizers,
            state=self.state,
            publish=self._publish,
            rank=lambda: self.rank,
            has_scaler=has_scaler,
            shard=None if self.replica.size == 1 else self.replica.rank,
        )

    def leave(self, reason: str = "job.leave() was called") -> None:
        """Leave the training after the present step, and hand everything over: ``steps`` ends then. Any thread."""
        self._leave.ask(reason)

    def leave_on(self, signals: Sequence[signal.Signals] = (), notices: Sequence[Notice] = ()) -> None:
        """Leave when one of these signals comes, or one of these notices; see ``join``. Signals: main thread only."""
        if signals:
            self._asked_by.append(LeaveSignals(signals, self._leave))
        if notices:
            self._asked_by.append(NoticePoller(notices, self._leave))

    def _is_leaving(self) -> bool:
        if self._leave and not self._has_told_of_leave:  # here, as a signal handler may not
            self._has_told_of_leave = True
            logger.info("this replica leaves after step %d: %s", self.state.step, self._leave.reason)
            self._publish(
                LeaveAsked, step=self.state.step, reason=self._leave.reason, seconds_left=self._leave.seconds_left
            )
        return bool(self._leave)

    def save(self) -> None:
        """Take a checkpoint after the present step, too. One replica's call is enough. Any thread.

        Raises StepError without ``checkpoint=``, or if replicas compute their steps alone: they are saved when they
        have met.
        """
        if not self._saving.has_place:
            raise StepError("job.save() was called, and nothing says where to: training.join(..., checkpoint=...)")
        if self._sync is not None:
            raise StepError(f"job.save() was called under sync={self._sync!r}: there every_steps alone decides")
        self._saving.ask()

    def close(self, *, gracefully: bool = True) -> None:
        """Leave all worlds and release everything. Idempotent.

        The end of ``steps`` calls it, but not in a replica of several processes: its mesh is still needed, to gather
        the model for example.
        """
        self._leave_training(gracefully=gracefully)
        self.replica.close(gracefully=gracefully)
        self._manager.close(timeout_s=1.0)

    def _leave_training(self, *, gracefully: bool) -> None:
        if self._closed:
            return
        self._closed = True
        for hook in self._hooks:
            hook.remove()
        if self._backward_start is not None:
            self._backward_start.close()
        for asked_by in self._asked_by:
            asked_by.close()
        if self._trainer is not None:
            self._trainer.close()
            self._trainer.services.timer.close()
        if self._opened is not None:
            self._opened.close()
        self._saving.end(is_complete=False, has_failed=not gracefully)
        self._team.close(gracefully=gracefully)
        self._saving.close(is_complete=self._is_complete, has_failed=not gracefully)
        self._membership.close()
        for loader in self._loaders:
            loader.close()
        if self._recorder is not None:
            self._recorder.close()
        self._view.close()

    # ---- events

    def listen(self, listener: Listener) -> None:
        """Call with each event from now on, on the training thread: it must be quick, and not raise."""
        self._publisher.listen(listener)

    # ---- what the engine tells of its steps (see ``StepObserver``)

    def step_committed(self, step: Step, generation: Generation, facts: Sequence[Facts], outcome: Outcome) -> None:
        if self._recorder is not None and self._trainer is not None:
            by_replica, num_restarts = facts[:: self.replica.size], self._trainer.num_restarts
            self._recorder.commit(step.index, generation.number, by_replica, num_restarts=num_restarts)
        link = process_link()
        if link is not None:
            link.progress()
        self._saving.committed(self._team, generation, facts, outcome)

    def step_applied(self, step: Step) -> None:
        trainer = self._trainer
        assert trainer is not None
        self._publish(
            StepCommitted,
            step=step.index,
            values=step.values,
            num_samples=step.num_samples,
            replicas=len(self._team.generation.members) // self.replica.size,
            took_s=trainer.took_s,
            seconds=dict(trainer.seconds),
            redone=trainer.num_redone,
        )
        self._saving.applied(trainer.savable_since)

    # ---- checks

    def _check_not_begun(self, what: str) -> None:
        if self._trainer is not None:
            raise StepError(f"job.{what}() was called after job.steps(): hand everything over before the first step")

    def _before_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._closed:
            return
        if self._trainer is None:
            raise StepError("optimizer.step() was called before job.steps(): call it inside of 'with step:'")
        self._trainer.check_optimizer()
        self._parts.check_unchanged()

    def _after_optimizer(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._trainer is not None:
            self._trainer.optimizer_stepped()
