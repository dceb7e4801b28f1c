"""Stop members with SIGSTOP, measure when the others know, then let them go on and see that they are fenced."""

from __future__ import annotations

import sys

from multiworld.testing import Crew, WorkerGroup, shown_on_failure

from .report import Report, arguments
from .roster import draw, leave_all

SLACK_S = 0.25
SIZE = 3


def trial(crew: Crew, report: Report, number: int, victim: int, lease_s: float, backend: str) -> None:
    world = f"w{number}"
    crew.form(world, backend=backend)
    survivors = crew.survivors(victim)
    calls = [member.call("recv", world=world, src=victim).started() for member in survivors]
    waiting = crew[victim].call("recv", world=world, src=(victim + 1) % SIZE).started()
    stopped_at = crew[victim].worker.stop()
    for call in calls:
        outcome = call.outcome(lease_s + 20)
        report.latency("stop until pending operation raised", outcome.at - stopped_at, limit_s=lease_s + SLACK_S)
        report.count("operations that did not raise PeerStoppedError", int(outcome.error != "PeerStoppedError"))
    crew[victim].worker.cont()
    fenced = waiting.outcome()
    report.count("members that went on and were not fenced", int(fenced.error != "StaleGenerationError"))
    leave_all(crew.members, [world])


def main() -> int:
    parser = arguments(__doc__, trials=50)
    parser.add_argument("--lease", type=float, default=2.0, help="lease_s of all members (default 2)")
    options = parser.parse_args()
    report = Report(f"stop one member of {SIZE}, {options.trials} times, lease {options.lease:g} s, {options.backend}")
    with WorkerGroup() as workers:
        crew = Crew(workers, SIZE, lease_s=options.lease)
        for number in range(options.trials):
            plan, _, victim = draw(options.seed, number, SIZE, within_s=1.0)
            with shown_on_failure(plan):
                trial(crew, report, number, victim, options.lease, options.backend)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
