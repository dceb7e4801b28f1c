"""The worker processes of one benchmark as the one that measures sees them: told what to do, asked what they found."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..testing import Host, Worker, WorkerFailedError, WorkerGroup

PROGRAM = f"{__package__}.member:run"
LOOPBACK = "127.0.0.1"
START_S = 120.0
ANSWER_S = 300.0


class Teammate:
    """One process. ``worker`` can be killed and stopped."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._numbers = itertools.count(1)

    def tell(self, command: str, /, **fields: Any) -> int:
        """Give a command and return at once; the number is for ``answer``."""
        number = next(self._numbers)
        self.worker.command(command, number=number, **fields)
        return number

    def answer(self, number: int) -> Any:
        """Wait for the answer to one command. Raises ``WorkerFailedError`` if the process fails or takes minutes."""
        return self.worker.await_event("done", ANSWER_S, number=number)["value"]

    def ask(self, command: str, /, **fields: Any) -> Any:
        return self.answer(self.tell(command, **fields))


class Team:
    """Processes with ranks 0, 1, …, each a ``member`` that knows the stores; leaving the ``with`` block ends them all.

    If one of them failed, what each did and wrote goes to standard error first.

    ``member`` names a subclass of ``member.Member``: ``module:class`` of this package. With simulated ``hosts``, one
    per rank, each member runs on its own.
    """

    def __init__(self, member: str, size: int, hosts: Sequence[Host] = ()) -> None:
        self._member, self._size, self._hosts = member, size, hosts
        self._workers = WorkerGroup()
        self.members: list[Teammate] = []
        self.endpoints: Mapping[str, Any] = {}
        """What ``meet`` is to tell those who are hired later."""

    def __enter__(self) -> Team:
        try:
            self.members = self.hire(range(self._size))
            self._meet()
        except BaseException as error:
            self.__exit__(type(error), error)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if isinstance(error, WorkerFailedError):
            sys.stderr.write(self._workers.describe() + "\n")
        self._workers.close()

    def hire(self, ranks: range) -> list[Teammate]:
        """Start processes beside the members, and return once they are ready."""
        workers = [self._start(rank) for rank in ranks]
        self._workers.await_all("ready", START_S, among=workers)
        return [Teammate(worker) for worker in workers]

    def all(self, command: str, /, **fields: Any) -> list[Any]:
        """Let every member do something at the same time; return what each answered, by rank."""
        numbers = [member.tell(command, **fields) for member in self.members]
        return [member.answer(number) for member, number in zip(self.members, numbers, strict=True)]

    def lead(self, command: str, /, **fields: Any) -> Any:
        """As ``all``, and return the answer of rank 0."""
        return self.all(command, **fields)[0]

    def _meet(self) -> None:
        """Let rank 0 host the stores, and every member connect."""
        self.endpoints = self.members[0].ask("serve", address=self._address(0))
        for rank, member in enumerate(self.members):
            member.ask("meet", address=self._address(rank), **self.endpoints)

    def _start(self, rank: int) -> Worker:
        netns = self._hosts[rank].netns if self._hosts else None
        return self._workers.start(
            PROGRAM, name=f"rank{rank}", netns=netns, member=self._member, rank=rank, size=self._size
        )

    def _address(self, rank: int) -> str:
        return self._hosts[rank].address if self._hosts else LOOPBACK
