"""Kill members, the store's host among them, at random moments, and measure when every survivor knows."""

from __future__ import annotations

import sys
import threading

from multiworld.testing import WorkerGroup, shown_on_failure

from .report import Report, arguments
from .roster import Roster, draw, leave_all

KNOWN_S = 0.25
PENDING_S = 0.05
SIZE = 3


def trial(roster: Roster, report: Report, number: int, victim: int, after_s: float, backend: str) -> None:
    """Kill a member of three worlds: one is idle, in one all receive from it, in one all reduce with it."""
    crew = roster.crew
    worlds = [f"{kind}{number}" for kind in ("idle", "receive", "reduce")]
    idle, receive, reduce = worlds
    for world in worlds:
        crew.form(world, backend=backend)
    survivors = crew.survivors(victim)
    calls = [(member, receive, member.call("recv", world=receive, src=victim).started()) for member in survivors]
    calls += [
        (member, reduce, member.call("collective", world=reduce, kind="all_reduce").started()) for member in survivors
    ]
    threading.Event().wait(after_s)
    killed_at = crew[victim].worker.kill()
    known_at = {(member, world): member.await_broken(world).at for member in survivors for world in worlds}
    for (_, world), at in known_at.items():
        activity = "idle" if world == idle else "pending"
        report.latency(f"kill until known, operations {activity}", at - killed_at, limit_s=KNOWN_S, judged="p99")
    for member, world, call in calls:
        outcome = call.outcome()
        report.count("pending operations that did not raise PeerDiedError", int(outcome.error != "PeerDiedError"))
        late_s = max(0.0, outcome.at - known_at[member, world])
        report.latency("known until pending operation raised", late_s, limit_s=PENDING_S, judged="p99")
    leave_all(survivors, worlds)
    roster.replace(victim)


def main() -> int:
    options = arguments(__doc__, trials=200).parse_args()
    report = Report(f"kill -9 one member of {SIZE}, {options.trials} times, {options.backend}")
    with WorkerGroup() as workers:
        roster = Roster(workers, SIZE)
        for number in range(options.trials):
            plan, fault, victim = draw(options.seed, number, SIZE, within_s=0.3)
            with shown_on_failure(plan):
                trial(roster, report, number, victim, fault.at_s, options.backend)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
