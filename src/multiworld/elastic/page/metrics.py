"""The job in Prometheus' text format. Pure: the status in, text out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["CONTENT_TYPE", "metrics_text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
AGENT_STATES = ("active", "draining", "waiting")
WORKER_STATES = ("idle", "running", "stopping", "succeeded")

Sample = tuple[dict[str, object], float]


def metrics_text(status: Mapping[str, Any], counts: Mapping[str, int]) -> str:
    """Return what ``/metrics`` answers. ``counts``: how often each kind of event was recorded."""
    agents = Counter(each["state"] for each in status["agents"])
    workers = Counter(each["state"] for each in status["workers"])
    restarts = [
        ({"rank": each["rank"], "host": each["host"] or ""}, each["restarts"])
        for each in status["workers"]
        if each["rank"] is not None
    ]
    families = [
        _family(
            "job_info",
            "gauge",
            "The job, its phase and the restart policy that holds.",
            [({"job": status["job"], "phase": status["phase"], "policy": status["policy"]}, 1)],
        ),
        _family(
            "job_generation",
            "gauge",
            "Grows with every change of the membership.",
            [({}, status["generation"])],
        ),
        _family("job_term", "gauge", "How many coordinators there were.", [({}, status["term"])]),
        _family(
            "nodes",
            "gauge",
            "Hosts with ranks (active), and how many there are to be.",
            [({"bound": bound}, status["nodes"][bound]) for bound in ("active", "wanted", "min", "max")],
        ),
        _family("agents", "gauge", "Agents by state.", [({"state": state}, agents[state]) for state in AGENT_STATES]),
        _family(
            "workers", "gauge", "Workers by state.", [({"state": state}, workers[state]) for state in WORKER_STATES]
        ),
        _family("worlds", "gauge", "Worlds that have members.", [({}, len(status["worlds"]))]),
        _family("worker_restarts_total", "counter", "How often each rank was started again.", restarts),
        _family(
            "events_total",
            "counter",
            "Events of the job, by kind, as far as this coordinator knows.",
            [({"kind": kind}, count) for kind, count in sorted(counts.items())],
        ),
    ]
    return "".join(families)


def _family(name: str, kind: str, description: str, samples: Iterable[Sample]) -> str:
    name = f"multiworld_{name}"
    lines = [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
    lines += [f"{name}{_labels(labels)} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
