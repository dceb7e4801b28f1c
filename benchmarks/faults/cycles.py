"""Join, use, leave or break, and rejoin one name 1,000 times: threads, descriptors, children and memory stay."""

from __future__ import annotations

import sys

from multiworld.testing import WorkerGroup

from . import traffic
from .report import Report, arguments

MAX_GROWTH_BYTES = 10_000_000


def main() -> int:
    parser = arguments(__doc__, trials=1)
    parser.add_argument("--cycles", type=int, default=1000, help="of join and leave, or break (default 1000)")
    options = parser.parse_args()
    report = Report(f"{options.cycles} cycles of one name, {options.backend}")
    for _ in range(options.trials):
        with WorkerGroup() as workers:
            fields = {"backend": options.backend, "count": options.cycles, "warm_up": 20}
            for worker in traffic.start_pair(workers, traffic.cycle, **fields):
                measured = worker.await_event("measured", 1200)
                before, after = measured["before"], measured["after"]
                growth = after["resident_bytes"] - before["resident_bytes"]
                print(f"{worker.name}: {before['threads']} -> {after['threads']} threads, ", end="")
                print(f"{len(before['descriptors'])} -> {len(after['descriptors'])} descriptors, ", end="")
                print(f"{growth / 1e6:+.1f} MB")
                report.count("threads more than before", max(0, after["threads"] - before["threads"]))
                num_more = len(after["descriptors"]) - len(before["descriptors"])
                report.count("descriptors more than before", max(0, num_more))
                report.count("children more than before", len(set(after["children"]) - set(before["children"])))
                report.count("processes that grew by more than 10 MB", int(growth > MAX_GROWTH_BYTES))
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
