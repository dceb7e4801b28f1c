"""What members of a training write into the store, and read there: who is there, what they have, who goes on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...wire.messages import message, sparse
from ..copies.plan import MemoryPlan, Snapshot
from ..engine.facts import Facts
from ..pipeline.assignment import Assignment
from ..pipeline.partial_step import NOTHING, PartialStep, Remaining


@message("present")
@dataclass(frozen=True, kw_only=True)
class Presence:
    """A process is there: its key ends with it. ``beat`` grows while it is in no world."""

    id: str
    beat: int = 0


@dataclass(frozen=True, kw_only=True)
class Member:
    """One process of the training. ``rank``: the launcher's, or what ``join`` was given, unless another member has it:
    in a generation each one has its own. ``host``: which machine.

    ``replica``: the id of its replica, if that has several processes. They agree on it when they meet, so a replica
    that returns has another one.
    """

    id: str
    rank: int
    host: str
    pid: int = 0
    replica: str = ""

    @property
    def unit(self) -> str:
        """What fails, comes and leaves as one: the replica, or this process alone."""
        return self.replica or self.id


@dataclass(frozen=True, kw_only=True)
class LostMember:
    """Whom a member has lost, and why: ``cause`` is the name of the error class. ``is_proven``: it can't go on alone.

    Proven is what has died, left, or is stopped or silent on the same host: it will learn that it is out before it can
    do anything. A host that cannot be reached may go on without us.
    """

    id: str
    cause: str
    detail: str = ""
    is_proven: bool = True


@message("announcement")
@sparse
@dataclass(frozen=True, kw_only=True)
class Announcement:
    """A member wants to be in the next generation. It stands below the number of the present one.

    ``step``: the next step that it has to do. ``done``: its finished micro-batches of that step. ``has_state``:
    False of a newcomer. ``facts``: those of step ``step - 1``, if it heard them all. ``is_complete``: all members'
    gradients of ``step`` are there, but not all facts. ``digest``: of the settings that must be equal.
    ``saved_step``: that of the newest checkpoint which it can read, -1 without one. ``snapshots``: those in memory
    that it can read. ``looked_at``: the buffers that ``step`` looks at, None: all. ``is_over``: no step is left to
    do. ``raised``: the program ended with this error there (type and message), ``traceback`` with it. ``layers``: of
    a model that is trained in pipelines, those whose state is here; ``num_layers``: how many it has, 0 for replicas;
    ``is_whole``: there is memory for all of them here, so this member can begin with the model that its program made.
    ``partial``: what this member has there of ``step``.
    """

    member: Member
    step: int = 0
    done: tuple[int, ...] = ()
    has_state: bool = True
    is_complete: bool = False
    facts: tuple[Facts, ...] = ()
    lost: tuple[LostMember, ...] = ()
    digest: str = ""
    saved_step: int = -1
    snapshots: tuple[Snapshot, ...] = ()
    looked_at: tuple[int, ...] | None = None
    is_over: bool = False
    raised: str = ""
    traceback: str = ""
    layers: tuple[int, ...] = ()
    num_layers: int = 0
    is_whole: bool = False
    partial: PartialStep = NOTHING


@message("training_over")
@dataclass(frozen=True, kw_only=True)
class TrainingOver:
    """All ``step`` steps of the training are done; generation ``generation`` did the last one."""

    step: int
    generation: int


@message("generation")
@sparse
@dataclass(frozen=True, kw_only=True)
class Generation:
    """The members that go on together. The first one to write it decides.

    ``step``: the step that comes next. ``stateless``: the ids of those members that have to get the state first, from
    ``sources``.
    ``done``: finished micro-batches of ``step``, by id. ``looked_at``: the buffers that ``step`` looks at, None: all.
    ``facts``: of step ``step - 1``, for members that had all gradients of it, and not all facts. ``is_restart``: nobody
    has any state, so all begin from a checkpoint or anew.
    ``memory``: they begin with what is in the memory of their hosts instead.
    ``was_restored``: it was put into a new store from memory, so its members may still have to come there.
    ``digest``: of the settings of all members. ``layers``: who holds which layers of a model that is trained in
    pipelines, by id; ``assignment``: who holds and computes what from now on. ``lost_at``: some layer was left with
    nobody before this step, so they begin from a checkpoint, or anew if it is 0; -1: no layer was. ``partial``: what
    members have there of ``step``, by id, until it is planned; then ``remaining`` says what is left to do of it.
    ``coming``: the assignment of a later generation, whose moves are carried out beside the steps of this one.
    """

    number: int
    members: tuple[Member, ...]
    step: int = 0
    stateless: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    done: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    looked_at: tuple[int, ...] | None = None
    facts: tuple[Facts, ...] = ()
    is_restart: bool = False
    memory: MemoryPlan | None = None
    was_restored: bool = False
    digest: str = ""
    layers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    assignment: Assignment | None = None
    lost_at: int = -1
    partial: Mapping[str, PartialStep] = field(default_factory=dict)
    remaining: Remaining | None = None
    coming: Assignment | None = None

    def place_of(self, member: str) -> int:
        """Return the rank of a member in this generation's world; -1 if it is not in it."""
        return next((place for place, each in enumerate(self.members) if each.id == member), -1)
