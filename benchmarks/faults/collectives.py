"""Kill a member while all eight collectives run, again and again, and look for any wrong result or false success."""

from __future__ import annotations

import random
import sys
import threading

from multiworld.testing import WorkerGroup, shown_on_failure
from multiworld.testing.rounds import KINDS

from .report import Report, arguments
from .roster import Roster, draw, leave_all

SIZE = 3
ENDED = "survivors' series of collectives that ended"
SIZES = (1, 1000, 30_000, 300_000)


def trial(roster: Roster, report: Report, number: int, victim: int, after_s: float, numel: int, backend: str) -> None:
    """Kill one member while all play rounds of every kind, each in a world of its own."""
    crew = roster.crew
    worlds = {kind: f"{kind}{number}" for kind in KINDS}
    for world in worlds.values():
        crew.form(world, backend=backend)
    survivors = crew.survivors(victim)
    calls = [
        member.call("play", world=world, kind=kind, numel=numel)
        for kind, world in worlds.items()
        for member in (*survivors, crew[victim])
    ]
    for member in crew.members:
        for world in worlds.values():
            member.worker.await_event("playing", 60, world=world)
    threading.Event().wait(after_s)
    crew[victim].worker.kill()
    for call in calls:
        if call.member is crew[victim]:
            continue
        outcome = call.outcome()
        report.count(ENDED, 1)
        report.count("wrong results", int(outcome.error == "WrongResultError"))
        report.count("other errors than PeerDiedError", int(outcome.error not in ("PeerDiedError", "WrongResultError")))
    leave_all(survivors, list(worlds.values()))
    roster.replace(victim)


def main() -> int:
    options = arguments(__doc__, trials=200).parse_args()
    report = Report(f"kill -9 one member of {SIZE} amid {len(KINDS)} kinds of collectives, {options.trials} times")
    report.count(ENDED, 0, expected=options.trials * len(KINDS) * (SIZE - 1))
    with WorkerGroup() as workers:
        roster = Roster(workers, SIZE)
        for number in range(options.trials):
            plan, fault, victim = draw(options.seed, number, SIZE, within_s=0.3)
            numel = random.Random(options.seed + number).choice(SIZES)
            with shown_on_failure(plan):
                trial(roster, report, number, victim, fault.at_s, numel, options.backend)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
