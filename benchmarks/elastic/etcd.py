"""etcd away for a while: workers do not notice, a dead one is replaced; once it is back, hosts come and go again."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from multiworld.bench.report import Bound, Line

from .etcd_server import EtcdServer, etcd_program
from .hosts import STORE_S
from .job import OURS, Job
from .journal import Entry, Formation
from .recovery import RESTARTED, Recovery, recover, signal_worker

__all__ = ["etcd", "longest_pause"]

PER_NODE = 2
BEFORE_S, AFTER_S = 3.0, 5.0  # how long the workers are watched while etcd is there
GAP_S = 1.0
CAP_S = 60.0


def etcd(away_s: float) -> list[Line]:
    """Two hosts of two workers meet through a real etcd, which is killed and comes again ``away_s`` later."""
    if etcd_program() is None:
        return [Line.not_measured("etcd killed and started again", "etcd is not installed (Debian: etcd-server)")]
    with ExitStack() as at_end:
        folder = at_end.enter_context(tempfile.TemporaryDirectory(prefix="multiworld-benchmark-"))
        server = at_end.enter_context(EtcdServer(Path(folder)))
        job = Job(OURS, nnodes="2:3", nproc=PER_NODE, backend="etcd", endpoint=server.endpoint)
        return _Trial(server, at_end.enter_context(job), away_s).run()


class _Trial:
    def __init__(self, server: EtcdServer, job: Job, away_s: float) -> None:
        self._server, self._job, self._away_s = server, job, away_s
        self._lines: list[Line] = []

    def run(self) -> list[Line]:
        self._job.start(2)
        before = self._job.await_world(2 * PER_NODE, 0.0)
        self._job.await_steps(before)
        self._watch(before, BEFORE_S, "before it is killed")
        self._server.kill()
        self._watch(before, self._away_s, f"in {self._away_s:g} s without it")
        replaced = recover(self._job, before, signal_worker(signal.SIGKILL), lost=1, left=2 * PER_NODE, cap_s=CAP_S)
        self._recovered("worker killed without it until all reduce", replaced)
        self._server.start()
        self._watch(replaced.after, AFTER_S, f"in {AFTER_S:g} s after its return")
        grown = recover(self._job, replaced.after, _start_node, lost=0, left=3 * PER_NODE, cap_s=CAP_S)
        self._recovered("third agent started after its return until all reduce", grown)
        self._job.await_steps(grown.after)
        shrunk = recover(self._job, grown.after, _kill_coordinator, lost=PER_NODE, left=2 * PER_NODE, cap_s=CAP_S)
        self._recovered("coordinator's host killed then until the others reduce", shrunk, Bound.at_most(STORE_S))
        self._job.await_steps(shrunk.after)
        self._job.end()
        return self._lines

    def _watch(self, formation: Formation, length_s: float, when: str) -> None:
        """Let the workers work for so long, and see that nothing happens to them."""
        journal, pids, began = self._job.journal, formation.pids.values(), time.monotonic()
        journal.wait(lambda: False, length_s)
        ended = time.monotonic()
        entries = [entry for entry in journal.entries if began <= entry.at <= ended]
        steps = [entry for entry in entries if entry.event == "step"]
        self._lines.append(
            Line(
                name=f"etcd killed: longest pause between two steps of a worker, {when}",
                unit="s",
                value=max(longest_pause(steps, pid, began, ended) for pid in pids),
                bound=Bound.at_most(GAP_S),
                note=f"{len(steps)} steps",
            )
        )
        generations = {(entry["formation"], entry["job_generation"]) for entry in steps}
        self._count(f"workers begun, {when}", sum(entry.event == "begun" for entry in entries))
        self._count(f"generations begun, {when}", len(generations) - 1)

    def _recovered(self, what: str, recovery: Recovery, bound: Bound | None = None) -> None:
        self._lines.append(Line(name=f"etcd killed: {what}", unit="s", value=recovery.seconds, bound=bound))
        self._count(f"{what}: {RESTARTED}", recovery.wrong[RESTARTED])

    def _count(self, what: str, number: int) -> None:
        self._lines.append(Line(name=f"etcd killed: {what}", unit="", value=number, bound=Bound.at_most(0)))


def longest_pause(steps: Sequence[Entry], pid: int, began: float, ended: float) -> float:
    """Return the longest time between those moments in which a worker made no step."""
    moments = [began, *(entry.at for entry in steps if entry.pid == pid), ended]
    return max(after - before for before, after in pairwise(moments))


def _start_node(job: Job, _: Formation) -> float:
    return job.start_node().started_at


def _kill_coordinator(job: Job, _: Formation) -> float:
    return job.coordinator().kill()
