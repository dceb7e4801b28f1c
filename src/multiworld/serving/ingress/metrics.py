"""The metrics of an ingress's requests, for Prometheus."""

from __future__ import annotations

from ..gateway.served import Metric
from ..member.reports import GatewayCounts

QUANTILES = {"0.5": "p50_s", "0.95": "p95_s", "0.99": "p99_s"}
OUTCOMES = ("answered", "failed", "refused")


def request_metrics(counts: GatewayCounts) -> dict[str, Metric | float]:
    """Return the metrics for what ``Ingress.statistics`` returned."""
    outcomes = [({"outcome": name}, float(getattr(counts, name))) for name in OUTCOMES]
    quantiles = [({"quantile": text}, float(getattr(counts, name))) for text, name in QUANTILES.items()]
    return {
        "requests_total": Metric(kind="counter", help="Requests by how they ended.", samples=outcomes),
        "requests_retried_total": _count("Requests that were sent again from the start.", counts.retried),
        "requests_replayed_total": _count("Requests that went to another first replica.", counts.replayed),
        "requests_open": float(counts.open),
        "request_latency_seconds": Metric(
            kind="summary",
            help="Latencies of answers; the quantiles are of the last ones.",
            samples=quantiles,
            sum=float(counts.latency_sum_s),
            count=float(counts.answered),
        ),
    }


def _count(text: str, value: float) -> Metric:
    return Metric(kind="counter", help=text, samples=[({}, float(value))])
