"""A training under measurement: its processes, what its ranks have committed and when, and the orders to strike."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from multiworld.testing import Host

from ..elastic.job import ROOT, TrialFailed, free_port
from ..elastic.journal import Entry
from ..elastic.node import Node
from ..elastic.trial import Trial
from .orders import Order, give_order
from .sides import Side

__all__ = ["Run", "Strike"]

START_S = 90.0
STEADY_STEPS = 8


class Strike:
    """A fault that happened: when, to which ranks and processes, and which processes went on."""

    def __init__(self, at: float, entries: Sequence[Entry], survivors: Sequence[int]) -> None:
        self.at, self.entries, self.survivors = at, entries, survivors

    @property
    def ranks(self) -> list[int]:
        return [int(entry["rank"]) for entry in self.entries]


class Run(Trial):
    """``journal.entries`` has what the ranks wrote.

    ``num_replicas`` are on each node. ``options`` are the program's, after those that the side has anyway.
    """

    def __init__(
        self,
        side: Side,
        num_replicas: int = 4,
        options: Sequence[str] = (),
        *,
        num_nodes: int = 1,
        keep: Path | None = None,
    ) -> None:
        super().__init__(side.name, keep=keep)
        self.side, self.num_replicas, self.num_nodes = side, num_replicas, num_nodes
        self._orders = self.folder / f"orders-{self.name}"
        self._numbers = 0
        self._options = [
            *options,
            "--journal",
            str(self.journal_path),
            "--orders",
            str(self._orders),
        ]
        if side.saves:
            self._options += ["--checkpoint", str(self.folder / "checkpoint")]
        self._endpoint = f"127.0.0.1:{free_port()}"

    # ---- processes

    def start(self, *, hosts: Sequence[Host | None] = (None,), endpoint: str | None = None) -> Run:
        """Start the launcher, one on each host."""
        for host in hosts:
            self.start_node(host, endpoint=endpoint, num_hosts=len(hosts))
        return self

    def start_node(self, host: Host | None = None, *, endpoint: str | None = None, num_hosts: int = 1) -> Node:
        name = f"{self.name}.{len(self.nodes)}"
        side = self.side
        if num_hosts > 1:
            meeting = ["--nnodes", f"1:{num_hosts}", "--rdzv-backend", "c10d", "--rdzv-id", self.name]
            meeting += ["--rdzv-endpoint", endpoint or self._endpoint]
            if host is None:
                meeting += ["--local-addr", "127.0.0.1"]
            side = side.having(side.name, launcher=meeting)
        env = {**os.environ, **side.environment, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
        if side.is_ours:
            env.setdefault("LOGLEVEL", "INFO")
        node = Node(
            name,
            side.command(self.num_replicas, self._options),
            env=env,
            cwd=ROOT,
            output=self.folder / f"output-{name}",
            popen=None if host is None else host.popen,
        )
        self.nodes.append(node)
        return node

    @property
    def is_over(self) -> bool:
        return all(node.returncode is not None for node in self.nodes)

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Read until the condition holds. Raises TrialFailed if it does not in time, or cannot any more."""
        if not self.journal.wait(lambda: condition() or self.is_over, timeout_s) or not condition():
            self.journal.read()
            if not condition():
                ended = [node.returncode for node in self.nodes]
                raise TrialFailed(f"{self.side.name}: {what}: not within {timeout_s:g} s (launchers ended: {ended})")

    def finish(self, timeout_s: float) -> dict[int, Entry]:
        """Wait for the end of the training and return the last words of each rank."""
        self.wait(lambda: self.is_over, timeout_s, "the end of the training")
        self.journal.read()
        codes = [node.returncode for node in self.nodes]
        if any(codes):
            raise TrialFailed(f"{self.side.name}: ended with {codes}")
        return {int(entry["rank"]): entry for entry in self.journal.entries if entry.event == "ended"}

    # ---- what its ranks do

    def commits(self, after: float = 0.0) -> dict[int, list[Entry]]:
        """Return what was committed after a moment, by process."""
        found: dict[int, list[Entry]] = defaultdict(list)
        for entry in reversed(self.journal.entries):
            if entry.at <= after:
                break
            if entry.event == "commit":
                found[entry.pid].append(entry)
        return {pid: entries[::-1] for pid, entries in found.items()}

    def working(self, replicas: int, after: float, steps: int = STEADY_STEPS) -> dict[int, int]:
        """Return the processes by rank, once that many have committed so many steps together; else nothing."""
        recent: dict[int, list[Entry]] = defaultdict(list)
        for entry in reversed(self.journal.entries):
            if entry.at <= after:
                break
            if entry.event == "commit" and len(recent[entry.pid]) < steps:
                recent[entry.pid].append(entry)
                if sum(map(len, recent.values())) >= steps * replicas and len(recent) >= replicas:
                    break
        steady = {
            int(entries[0]["rank"]): pid
            for pid, entries in recent.items()
            if len(entries) >= steps and all(entry["replicas"] == replicas for entry in entries)
        }
        return steady if len(steady) == replicas else {}

    def await_steady(
        self, replicas: int | None = None, after: float = 0.0, steps: int = STEADY_STEPS, timeout_s: float = START_S
    ) -> dict[int, int]:
        """Wait until so many replicas commit together; return their processes by rank."""
        wanted = replicas or self.num_replicas * max(1, len(self.nodes))
        self.wait(lambda: bool(self.working(wanted, after, steps)), timeout_s, f"{wanted} replicas that commit")
        return self.working(wanted, after, steps)

    # ---- faults

    def strike(
        self,
        ranks: Sequence[int],
        phase: str,
        signum: int = signal.SIGKILL,
        *,
        timeout_s: float = 20.0,
        slow: float = 1.0,
        then: tuple[int, str] | None = None,
        skip: int = 0,
    ) -> Strike:
        """Order these ranks to strike themselves in that phase, and wait until they have.

        ``then``: another rank, which strikes itself in that phase of the recovery that follows. ``skip``: see ``Order``
        """
        self.journal.read()
        before = self.working(self.num_replicas * len(self.nodes), 0.0, 1)
        done = len(self.journal.entries)
        self._numbers += 1
        order = Order(number=self._numbers, ranks=ranks, phase=phase, signum=signum, slow=slow, then=then, skip=skip)
        give_order(self._orders, order)

        def struck() -> list[Entry]:
            return [entry for entry in self.journal.entries[done:] if entry.event == "strike"]

        num_expected = len(ranks) + (then is not None)
        self.wait(lambda: len(struck()) >= num_expected, timeout_s, f"ranks {list(ranks)} in phase {phase}")
        entries = struck()
        hit = {entry.pid for entry in entries}
        return Strike(entries[0].at, entries, [pid for pid in before.values() if pid not in hit])

    def recovery_s(self, strike: Strike, timeout_s: float) -> float:
        """Return from the last strike until all survivors have committed a step without those that were struck.

        A step that everybody had completed by then counts for nobody.
        """
        at, full = max(entry.at for entry in strike.entries), self.num_replicas * len(self.nodes)
        step = max(int(entry["step"]) for entry in strike.entries)

        def first() -> list[float]:
            commits = self.commits(at)
            found = [
                [entry.at for entry in commits.get(pid, ()) if entry["step"] > step or entry["replicas"] < full]
                for pid in strike.survivors
            ]
            return [times[0] for times in found if times]

        self.wait(lambda: len(first()) == len(strike.survivors), timeout_s, "the survivors' next step")
        return max(first()) - at

    def restart_s(self, strike: Strike, timeout_s: float) -> float:
        """Return from the strike until processes that began after it have committed a step."""
        at = strike.at

        def first() -> list[float]:
            begun = {entry.pid for entry in self.journal.entries if entry.event == "begun" and entry.at > at}
            return [entries[0].at for pid, entries in self.commits(at).items() if pid in begun]

        self.wait(lambda: bool(first()), timeout_s, "the next step")
        return min(first()) - at
