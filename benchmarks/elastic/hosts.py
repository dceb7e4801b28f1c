"""Losses of whole hosts and of agents. A host is an agent and all that it has started, killed in one go."""

from __future__ import annotations

import time

from multiworld.bench.bounds import Bound
from multiworld.bench.report import Line

from .comparison import Comparison, Outcome
from .job import OURS, OURS_PLAIN, TORCHRUN, Job, Side, TrialFailed, restarted

__all__ = ["agent_killed", "node_killed", "node_replaced", "store_killed"]

PER_NODE = 2
NODE_S, STORE_S, BEYOND_START_S = 3.0, 5.0, 1.0
ORPHANS_S = 1.0
ORPHANS_CAP_S = 10.0
RESTARTED = "healthy workers that were started again"


def node_killed(alternations: int, cap_s: float) -> list[Line]:
    """From the loss of one of two hosts, elastic 1:2, to the next all_reduce of the other's workers."""

    def trial(side: Side) -> Outcome:
        with Job(side, nnodes="1:2", nproc=PER_NODE) as job:
            job.start(2)
            before = job.await_world(2 * PER_NODE, 0.0)
            job.await_steps(before)
            at = job.nodes[1].kill()
            after = job.await_world(PER_NODE, at, cap_s)
            job.await_steps(after)
            outcome = Outcome(after.complete_at - at, _restarted(side, restarted(before, after) - PER_NODE))
            job.end()
            return outcome

    comparison = Comparison("node of two killed, 1:2", [OURS, OURS_PLAIN, TORCHRUN], cap_s=cap_s)
    comparison.run(trial, alternations)
    return comparison.lines({OURS.name: Bound.at_most(NODE_S), OURS_PLAIN.name: Bound.at_most(NODE_S)})


def node_replaced(alternations: int, cap_s: float) -> list[Line]:
    """From the loss of one of two hosts, while another is started, to the next all_reduce of all workers."""
    beyond: dict[str, list[float]] = {}

    def trial(side: Side) -> Outcome:
        with Job(side, nnodes="2", nproc=PER_NODE) as job:
            job.start(2)
            before = job.await_world(2 * PER_NODE, 0.0)
            job.await_steps(before)
            at = job.nodes[1].kill()
            replacement = job.start_node()
            after = job.await_world(2 * PER_NODE, at, cap_s)
            begun = [entry.at for entry in job.journal.entries if entry["node"] == replacement.name]
            beyond.setdefault(side.name, []).append(after.complete_at - min(begun))
            job.await_steps(after)
            outcome = Outcome(after.complete_at - at, _restarted(side, restarted(before, after) - PER_NODE))
            job.end()
            return outcome

    comparison = Comparison("node of two killed and replaced", [OURS, OURS_PLAIN, TORCHRUN], cap_s=cap_s)
    comparison.run(trial, alternations)
    late = Comparison("replacement's worker begun until all reduced", [OURS, OURS_PLAIN], cap_s=cap_s)
    late.seconds = {side.name: beyond.get(side.name) or [cap_s] for side in late.sides}
    bound = Bound.at_most(BEYOND_START_S)
    lines = late.lines({OURS.name: bound, OURS_PLAIN.name: bound})
    return [*comparison.lines({}), *(line for line in lines if line.unit)]


def store_killed(alternations: int, cap_s: float) -> list[Line]:
    """From the loss of the host that coordinates and serves the store, one of three, to the next all_reduce of two."""

    def trial(side: Side) -> Outcome:
        with Job(side, nnodes="1:3", nproc=1) as job:
            job.start(3)
            before = job.await_world(3, 0.0)
            job.await_steps(before)
            at = job.nodes[0].kill()
            after = job.await_world(2, at, cap_s)
            job.await_steps(after)
            outcome = Outcome(after.complete_at - at, _restarted(side, restarted(before, after) - 1))
            job.end()
            return outcome

    comparison = Comparison("host of the store killed, of three", [OURS, OURS_PLAIN, TORCHRUN], cap_s=cap_s)
    comparison.run(trial, alternations)
    return comparison.lines({OURS.name: Bound.at_most(STORE_S), OURS_PLAIN.name: Bound.at_most(STORE_S)})


def agent_killed(alternations: int, cap_s: float) -> list[Line]:
    """From SIGKILL of one of two agents alone to the end of its workers; then the others go on as without that host."""
    goes_on: dict[str, list[float]] = {}

    def trial(side: Side) -> Outcome:
        with Job(side, nnodes="1:2", nproc=PER_NODE) as job:
            job.start(2)
            before = job.await_world(2 * PER_NODE, 0.0)
            job.await_steps(before)
            at = job.nodes[1].kill_agent()
            left = job.nodes[1].wait_gone(ORPHANS_CAP_S)
            if left:
                raise TrialFailed(f"{side.name}: {len(left)} orphans are left after {ORPHANS_CAP_S:g} s")
            gone_s = time.monotonic() - at
            after = job.await_world(PER_NODE, at, cap_s)
            goes_on.setdefault(side.name, []).append(after.complete_at - at)
            outcome = Outcome(gone_s, _restarted(side, restarted(before, after) - PER_NODE))
            job.end()
            return outcome

    comparison = Comparison(
        "agent killed until its workers are gone", [OURS, OURS_PLAIN, TORCHRUN], cap_s=ORPHANS_CAP_S
    )
    comparison.run(trial, alternations)
    after = Comparison("agent killed until the others go on", [OURS, OURS_PLAIN], cap_s=cap_s)
    after.seconds = {side.name: goes_on.get(side.name) or [cap_s] for side in after.sides}
    gone, late = Bound.at_most(ORPHANS_S), Bound.at_most(NODE_S)
    lines = after.lines({OURS.name: late, OURS_PLAIN.name: late})
    return [
        *comparison.lines({OURS.name: gone, OURS_PLAIN.name: gone}),
        *(line for line in lines if line.unit),
    ]


def _restarted(side: Side, number: int) -> dict[str, int]:
    """The policy of plain programs starts all of them again."""
    return {} if side.program == OURS_PLAIN.program and side.is_ours else {RESTARTED: number}
