"""The gateway's own counts, and its metrics as families."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping

from ...observe.prometheus import Family, Row
from .served import Metric

CONNECTION = "connection"
"""The route of what is refused before it is a request."""
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class HttpCounts:
    """Answers by route and status, and how long each took."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int]] = Counter()
        self.num_gone = 0
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._sum_s = 0.0

    def answered(self, route: str, status: int) -> None:
        self.answers[route, status] += 1

    def refused(self, status: int) -> None:
        """Count an answer that no request got: a connection too many, a head that is slow, long or none."""
        self.answered(CONNECTION, status)

    def took(self, seconds: float) -> None:
        """Count the time of one inference, whatever came of it."""
        self._buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def families(self, *, num_connections: int, num_open: int, held_bytes: int) -> list[Family]:
        """Return the gateway's part of ``/metrics``."""
        answers: list[Row] = [
            ("", {"route": route, "code": str(status)}, float(count)) for (route, status), count in self.answers.items()
        ]
        return [
            Family(
                "http_requests_total",
                "counter",
                f"Answers by route and status. Route {CONNECTION}: what was refused before it was a request.",
                answers,
            ),
            Family(
                "http_clients_gone_total",
                "counter",
                "Requests whose client went before the answer, or amid a stream.",
                [("", {}, self.num_gone)],
            ),
            Family("http_connections", "gauge", "Open connections.", [("", {}, num_connections)]),
            Family(
                "http_requests_open",
                "gauge",
                "Requests whose answer is not there yet, or is being sent.",
                [("", {}, num_open)],
            ),
            Family("http_held_bytes", "gauge", "Of the bodies of open requests.", [("", {}, held_bytes)]),
            Family("http_infer_seconds", "histogram", "From the whole body to the result.", self._histogram()),
        ]

    def _histogram(self) -> list[Row]:
        rows: list[Row] = []
        total = 0
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self._buckets, strict=True):
            total += count
            rows.append(("_bucket", {"le": bound}, total))
        return [*rows, ("_sum", {}, self._sum_s), ("_count", {}, total)]


def families_of(metrics: Mapping[str, Metric | float]) -> list[Family]:
    """Return what ``Served.metrics`` returns."""
    return [_family(name, metric) for name, metric in metrics.items()]


def _family(name: str, metric: Metric | float) -> Family:
    if not isinstance(metric, Metric):
        return Family(name, "gauge", name.replace("_", " ").capitalize() + ".", [("", {}, metric)])
    rows: list[Row] = [("", labels, value) for labels, value in metric.samples]
    if metric.kind == "summary":
        rows += [("_sum", {}, metric.sum), ("_count", {}, metric.count)]
    return Family(name, metric.kind, metric.help, rows)
