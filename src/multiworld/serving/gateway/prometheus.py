"""The gateway's own counts, and how all metrics are written for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

from .served import Metric, Sample

__all__ = ["CONTENT_TYPE", "HttpCounts", "metrics_text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
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

    def text(self, *, num_connections: int, num_open: int, held_bytes: int) -> str:
        """Return the gateway's part of ``/metrics``."""
        answers = [
            ({"route": route, "code": str(status)}, float(count)) for (route, status), count in self.answers.items()
        ]
        return "".join(
            (
                _family(
                    "http_requests_total",
                    "counter",
                    f"Answers by route and status. Route {CONNECTION}: what was refused before it was a request.",
                    answers,
                ),
                _family(
                    "http_clients_gone_total",
                    "counter",
                    "Requests whose client went before the answer, or amid a stream.",
                    [({}, self.num_gone)],
                ),
                _family("http_connections", "gauge", "Open connections.", [({}, num_connections)]),
                _family(
                    "http_requests_open",
                    "gauge",
                    "Requests whose answer is not there yet, or is being sent.",
                    [({}, num_open)],
                ),
                _family("http_held_bytes", "gauge", "Of the bodies of open requests.", [({}, held_bytes)]),
                self._histogram(),
            )
        )

    def _histogram(self) -> str:
        name = "multiworld_http_infer_seconds"
        lines = [f"# HELP {name} From the whole body to the result.", f"# TYPE {name} histogram"]
        total = 0
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        lines += [f"{name}_sum {self._sum_s!r}", f"{name}_count {total}"]
        return "\n".join(lines) + "\n"


def metrics_text(metrics: Mapping[str, Metric | float]) -> str:
    """Write what ``Served.metrics`` returns."""
    families = []
    for name, metric in metrics.items():
        if isinstance(metric, Metric):
            families.append(_family(name, metric.kind, metric.help, metric.samples))
        else:
            families.append(_family(name, "gauge", name.replace("_", " ").capitalize() + ".", [({}, metric)]))
    return "".join(families)


def _family(name: str, kind: str, description: str, samples: Iterable[Sample]) -> str:
    name = f"multiworld_{name}"
    description = description.replace("\\", "\\\\").replace("\n", "\\n")
    lines = [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        text = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        lines.append(f"{name}{{{text}}} {_number(value)}" if text else f"{name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return str(label).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    text = repr(float(value))
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text.removesuffix(".0"))
