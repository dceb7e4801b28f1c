"""Interrupt a process (SIGINT) at random moments amid quick receives: whether it comes to its end, and how soon."""

from __future__ import annotations

import sys

from multiworld.testing import WorkerGroup

from .interrupts import APIS, receive_until_interrupted
from .report import Report, arguments

CLOSE_S = 6.0  # two managers, each of which gives its peers 2 s at its exit
HANG_S = 30.0


def main() -> int:
    options = arguments(__doc__, trials=1000, backend=False).parse_args()
    report = Report(f"interrupted amid receives, {options.trials} times with each interface")
    for api in sorted(APIS):
        with WorkerGroup() as workers:
            worker = workers.start(receive_until_interrupted, api, options.trials, options.seed)
            for _ in range(options.trials):
                interrupted = worker.await_event("interrupted", HANG_S)
                report.latency(f"end after an interrupt, {api}", interrupted["close_s"], limit_s=CLOSE_S)
            report.count("ends with another status than 0", int(worker.wait() != 0))
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
