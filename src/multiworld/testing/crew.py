"""The members of worlds, as a test sees them: processes that join, send, receive and fail at its word."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .deadlines import scaled
from .hosts import Host
from .processes import DEFAULT_TIMEOUT_S, Report, Worker
from .worker_group import WorkerGroup

PROGRAM = "multiworld.testing.member_program:run"
Launch = Callable[..., list[Worker]]
"""How processes are started: ``launch(workers, program, names, **options)``, as ``launch_workers`` does it."""
_call_numbers = itertools.count(1)


def launch_workers(
    workers: WorkerGroup, program: str, names: Sequence[str], *, netns: str | None = None, **options: Any
) -> list[Worker]:
    """Start a worker for each name, which calls ``program(**options)``, and return them at once.

    Another launcher may start all of them by one command, as ``mpiexec`` does. It must put into the group what kills
    and reaps them, and return for each a ``Worker`` of the process that runs the program, not of its parent.
    """
    return [workers.start(program, name=name, netns=netns, **options) for name in names]


@dataclass(frozen=True)
class Outcome:
    """How a call ended, and at which CLOCK_MONOTONIC time in its process. ``error`` is the class's name."""

    at: float
    took_s: float
    value: Any = None
    error: str | None = None
    bases: Sequence[str] = ()
    message: str = ""
    fields: Mapping[str, Any] | None = None


class Call:
    """A command that a member was given."""

    def __init__(self, member: Member, name: str, fields: Mapping[str, Any]) -> None:
        self.member, self.name, self.fields, self.number = member, name, fields, next(_call_numbers)
        member.worker.command(name, id=self.number, **fields)

    def __repr__(self) -> str:
        return f"<Call {self.number} {self.name} of {self.member.worker.name}>"

    def started(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Call:
        """Wait until the member's event loop is about to issue it."""
        self.member.worker.await_event("started", timeout_s, id=self.number)
        return self

    def outcome(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Outcome:
        """Wait for the end, be it a result or an error."""
        report = self.member.worker.await_event(("done", "failed"), timeout_s, id=self.number)
        fields = {name: value for name, value in report.fields.items() if name != "id"}
        return Outcome(at=report.at, **fields)

    def result(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Any:
        """Wait for the result. Raises ``AssertionError`` if the call failed."""
        outcome = self.outcome(timeout_s)
        if outcome.error is not None:
            raise AssertionError(f"{self!r} failed: {outcome.error}: {outcome.message}")
        return outcome.value

    def failure(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Outcome:
        """Wait for the error. Raises ``AssertionError`` if the call succeeded."""
        outcome = self.outcome(timeout_s)
        if outcome.error is None:
            raise AssertionError(f"{self!r} returned {outcome.value!r}, but had to fail")
        return outcome


class Member:
    """A process with a ``WorldManager``, on this machine or on a simulated host."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def __repr__(self) -> str:
        return f"<Member {self.worker!r}>"

    def call(self, name: str, **fields: Any) -> Call:
        """Give a command of ``member_program``; it runs beside the earlier ones."""
        return Call(self, name, fields)

    def do(self, name: str, **fields: Any) -> Any:
        """Give a command and return its result."""
        return self.call(name, **fields).result()

    def await_broken(self, world: str, timeout_s: float = DEFAULT_TIMEOUT_S) -> Report:
        """Wait until ``World.wait_broken`` has returned there."""
        return self.worker.await_event("broken", timeout_s, world=world)

    def is_broken(self, world: str) -> bool:
        """Whether the world has been reported broken until now."""
        return any(report["world"] == world for report in self.worker.events("broken"))

    def quit(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> int:
        """Let the member close its manager and end; return the exit status."""
        self.worker.command("quit")
        return self.worker.wait(timeout_s)


class Crew:
    """Members with ranks 0, 1, ..., and the store that introduces them, served by ``store_host`` (default: member 0).

    ``hosts`` puts member i on simulated host i. ``options`` go to each ``WorldManager``. ``program`` obeys all commands
    of ``member_program``, and ``launch`` starts it in the processes.
    """

    def __init__(
        self,
        workers: WorkerGroup,
        size: int,
        *,
        hosts: Sequence[Host] | None = None,
        store_host: int = 0,
        program: str = PROGRAM,
        launch: Launch = launch_workers,
        **options: Any,
    ) -> None:
        self._workers, self._hosts, self._options = workers, hosts, options
        self._program, self._launch = program, launch
        self.members = self._hire_all(range(size))
        self.await_ready()
        address = "127.0.0.1" if hosts is None else hosts[store_host].address
        self.store: str = self.members[store_host].do("serve_store", url=f"tcp://{address}:0")

    def __getitem__(self, rank: int) -> Member:
        return self.members[rank]

    def hire(self, rank: int) -> Member:
        """Start a process without waiting for it, to be put in place of ``members[rank]`` or beside them."""
        (member,) = self._hire_all([rank])
        return member

    def _hire_all(self, ranks: Sequence[int]) -> list[Member]:
        if self._hosts is not None:
            return [self._hire_on(rank, self._hosts[rank]) for rank in ranks]
        names = [self._name(rank, index) for index, rank in enumerate(ranks)]
        return [Member(worker) for worker in self._launch(self._workers, self._program, names, **self._options)]

    def _hire_on(self, rank: int, host: Host) -> Member:
        options = {**self._options, "host": host.address, "netns": host.netns}
        (worker,) = self._launch(self._workers, self._program, [self._name(rank)], **options)
        return Member(worker)

    def _name(self, rank: int, num_before: int = 0) -> str:
        return f"member{rank}-{len(self._workers.workers) + num_before}"

    def await_ready(self, members: Sequence[Member] | None = None, timeout_s: float = 60.0) -> None:
        """Wait until the processes have imported what they need and have their managers."""
        chosen = self.members if members is None else members
        self._workers.await_all("ready", timeout_s, among=[member.worker for member in chosen])

    def form(
        self, world: str, ranks: Sequence[int] | None = None, *, backend: str = "tcp", timeout_s: float = 30.0
    ) -> list[Any]:
        """Let members form a world, numbered in the order of ``ranks`` (default: all); return what each joined."""
        members = self.members if ranks is None else [self.members[rank] for rank in ranks]
        fields = {"world": world, "world_size": len(members), "store": self.store, "backend": backend}
        calls = [
            member.call("join", rank=rank, timeout_s=scaled(timeout_s), **fields) for rank, member in enumerate(members)
        ]
        return [call.result(timeout_s + 5) for call in calls]

    def reform(
        self, world: str, newcomer: int, member: Member, *, backend: str = "tcp", timeout_s: float = 30.0
    ) -> None:
        """Put ``member`` in the place of rank ``newcomer`` and let all form the world's next generation."""
        self.members[newcomer] = member
        fields = {"rank": newcomer, "world_size": len(self.members), "store": self.store, "backend": backend}
        calls = [
            other.call("join", world=world, timeout_s=scaled(timeout_s), **fields)
            if other is member
            else other.call("rejoin", world=world, timeout_s=scaled(timeout_s))
            for other in self.members
        ]
        for call in calls:
            call.result(timeout_s + 5)

    def check_works(self, world: str, ranks: Sequence[int] | None = None) -> None:
        """Let all members reduce once and see the right sum: the world is in order."""
        members = self.members if ranks is None else [self.members[rank] for rank in ranks]
        for call in [member.call("collective", world=world, kind="all_reduce", number=7) for member in members]:
            call.result()

    def survivors(self, *lost: int) -> list[Member]:
        """Return the members but those of the given ranks."""
        return [member for rank, member in enumerate(self.members) if rank not in lost]
