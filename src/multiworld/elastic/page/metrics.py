"""The job in Prometheus' text format. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import nan

from ...observe.prometheus import Family, Row, families_text
from ..job.status import JobStatus
from ..job.trainings import TrainingStatus

AGENT_STATES = ("active", "draining", "waiting")
FAILURE = "failure"
FAULT_KINDS = (FAILURE, "join", "leave")
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
    return families_text([*families, *_trainings(status.trainings)])


def _trainings(trainings: Sequence[TrainingStatus]) -> list[Family]:
    """Return what is known of trainings; nothing for a job that has none."""
    if not trainings:
        return []

    def gauge(name: str, about: str, value_of: Callable[[TrainingStatus], float | None]) -> Family:
        values = ((each.name, value_of(each)) for each in trainings)
        rows: list[Row] = [("", {"training": training}, value) for training, value in values if value is not None]
        return Family(name, "gauge", about, rows)

    losses: list[Row] = [
        ("", {"training": each.name, "value": each.value_name}, nan if each.value is None else each.value)
        for each in trainings
        if each.value_name
    ]
    faults: list[Row] = [
        ("", {"training": each.name, "kind": kind}, each.num_faults.get(kind, 0))
        for each in trainings
        for kind in FAULT_KINDS
    ]
    return [
        gauge("training_step", "The last committed step, counted from 0.", lambda each: each.step),
        gauge("training_total_steps", "How many steps are wanted, if that is known.", lambda each: each.total),
        Family("training_value", "gauge", "The recorded value that is shown, such as the loss.", losses),
        gauge(
            "training_replicas", "Replicas (or processes of pipelines) that go on together.", lambda each: each.replicas
        ),
        gauge("training_pipelines", "Pipelines of a training that has some.", _num_pipelines),
        gauge("training_samples_per_second", "Over the last ten seconds.", lambda each: each.samples_per_s),
        gauge("training_goodput_ratio", "Time of committed first-try work by wall time.", lambda each: each.goodput),
        Family("training_changes_total", "counter", "Failures, joins and leaves of members.", faults),
        gauge("training_last_recovery_seconds", "From the last failure to the next committed step.", _last_recovery),
    ]


def _num_pipelines(training: TrainingStatus) -> float | None:
    return None if training.pipelines is None else len(training.pipelines.pipelines)


def _last_recovery(training: TrainingStatus) -> float | None:
    took = [each.took_s for each in training.faults if each.kind == FAILURE and each.took_s is not None]
    return took[-1] if took else None
