"""Random kills of workers, agents and hosts for minutes, the coordinator's too; dead agents are started again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter

from multiworld.bench.report import Bound, Line

from .job import OURS, Job, TrialFailed
from .node import Node
from .told import Strike, untold

__all__ = ["soak"]

NUM_NODES, PER_NODE = 3, 2
HANG_S = 10.0
ORPHAN_S = 1.0
WHOLE_S = 30.0
AGAIN_S = (0.2, 3.0)  # after which a dead agent is started again


def soak(num_kills: int, minutes: float, seed: int) -> list[Line]:
    """Kill ``num_kills`` times over so long."""
    return _Soak(num_kills, minutes * 60.0, random.Random(seed)).run()


class _Soak:
    def __init__(self, num_kills: int, length_s: float, chance: random.Random) -> None:
        self._num_kills, self._length_s, self._chance = num_kills, length_s, chance
        self._kills: list[Strike] = []
        self._due: list[float] = []  # when agents are started again
        self._hangs: dict[int, float] = {}
        self._orphans = 0
        self._watched: dict[Node, float] = {}  # dead agents, and until when their workers may be there

    def run(self) -> list[Line]:
        files = set(os.listdir("/dev/shm"))
        with Job(OURS, nnodes=f"1:{NUM_NODES}", nproc=PER_NODE, max_restarts=10_000) as job:
            self._job = job
            job.start(NUM_NODES)
            job.await_world(NUM_NODES * PER_NODE, 0.0)
            self._disturb()
            if not job.journal.wait(self._is_whole, WHOLE_S):
                job.show()
                raise TrialFailed(f"the job is not whole again {WHOLE_S:g} s after the last kill")
            overlaps, formations = len(job.journal.overlaps()), len(job.journal.formations)
            wrong_sums = sum(e["members"] != e["world_size"] for e in job.journal.entries if e.event == "step")
            unseen = untold(self._kills, job.events())
            try:
                job.end()
                left = 0
            except TrialFailed as error:
                print(f"soak: {error}")
                left = max(1, job.leftovers)
            for strike in unseen:
                print(f"soak: no event tells of {strike}", flush=True)
            if self._hangs or self._orphans or left or unseen:
                job.show()
        counted = Counter(strike.what for strike in self._kills)
        shown = ", ".join(f"{what} {count}" for what, count in sorted(counted.items()))
        counts = {
            f"workers without a step for {HANG_S:g} s": len(self._hangs),
            f"orphans {ORPHAN_S:g} s after their agent": self._orphans,
            "processes left at the end": left,
            "files left in /dev/shm": len(set(os.listdir("/dev/shm")) - files),
            "kills that no event of the job tells of": len(unseen),
            "pairs of worlds that worked at once under one name": overlaps,
            "wrong results": wrong_sums,
        }
        kills_line = Line(
            name=f"kills in {self._length_s:.0f} s",
            unit="",
            value=len(self._kills),
            note=f"{shown}; {formations} worlds",
        )
        return [kills_line, *(Line(name=n, unit="", value=c, bound=Bound.at_most(0)) for n, c in counts.items())]

    def _disturb(self) -> None:
        began = time.monotonic()
        moments = sorted(self._chance.uniform(0, self._length_s) for _ in range(self._num_kills))
        for moment in moments:
            self._pass_time(until=began + moment)
            self._kill()
        self._pass_time(until=time.monotonic() + max([AGAIN_S[1], *(at - time.monotonic() for at in self._due)]) + 1.0)
        self._pass_time(until=time.monotonic() + HANG_S)

    def _pass_time(self, until: float) -> None:
        while True:
            now = time.monotonic()
            while self._due and min(self._due) <= now:
                self._due.remove(min(self._due))
                self._job.start_node()
            self._look(now)
            if now >= until:
                return
            self._job.journal.wait(lambda: False, min(0.1, until - now))

    def _look(self, now: float) -> None:
        self._job.journal.read()
        for pid, at in self._job.journal.last_work.items():
            if now - at > HANG_S and pid not in self._hangs and os.path.exists(f"/proc/{pid}/exe"):
                self._hangs[pid] = at
                print(f"soak: worker {pid} has done nothing for {now - at:.1f} s", flush=True)
        for node, until in list(self._watched.items()):
            if not node.others():
                del self._watched[node]
            elif now > until:
                self._orphans += len(node.others())
                print(f"soak: {len(node.others())} orphans of {node.name}", flush=True)
                del self._watched[node]

    def _kill(self) -> None:
        nodes = [node for node in self._job.nodes if node.returncode is None]
        working = [node for node in nodes if self._works(node)]
        what = self._chance.choice(("worker", "worker", "worker", "agent", "host", "coordinator"))
        if what == "worker" or len(working) < 2:
            self._kill_worker(working or nodes)
            return
        node = self._job.coordinator(working) if what == "coordinator" else self._chance.choice(working)
        self._kills.append(Strike(at=time.monotonic(), what=what, pid=node.agent_pid, agent=node.agent_pid))
        if what == "host":
            node.kill()
        else:
            at = node.kill_agent()
            self._watched[node] = at + ORPHAN_S
        self._due.append(time.monotonic() + self._chance.uniform(*AGAIN_S))

    def _kill_worker(self, nodes: list[Node]) -> None:
        agents = {node.name: node.agent_pid for node in nodes}
        steps = [e for e in self._job.journal.entries[-2000:] if e.event == "step" and e["node"] in agents]
        working = {entry.pid: agents[entry["node"]] for entry in steps}
        alive = sorted(pid for pid in working if os.path.exists(f"/proc/{pid}/exe"))
        if alive:
            pid = self._chance.choice(alive)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._kills.append(Strike(at=time.monotonic(), what="worker", pid=pid, agent=working[pid]))

    def _works(self, node: Node) -> bool:
        return any(e.event == "step" and e["node"] == node.name for e in self._job.journal.entries[-2000:])

    def _is_whole(self) -> bool:
        """Whether all ranks work together now."""
        size, now = NUM_NODES * PER_NODE, time.monotonic()
        found = self._job.journal.formations.values()
        return any(each.world_size == size and each.is_complete and each.last > now - 1.0 for each in found)
