"""The frame of a trial: a job works, a fault happens to it, it works again, and ends; and what that took."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .comparison import Outcome
from .job import Job, Side, TrialFailed, choose_rank, restarted
from .journal import Formation

__all__ = ["RESTARTED", "Fault", "Recovery", "Setting", "recover", "signal_worker", "try_fault"]

RESTARTED = "healthy workers that were started again"

Fault = Callable[[Job, Formation], float]
"""Does something to a job whose workers are those of a formation; returns the monotonic time just before."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A job before a fault, and after. ``lost``: how many workers the fault takes; ``left``: how many then reduce.

    ``settle_s``: how long the job is left alone before the fault.
    """

    nnodes: str = "1"
    num_nodes: int = 1
    per_node: int
    lost: int
    left: int
    settle_s: float = 0.0


@dataclass(frozen=True)
class Recovery:
    """From the fault (``at``) to the next all_reduce of all that are left."""

    job: Job
    before: Formation
    at: float
    after: Formation
    lost: int

    @property
    def seconds(self) -> float:
        return self.after.complete_at - self.at

    @property
    def wrong(self) -> dict[str, int]:
        side = self.job.side
        if side.is_ours and side.restarts_all:  # its policy starts all of them again
            return {}
        return {RESTARTED: restarted(self.before, self.after) - self.lost}

    def outcome(self, *, seconds: float | None = None, more: Mapping[str, float] | None = None) -> Outcome:
        """``seconds``: what the trial was about, if not that."""
        return Outcome(self.seconds if seconds is None else seconds, self.wrong, more or {})


def try_fault(side: Side, setting: Setting, fault: Fault, cap_s: float) -> Recovery:
    """Raises TrialFailed if the job does not work again within ``cap_s``, or does not end."""
    with Job(side, nnodes=setting.nnodes, nproc=setting.per_node) as job:
        job.start(setting.num_nodes)
        before = job.await_world(setting.num_nodes * setting.per_node, 0.0)
        if setting.settle_s:
            time.sleep(setting.settle_s)
        job.await_steps(before)
        recovery = recover(job, before, fault, lost=setting.lost, left=setting.left, cap_s=cap_s)
        job.await_steps(recovery.after)
        job.end()
        return recovery


def signal_worker(signum: int) -> Fault:
    """Return the fault of a random worker to which that signal is sent."""

    def strike(_: Job, formation: Formation) -> float:
        victim = formation.pids[choose_rank(formation.world_size)]
        at = time.monotonic()
        os.kill(victim, signum)
        return at

    return strike


def recover(job: Job, before: Formation, fault: Fault, *, lost: int, left: int, cap_s: float) -> Recovery:
    """Do it to a job that works, and wait until it works again."""
    at = fault(job, before)
    after = job.await_world(left, at, cap_s)
    if restarted(before, after) < lost:
        raise TrialFailed(f"{job.side.name}: what the fault should have taken works on")
    return Recovery(job, before, at, after, lost)
