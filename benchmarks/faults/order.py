"""Keep 64 sends, 64 receives and 64 all_reduces pending, 10,000 of each, and look for any out of order or wrong."""

from __future__ import annotations

import sys

from multiworld.testing import WorkerGroup

from . import traffic
from .report import Report, arguments

CONCURRENCY = 64


def main() -> int:
    parser = arguments(__doc__, trials=1)
    parser.add_argument("--operations", type=int, default=10_000, help="of each kind and rank (default 10000)")
    options = parser.parse_args()
    report = Report(f"{CONCURRENCY} concurrent operations × {options.operations}, {options.backend}")
    for _ in range(options.trials):
        with WorkerGroup() as workers:
            fields = {"backend": options.backend, "count": options.operations, "concurrency": CONCURRENCY}
            for worker in traffic.start_pair(workers, traffic.order, **fields):
                wrong = worker.await_event("returned", 600)["value"]
                report.count("receives out of order", wrong["received"])
                report.count("wrong sums", wrong["reduced"])
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
