"""Kill members, the store's host among them, at random moments, and measure when every survivor knows.

The last rank is never killed: what it holds after all of it, beyond what it held at first, was leaked.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from multiworld.testing import Member, WorkerGroup, shown_on_failure, wait_until

from .report import Report, arguments
from .roster import Roster, draw, leave_all

KNOWN_S = 0.25
PENDING_S = 0.05
SIZE = 3
WARM_UP = 5  # trials after which a process has everything that it keeps
MOVED = (1, 300_000, 2_500_000)  # elements: small, some chunks, more than any buffer on the way
MAX_GROWTH_BYTES = 20_000_000


def trial(roster: Roster, report: Report, number: int, victim: int, after_s: float, backend: str) -> None:
    """Kill a member of four worlds: one is idle, in one all receive from it, in one all reduce with it, and in one
    tensors of all sizes go around.
    """
    crew = roster.crew
    worlds = [f"{kind}{number}" for kind in ("idle", "receive", "reduce", "move")]
    idle, receive, reduce, move = worlds
    for world in worlds:
        crew.form(world, backend=backend)
    survivors = crew.survivors(victim)
    calls = [(member, receive, member.call("recv", world=receive, src=victim).started()) for member in survivors]
    calls += [
        (member, reduce, member.call("collective", world=reduce, kind="all_reduce").started()) for member in survivors
    ]
    crew[victim].call("play", world=move, kind="send", numel=MOVED)
    calls += [(member, move, member.call("play", world=move, kind="send", numel=MOVED)) for member in survivors]
    for member in crew.members:
        member.worker.await_event("playing", world=move)
    threading.Event().wait(after_s)
    killed_at = crew[victim].worker.kill()
    known_at = {(member, world): member.await_broken(world).at for member in survivors for world in worlds}
    for (_, world), at in known_at.items():
        activity = "idle" if world == idle else "pending"
        report.latency(f"kill until known, operations {activity}", at - killed_at, limit_s=KNOWN_S, judged="p99")
    for member, world, call in calls:
        outcome = call.outcome()
        report.count("pending operations that did not raise PeerDiedError", int(outcome.error != "PeerDiedError"))
        report.count("wrong results", int(outcome.error == "WrongResultError"))
        late_s = max(0.0, outcome.at - known_at[member, world])
        report.latency("known until pending operation raised", late_s, limit_s=PENDING_S, judged="p99")
    leave_all(survivors, worlds)
    roster.replace(victim)


def look(witness: Member) -> Mapping[str, Any]:
    """Return what the one that is never killed holds, with no world open."""
    seen: Mapping[str, Any] = {}

    def has_no_world() -> bool:
        nonlocal seen
        seen = witness.do("resources")
        return not seen["shared_memory"]

    wait_until(has_no_world, 5.0, poll_s=0.1)
    return seen


def judge(report: Report, before: Mapping[str, Any], after: Mapping[str, Any], files: set[str]) -> None:
    growth = after["resident_bytes"] - before["resident_bytes"]
    threads, descriptors = (len(after[name]) - len(before[name]) for name in ("thread_names", "descriptors"))
    print(f"the survivor of all: {threads:+} threads, {descriptors:+} descriptors, {growth / 1e6:+.1f} MB")
    report.count("threads more than before", max(0, threads))
    report.count("descriptors more than before", max(0, descriptors))
    report.count("pieces of shared memory still mapped", len(after["shared_memory"]))
    report.count("files left in /dev/shm", len(set(os.listdir("/dev/shm")) - files))
    report.count("survivors that grew by more than 20 MB", int(growth > MAX_GROWTH_BYTES))


def main() -> int:
    options = arguments(__doc__, trials=200).parse_args()
    report = Report(f"kill -9 one member of {SIZE}, {options.trials} times, {options.backend}")
    files = set(os.listdir("/dev/shm"))
    with WorkerGroup() as workers:
        roster = Roster(workers, SIZE, num_mortal=SIZE - 1)
        for number in range(options.trials):
            if number == min(WARM_UP, options.trials - 1):
                before = look(roster.crew[SIZE - 1])
            plan, fault, victim = draw(options.seed, number, SIZE - 1, within_s=0.3)
            with shown_on_failure(plan):
                trial(roster, report, number, victim, fault.at_s, options.backend)
        judge(report, before, look(roster.crew[SIZE - 1]), files)
    return report.finish(options.json)


if __name__ == "__main__":
    sys.exit(main())
