"""How the files of snapshots in shared memory are called, and which of them nobody needs any more. Pure.

::

    multiworld-copy.JOB.RUN.PID-START.STEP.SHARD-OF.LABEL.MEMBER.own        whole
                                                              .copy        of another process's shard, whole
                                                              .own.part    being written, or left by a death; never read

``JOB`` is made of what stays equal when the job is started again, ``RUN`` of the agent that started the processes, and
``PID`` and ``START`` name that agent's process: when it is gone, so is the run on this host.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from .plan import Snapshot

PREFIX, PART = "multiworld-copy", ".part"
_NAME = re.compile(
    r"multiworld-copy\.(\w+)\.(\w+)\.(\d+)-(\d+)\.(\d+)\.(\d+)-(\d+)\.(\w+)\.(\w+)\.(own|copy)(\.part)?", re.ASCII
)


def hashed(*parts: str) -> str:
    """Return what stands for these in a name."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Of one job on one host. ``pid`` and ``start_time``: of the process that starts the job's processes."""

    job: str
    run: str
    pid: int
    start_time: int

    @property
    def prefix(self) -> str:
        return f"{PREFIX}.{self.job}."


@dataclass(frozen=True, kw_only=True)
class FileName:
    """``member``: the id of the process that wrote the file, or the copy."""

    run: Run
    step: int
    shard: int
    num_shards: int
    label: str
    member: str
    is_copy: bool = False
    is_part: bool = False

    def __str__(self) -> str:
        run, kind = self.run, "copy" if self.is_copy else "own"
        what = f"{self.step}.{self.shard}-{self.num_shards}.{self.label}.{self.member}.{kind}"
        return f"{run.prefix}{run.run}.{run.pid}-{run.start_time}.{what}{PART if self.is_part else ''}"

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot(step=self.step, label=self.label, shard=self.shard, is_copy=self.is_copy)


def parse(name: str) -> FileName | None:
    """Return what a file's name says, or None if it is no snapshot's."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    job, run, pid, start_time, step, shard, num_shards, label, member, kind, part = match.groups()
    return FileName(
        run=Run(job=job, run=run, pid=int(pid), start_time=int(start_time)),
        step=int(step),
        shard=int(shard),
        num_shards=int(num_shards),
        label=label,
        member=member,
        is_copy=kind == "copy",
        is_part=part is not None,
    )


def of_job(names: Iterable[str], job: str) -> list[FileName]:
    return [found for name in sorted(names) if (found := parse(name)) is not None and found.run.job == job]


def readable(files: Sequence[FileName], run: Run, num_shards: int) -> list[FileName]:
    """Return the whole ones of this run, newest first, and of equals those that are no copies first."""
    ours = [each for each in files if each.run.run == run.run and each.num_shards == num_shards and not each.is_part]
    return sorted(ours, key=lambda each: (-each.step, each.label, each.shard, each.is_copy))


def of_dead_runs(files: Sequence[FileName], run: Run, lives: Callable[[int, int], bool]) -> list[FileName]:
    """Return what other runs of this job left behind. ``lives``: whether a process with that pid and start runs."""
    return [each for each in files if each.run.run != run.run and not lives(each.run.pid, each.run.start_time)]


def outdated(files: Sequence[FileName], run: Run, step: int, members: Collection[str]) -> list[FileName]:
    """Return those of this run that members which are gone left behind, and that nobody needs any more.

    ``step``: every shard has a whole snapshot of it now. ``members``: ids of those that are there; they write over
    their own.
    """
    left = [each for each in files if each.run.run == run.run and each.member not in members]
    return [each for each in left if each.step < step or each.is_part]


def all_but(files: Sequence[FileName], run: Run, label: str) -> list[FileName]:
    """Return those of this run that the training does not go on with."""
    return [each for each in files if each.run.run == run.run and (each.label != label or each.is_part)]
