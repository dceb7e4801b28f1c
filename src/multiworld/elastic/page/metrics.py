"""The job in Prometheus' text format. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ...observe.prometheus import Family, Row, families_text
from ..job.status import JobStatus

AGENT_STATES = ("active", "draining", "waiting")
WORKER_STATES = ("idle", "running", "stopping", "succeeded")


def metrics_text(status: JobStatus, counts: Mapping[str, int]) -> str:
    """Return what ``/metrics`` answers. ``counts``: how often each kind of event was recorded."""
    agents = Counter(each.state for each in status.agents)
    workers = Counter(each.state for each in status.workers)
    restarts: list[Row] = [
        ("", {"rank": str(each.rank), "host": each.host or ""}, each.restarts)
        for each in status.workers
        if each.rank is not None
    ]
    agents_by_state: list[Row] = [("", {"state": state}, agents[state]) for state in AGENT_STATES]
    workers_by_state: list[Row] = [("", {"state": state}, workers[state]) for state in WORKER_STATES]
    families = [
        Family(
            "job_info",
            "gauge",
            "The job, its phase and the restart policy that holds.",
            [("", {"job": status.job, "phase": status.phase, "policy": status.policy}, 1)],
        ),
        Family("job_generation", "gauge", "Grows with every change of the membership.", [("", {}, status.generation)]),
        Family("job_term", "gauge", "How many coordinators there were.", [("", {}, status.term)]),
        Family(
            "nodes",
            "gauge",
            "Hosts with ranks (active), and how many there are to be.",
            [("", {"bound": bound}, getattr(status.nodes, bound)) for bound in ("active", "wanted", "min", "max")],
        ),
        Family("agents", "gauge", "Agents by state.", agents_by_state),
        Family("workers", "gauge", "Workers by state.", workers_by_state),
        Family("worlds", "gauge", "Worlds that have members.", [("", {}, len(status.worlds))]),
        Family("worker_restarts_total", "counter", "How often each rank was started again.", restarts),
        Family(
            "events_total",
            "counter",
            "Events of the job, by kind, as far as this coordinator knows.",
            [("", {"kind": kind}, count) for kind, count in sorted(counts.items())],
        ),
    ]
    return families_text(families)
