"""What happens in a training, as frozen records: for tests, metrics, progress lines, reports and pages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..wire.messages import message
from ..world.launcher.pipelines import PipelineRanks


@dataclass(frozen=True, kw_only=True)
class TrainingEvent:
    """Base of all. ``at``: Unix time in seconds, for people and for merging, never for decisions.

    ``member`` is the id of the process that saw it, ``rank`` its rank at the launcher (or as given to ``join``).
    ``generation`` counts memberships of the training, from 1; 0 before the first.
    """

    job: str
    member: str
    rank: int
    generation: int
    at: float = field(default_factory=time.time)


@message("training_started")
@dataclass(frozen=True, kw_only=True)
class TrainingStarted(TrainingEvent):
    """This process begins, or goes on, with step ``step`` (of ``total``, if known)."""

    step: int
    total: int | None = None
    pid: int = 0


@message("step_committed")
@dataclass(frozen=True, kw_only=True)
class StepCommitted(TrainingEvent):
    """A step counts. ``values``: the means of what was recorded. ``took_s``: from the beginning of its first try.

    ``seconds``: this rank's own time by part (``data``, ``forward``, ``backward``, ``optimizer``, ``cpu wait``,
    ``wait``). What a rank waits for others is ``wait``; for a processor that other processes had, ``cpu wait``.
    ``redone``: how many micro-batches were computed a second time, of all ranks.
    """

    step: int
    values: Mapping[str, float]
    num_samples: int
    replicas: int
    took_s: float
    seconds: Mapping[str, float]
    redone: int = 0


@message("steps_committed")
@dataclass(frozen=True, kw_only=True)
class StepsCommitted(StepCommitted):
    """``num_steps`` steps up to ``step``, in a record that was thinned: ``values`` are means, all else are sums."""

    num_steps: int


@message("member_lost")
@dataclass(frozen=True, kw_only=True)
class MemberLost(TrainingEvent):
    """A member is gone. ``cause``: the name of the error class; ``detail``: the evidence. Opens a recovery.

    The cause ``ProgramError``: no process was lost, but the program ended the training on that rank.
    """

    lost_rank: int
    step: int
    cause: str
    detail: str


@message("recovery_phase")
@dataclass(frozen=True, kw_only=True)
class RecoveryPhase(TrainingEvent):
    """A phase of a recovery ended now. ``name``: ``detect``, ``agree``, ``form``, ``transfer`` or ``redo``.

    With pipelines also ``plan``, a part of ``agree`` on the member that proposes, and ``move`` for ``transfer``.
    """

    name: str
    step: int
    took_s: float


@message("membership_changed")
@dataclass(frozen=True, kw_only=True)
class MembershipChanged(TrainingEvent):
    """The replicas of generation ``generation`` go on together with step ``step``.

    ``ranks``: of all members in their order: those that have been there before come first. ``came`` and ``gone``:
    ranks, too. ``members``: ids, in the order of ``ranks``: a launcher that numbers its hosts anew may give a newcomer
    the rank that another member had when it came.
    """

    step: int
    ranks: tuple[int, ...]
    came: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    members: tuple[str, ...] = ()


@message("pipelines_changed")
@dataclass(frozen=True, kw_only=True)
class PipelinesChanged(TrainingEvent):
    """From step ``step`` on the members form these pipelines: published just before ``MembershipChanged``.

    ``num_layers``: of the model. ``policy``: how the pipelines follow from those before. ``iteration_s``: what a step
    takes as predicted; 0: it is not. ``num_moved``: layers that members need and do not have. ``tolerates``: any so
    many members may be lost at once. ``needed``: if the job asked for more, how many members that needs; else 0.
    """

    step: int
    num_layers: int
    pipelines: tuple[PipelineRanks, ...]
    policy: str = ""
    iteration_s: float = 0.0
    num_moved: int = 0
    tolerates: int = 0
    needed: int = 0


@message("state_received")
@dataclass(frozen=True, kw_only=True)
class StateReceived(TrainingEvent):
    """This process took the state of step ``step`` from ``sources`` peers."""

    step: int
    size_bytes: int
    sources: int
    took_s: float


@message("checkpoint_saved")
@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(TrainingEvent):
    """The checkpoint of step ``step`` (so many were committed) is whole, and has the name ``path``.

    ``stall_s``: how long the training thread was held for it. ``took_s``: from then until it was whole.
    """

    step: int
    path: str
    size_bytes: int
    stall_s: float
    took_s: float


@message("checkpoint_failed")
@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(TrainingEvent):
    """There is no checkpoint of step ``step``, for a ``reason``. The training goes on; older ones are not touched."""

    step: int
    reason: str


@message("checkpoint_loaded")
@dataclass(frozen=True, kw_only=True)
class CheckpointLoaded(TrainingEvent):
    """This process took the state of step ``step`` from the checkpoint ``path``."""

    step: int
    path: str
    size_bytes: int
    took_s: float


@message("copy_saved")
@dataclass(frozen=True, kw_only=True)
class CopySaved(TrainingEvent):
    """This process's part of the state of step ``step`` is in its host's memory, and in those of ``copies`` others.

    ``stall_s``: how long the training thread was held for it. ``took_s``: from then until all had it.
    """

    step: int
    size_bytes: int
    copies: int
    stall_s: float
    took_s: float


@message("copy_failed")
@dataclass(frozen=True, kw_only=True)
class CopyFailed(TrainingEvent):
    """Not all copies of this process's part of step ``step`` were made, for a ``reason``. The training goes on."""

    step: int
    reason: str


@message("copy_loaded")
@dataclass(frozen=True, kw_only=True)
class CopyLoaded(TrainingEvent):
    """This process took its part of the state of step ``step`` from memory.

    ``source``: ``own`` is what a process with this part wrote, ``copy`` what another one kept. ``holder``: the rank
    that read it, on whose host it was.
    """

    step: int
    source: str
    holder: int
    size_bytes: int
    took_s: float


@message("training_ended")
@dataclass(frozen=True, kw_only=True)
class TrainingEnded(TrainingEvent):
    """This process is done with all steps, leaves (``reason`` says why), or fails with ``error``."""

    step: int
    reason: str = ""
    error: str = ""


@message("slow_rank")
@dataclass(frozen=True, kw_only=True)
class SlowRank(TrainingEvent):
    """A rank needs ``factor`` times as long as the others for its own work; most is lost in ``part``.

    ``part_factor``: how many times as long it needs for that part. Reported once until it has recovered, by the first
    member only.
    """

    step: int
    slow_rank: int
    factor: float
    part: str
    part_factor: float


@message("slow_rank_recovered")
@dataclass(frozen=True, kw_only=True)
class SlowRankRecovered(TrainingEvent):
    """A rank that was slow is as fast as the others again."""

    step: int
    slow_rank: int


@message("replicas_diverged")
@dataclass(frozen=True, kw_only=True)
class ReplicasDiverged(TrainingEvent):
    """Replicas differ in what must be equal. ``name``: the first tensor that differs, of ``num_names``.

    ``wrong``: the ranks that differ from the majority. Empty: there is no majority, as with two replicas; the ranks
    ``differing`` were compared. ``removed``: those that give up their state and come back as newcomers.
    """

    step: int
    name: str
    num_names: int
    wrong: tuple[int, ...]
    differing: tuple[int, ...]
    removed: tuple[int, ...]


@message("miscomputed")
@dataclass(frozen=True, kw_only=True)
class Miscomputed(TrainingEvent):
    """A rank computed a micro-batch twice, and the gradient of ``name`` was another one the second time.

    ``is_removed``: it gives up its state. If most ranks miscompute, nobody does: the program is not deterministic.
    """

    step: int
    wrong_rank: int
    name: str
    is_removed: bool


@message("bad_step")
@dataclass(frozen=True, kw_only=True)
class BadStep(TrainingEvent):
    """Gradients or values of a step are not finite, or its loss is a spike. ``reason`` says which.

    ``action``: ``report`` (nothing is done), ``raise``, ``skip`` or ``rollback``. ``back_to``: with the last, the step
    whose state all have again; the data goes on.
    """

    step: int
    reason: str
    action: str
    back_to: int | None = None


@message("leave_asked")
@dataclass(frozen=True, kw_only=True)
class LeaveAsked(TrainingEvent):
    """This member was asked to go, and does so after step ``step``. ``seconds_left``: as a notice said, if one did."""

    step: int
    reason: str
    seconds_left: float | None = None
