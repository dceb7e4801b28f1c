"""What a job does about copies in memory: when it takes a snapshot, who keeps it, and how it begins with one again.

The training thread copies its shard between two steps. All else is done on threads that belong to that snapshot: the
hash, the name that makes it whole, and the copies to and from partners over the generation's world. If the world breaks
meanwhile, this snapshot has no copies, and the one before stays.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from ...errors import MultiworldError
from ...wire.messages import decode, encode
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import run_in_thread
from ...world.launcher.launched import launched
from ...world.processes.procfs import process_start_time
from ...world.processes.vitals import host_identity
from ...world.world import World
from ..engine.facts import Facts
from ..errors import TrainingError
from ..events import CopyFailed, CopyLoaded, CopySaved
from ..recovery.records import Generation
from ..state import TrainingState
from .carrying import keep_copy, send_copy
from .memory import CopyDamagedError, HostMemory, MemoryFile, Written, write
from .names import FileName, Run, hashed
from .plan import NEVER, CopyFacts, MemoryPlan, Snapshot, is_due, kept_for, label_of, partners, to_keep
from .restoring import Fetched, fetch

logger = logging.getLogger(__name__)

NUM_FILES = 2  # the newest that all have, and the one that is being written
CLOSE_S = 5.0

Publish = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Round:
    """One snapshot of all members. Places are those of ``world``. ``keep``: the step that must not be written over."""

    world: World
    step: int
    label: str
    keep: int
    partners: tuple[int, ...]
    kept_for: tuple[tuple[int, str], ...]
    """Place and id of the members whose copies this one keeps."""


@dataclass
class _Taken:
    """A snapshot on its way."""

    step: int
    began: float
    stall_s: float
    size_bytes: int
    saving: Operation[None]
    keeping: list[Operation[None]] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.saving.done and all(each.done for each in self.keeping)

    def wait(self, timeout_s: float) -> None:
        """Its world is over, so its threads end soon."""
        until = time.monotonic() + timeout_s
        for each in (self.saving, *self.keeping):
            ended = threading.Event()
            each.add_callback(lambda _, ended=ended: ended.set())  # type: ignore[misc]
            ended.wait(max(0.0, until - time.monotonic()))


class CopyKeeper:
    """Of one process. All calls on the training thread. It is the ``Memory`` of the engine."""

    def __init__(
        self,
        memory: HostMemory,
        *,
        copies: int,
        every_steps: int,
        shard: int,
        num_shards: int,
        member: str,
        state: TrainingState,
        publish: Publish,
    ) -> None:
        """``publish`` takes a class of ``TrainingEvent`` and its fields, but for those that all have."""
        self._memory, self._copies, self._every_steps = memory, copies, every_steps
        self._shard, self._num_shards, self._member = shard, num_shards, member
        self._state, self._publish = state, publish
        self._own = [MemoryFile(memory.directory) for _ in range(NUM_FILES)]
        self._kept: dict[str, list[MemoryFile]] = {}
        self._begun = NEVER
        self._whole: tuple[int, ...] = ()
        self._taken: _Taken | None = None
        self._round: Round | None = None
        self._cleaned = NEVER
        self._fetched: Fetched | None = None
        memory.remove_of_dead_runs(lambda pid, start_time: process_start_time(pid) == start_time)

    # ---- while the training runs

    def own_facts(self) -> CopyFacts:
        self._poll()
        return CopyFacts(begun=self._begun, is_busy=self._taken is not None, whole=self._whole)

    def heard(self, world: World, generation: Generation, facts: Sequence[Facts]) -> None:
        """Hear the facts of all members, by place, of a step that counts; ``after_step`` follows once it was applied.

        All members call it alike. One that has no state yet takes no part.
        """
        self._round = None
        members = generation.members
        ready = [place for place, each in enumerate(facts) if each.is_ready]
        me = generation.place_of(self._member)
        said = {place: facts[place].copies or CopyFacts() for place in ready}
        by_shard: dict[int, list[CopyFacts]] = {}
        for place in ready:
            by_shard.setdefault(place % self._num_shards, []).append(said[place])
        keep = to_keep(by_shard)
        if keep > self._cleaned:
            self._cleaned = keep
            self._memory.remove_outdated(keep, {each.id for each in members})
        step = self._state.step
        if me not in ready or not is_due(step, self._every_steps, list(said.values())):
            return
        hosts, number = [members[place].host for place in ready], ready.index(me)
        sources = [ready[each] for each in kept_for(number, hosts, self._copies)]
        self._round = Round(
            world=world,
            step=step,
            label=label_of(step, [as_heard(each) for each in facts]),
            keep=keep,
            partners=tuple(ready[each] for each in partners(number, hosts, self._copies)),
            kept_for=tuple((place, members[place].id) for place in sources),
        )

    def after_step(self) -> None:
        """The step was applied: take the snapshot that is due, if one is."""
        due, self._round = self._round, None
        if due is None:
            return
        began = time.monotonic()
        self._begun = due.step
        file, written, problem = _file_for(self._own, due.keep), None, ""
        name = self._name(due, self._shard)
        if file.name is not None:  # it is written over now
            overwritten = file.name.step
            self._whole = tuple(step for step in self._whole if step != overwritten)
        try:
            written = write(file, name, self._state.capture())
        except Exception as error:  # what a part's state_dict holds may be anything: the training itself is well
            file.remove()
            problem = f"{type(error).__name__}: {error}"
        stall_s, size_bytes = time.monotonic() - began, 0 if written is None else written.memory.numel()
        saving = run_in_thread(lambda: _save(due, file, written, problem), "multiworld-training-copy")
        self._taken = _Taken(due.step, began, stall_s, size_bytes, saving)
        kept = {member for _, member in due.kept_for}
        for member in self._kept.keys() - kept:
            self._let_go(member, due.keep)
        for place, member in due.kept_for:
            files = self._kept.setdefault(member, [MemoryFile(self._memory.directory) for _ in range(NUM_FILES)])
            copy, copied = _file_for(files, due.keep), self._name(due, place % self._num_shards, is_copy=True)
            keeping = run_in_thread(_keeping(due.world, place, copy, copied), "multiworld-training-keep")
            self._taken.keeping.append(keeping)

    def close(self, *, is_complete: bool, has_failed: bool) -> None:
        """The worlds are over. After a failure all files stay, as the training may need them; else this one's go.

        ``is_complete``: all steps are done, so nobody needs any.
        """
        if self._taken is not None:
            self._taken.wait(CLOSE_S)
        files = [*self._own, *(file for files in self._kept.values() for file in files)]
        for file in files:
            if has_failed:
                file.forget()
            else:
                file.remove()
        if is_complete:
            self._memory.remove_all_but("")

    def _poll(self) -> None:
        taken = self._taken
        if taken is None or not taken.is_done:
            return
        self._taken = None
        error = taken.saving.error
        if error is not None:
            logger.warning("the snapshot of step %d has no copies: %s", taken.step, error)
            self._publish(CopyFailed, step=taken.step, reason=str(error))
            return
        self._whole = (*self._whole, taken.step)
        self._publish(
            CopySaved,
            step=taken.step,
            size_bytes=taken.size_bytes,
            copies=self._copies,
            stall_s=taken.stall_s,
            took_s=time.monotonic() - taken.began,
        )

    def _let_go(self, member: str, keep: int) -> None:
        """A member sends its copies elsewhere now. What others may need stays until there is something newer."""
        files = self._kept[member]
        for file in files:
            if file.name is None or file.name.step < keep:
                file.remove()
        if all(file.name is None for file in files):
            del self._kept[member]

    def _name(self, due: Round, shard: int, *, is_copy: bool = False) -> FileName:
        return FileName(
            run=self._memory.run,
            step=due.step,
            shard=shard,
            num_shards=self._num_shards,
            label=due.label,
            member=self._member,
            is_copy=is_copy,
        )

    # ---- where a training begins (see ``Memory``)

    def snapshots(self) -> tuple[Snapshot, ...]:
        return self._memory.snapshots()

    def fetch(self, world: World, generation: Generation, plan: MemoryPlan) -> bool:
        self._fetched = None
        try:
            self._fetched = fetch(self._memory, world, generation, plan, self._member, self._state.capture())
        except (CopyDamagedError, ValueError) as error:  # ValueError: of another model
            logger.warning("step %d cannot be taken from memory: %s", plan.step, error)
            return False
        return True

    def load(self) -> None:
        fetched, self._fetched = self._fetched, None
        if fetched is None:
            return
        self._state.restore(fetched.state)
        self._publish(
            CopyLoaded,
            step=self._state.step,
            source="copy" if fetched.is_copy else "own",
            holder=fetched.holder_rank,
            size_bytes=fetched.size_bytes,
            took_s=time.monotonic() - fetched.began,
        )

    def failed(self, plan: MemoryPlan, sources: Collection[str]) -> None:
        for each in plan.servings:
            if each.source in sources and each.holder == self._member:
                self._memory.forget(plan.label, each.shard)

    def begins(self, plan: MemoryPlan | None) -> None:
        self._memory.remove_all_but("" if plan is None else plan.label)
        self._begun, self._whole, self._cleaned = NEVER, (), NEVER


def run_of(directory: str, name: str) -> Run:
    """Return the run of this process on this host. ``directory``: of the checkpoints; ``name``: of the job."""
    parent = os.getppid()
    start_time = process_start_time(parent) or 0
    launch = launched()
    run = f"{parent} {start_time}" if launch is None else launch.agent
    job = hashed(host_identity().hex(), str(os.getuid()), directory, name)
    return Run(job=job, run=hashed(run), pid=parent, start_time=start_time)


def as_heard(facts: Facts) -> bytes:
    """Return facts as every member has them: a whole number of this process is a fraction where it was decoded."""
    return encode(decode(Facts, encode(facts)))


class _NoCopyError(TrainingError):
    """A snapshot could not be written. Field: ``reason``."""


def _save(due: Round, file: MemoryFile, written: Written | None, problem: str) -> None:
    """Make a snapshot whole, then have the partners copy it. Raises what keeps it from having all its copies."""
    if written is not None:
        try:
            written.seal()
            file.end()
        except OSError as error:
            file.remove()
            written, problem = None, str(error)
    first: MultiworldError | None = None
    for place in due.partners:
        try:
            send_copy(due.world, place, None if written is None else written.memory)
        except MultiworldError as error:
            first = first or error
    if problem:
        raise _NoCopyError(problem)
    if first is not None:
        raise first


def _keeping(world: World, place: int, file: MemoryFile, name: FileName) -> Callable[[], None]:
    return lambda: keep_copy(world, place, file, name)


def _file_for(files: Sequence[MemoryFile], keep: int) -> MemoryFile:
    """Return the file to write next: the older one of those that do not hold the step to keep."""

    def order(file: MemoryFile) -> tuple[bool, int]:
        step = NEVER if file.name is None else file.name.step
        return step == keep and keep != NEVER, step

    return min(files, key=order)
