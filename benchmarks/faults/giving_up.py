"""Give up collectives after random moments, on one rank or the other: whether all that succeed are right."""

from __future__ import annotations

import sys

from multiworld.testing import WorkerGroup

from . import traffic
from .report import Report, arguments

COUNT = 500


def main() -> int:
    options = arguments(__doc__, trials=20).parse_args()
    report = Report(f"{COUNT} collectives × {options.trials}, a third given up, {options.backend}")
    report.count("collectives that ended, on both ranks", 0, expected=2 * COUNT * options.trials)
    for number in range(options.trials):
        with WorkerGroup() as workers:
            fields = {"backend": options.backend, "count": COUNT, "seed": options.seed + 3 * number}
            for worker in traffic.start_pair(workers, traffic.give_up, **fields):
                ends = worker.await_event("returned", 300)["value"]
                report.count("collectives that ended, on both ranks", sum(ends.values()))
                report.count("series without any that was given up", int(not ends["given up"]))
                report.count("series without any that was right", int(not ends["right"]))
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
