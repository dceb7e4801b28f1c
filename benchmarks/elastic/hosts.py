"""Losses of whole hosts and of agents. A host is an agent and all that it has started, killed in one go."""

from __future__ import annotations

import time

from multiworld.bench.report import Bound, Line

from .comparison import Comparison, Outcome
from .job import OURS, OURS_PLAIN, TORCHRUN, Job, Side, TrialFailed
from .journal import Formation
from .recovery import Setting, try_fault

__all__ = ["STORE_S", "agent_killed", "node_killed", "node_replaced", "store_killed"]

PER_NODE = 2
NODE_S, STORE_S, BEYOND_START_S = 3.0, 5.0, 1.0
ORPHANS_S = 1.0
ORPHANS_CAP_S = 10.0
BEYOND_START = "replacement's worker begun until all reduced"
OTHERS_GO_ON = "agent killed until the others go on"
SIDES = (OURS, OURS_PLAIN, TORCHRUN)
ONE_OF_TWO = Setting(nnodes="1:2", num_nodes=2, per_node=PER_NODE, lost=PER_NODE, left=PER_NODE)
REPLACED = Setting(nnodes="2", num_nodes=2, per_node=PER_NODE, lost=PER_NODE, left=2 * PER_NODE)
ONE_OF_THREE = Setting(nnodes="1:3", num_nodes=3, per_node=1, lost=1, left=2)


def node_killed(alternations: int, cap_s: float) -> list[Line]:
    """From the loss of one of two hosts, elastic 1:2, to the next all_reduce of the other's workers."""

    def trial(side: Side) -> Outcome:
        return try_fault(side, ONE_OF_TWO, _kill_last, cap_s).outcome()

    comparison = Comparison("node of two killed, 1:2", SIDES, cap_s=cap_s)
    comparison.run(trial, alternations)
    return comparison.lines(_on_both(NODE_S))


def node_replaced(alternations: int, cap_s: float) -> list[Line]:
    """From the loss of one of two hosts, while another is started, to the next all_reduce of all workers."""

    def replace(job: Job, before: Formation) -> float:
        at = _kill_last(job, before)
        job.start_node()
        return at

    def trial(side: Side) -> Outcome:
        recovery = try_fault(side, REPLACED, replace, cap_s)
        replacement = recovery.job.nodes[-1]
        begun = [entry.at for entry in recovery.job.journal.entries if entry["node"] == replacement.name]
        return recovery.outcome(more={BEYOND_START: recovery.after.complete_at - min(begun)})

    comparison = Comparison("node of two killed and replaced", SIDES, cap_s=cap_s)
    comparison.run(trial, alternations)
    return comparison.lines({}, {BEYOND_START: Bound.at_most(BEYOND_START_S)})


def store_killed(alternations: int, cap_s: float) -> list[Line]:
    """From the loss of the host that coordinates and serves the store, one of three, to the next all_reduce of two."""

    def trial(side: Side) -> Outcome:
        return try_fault(side, ONE_OF_THREE, lambda job, _: job.nodes[0].kill(), cap_s).outcome()

    comparison = Comparison("host of the store killed, of three", SIDES, cap_s=cap_s)
    comparison.run(trial, alternations)
    return comparison.lines(_on_both(STORE_S))


def agent_killed(alternations: int, cap_s: float) -> list[Line]:
    """From SIGKILL of one of two agents alone to the end of its workers; then the others go on as without that host."""

    def trial(side: Side) -> Outcome:
        gone_s: list[float] = []

        def kill_agent(job: Job, _: Formation) -> float:
            at = job.nodes[-1].kill_agent()
            left = job.nodes[-1].wait_gone(ORPHANS_CAP_S)
            if left:
                raise TrialFailed(f"{side.name}: {len(left)} orphans are left after {ORPHANS_CAP_S:g} s")
            gone_s.append(time.monotonic() - at)
            return at

        recovery = try_fault(side, ONE_OF_TWO, kill_agent, cap_s)
        return recovery.outcome(seconds=gone_s[0], more={OTHERS_GO_ON: recovery.seconds})

    comparison = Comparison("agent killed until its workers are gone", SIDES, cap_s=ORPHANS_CAP_S)
    comparison.run(trial, alternations)
    return comparison.lines(_on_both(ORPHANS_S), {OTHERS_GO_ON: Bound.at_most(NODE_S)})


def _kill_last(job: Job, _: Formation) -> float:
    return job.nodes[-1].kill()


def _on_both(limit_s: float) -> dict[str, Bound]:
    return {side.name: Bound.at_most(limit_s) for side in (OURS, OURS_PLAIN)}
