"""Kill or stop the host of the store while other worlds work, and see that they do not notice."""

from __future__ import annotations

import sys

from multiworld.testing import Crew, WorkerGroup

from .report import Report, arguments

JOIN_TIMEOUT_S = 2.0


def trial(report: Report, fault: str, backend: str, num_rounds: int) -> None:
    with WorkerGroup() as workers:
        crew = Crew(workers, 3, store_host=2)
        crew.form("standing", [0, 1], backend=backend)
        plays = [crew[rank].call("play", world="standing", kind="all_reduce", num_rounds=num_rounds) for rank in (0, 1)]
        for rank in (0, 1):
            crew[rank].worker.await_event("playing")
        getattr(crew[2].worker, fault)()
        fields = {"world_size": 2, "store": crew.store, "backend": backend, "timeout_s": JOIN_TIMEOUT_S}
        for join in [crew[rank].call("join", world="new", rank=rank, **fields) for rank in (0, 1)]:
            outcome = join.outcome()
            report.count("joins without a clear error", int("JoinError" not in outcome.bases))
            report.latency("join through a dead store until its error", outcome.took_s, limit_s=JOIN_TIMEOUT_S + 0.25)
        for play in plays:
            outcome = play.outcome(300)
            report.count(f"members disturbed by a store host's {fault}", int(outcome.value != num_rounds))


def main() -> int:
    parser = arguments(__doc__, trials=10)
    parser.add_argument("--rounds", type=int, default=5000, help="all_reduces meanwhile (default 5000)")
    options = parser.parse_args()
    report = Report(f"store host killed or stopped, {options.trials} times, {options.backend}")
    for number in range(options.trials):
        trial(report, ("kill", "stop")[number % 2], options.backend, options.rounds)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
