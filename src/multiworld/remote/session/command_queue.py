"""Commands that wait to be sent to a node, and the lines that issued those which it has not confirmed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from ..protocol import records
from .origins import Origin, line_of
from .waits import count_commands, counting

Command = tuple[bytes, str, Origin]
"""A record, the name of its operation, and where it was issued."""


class Log(Protocol):
    """Keeps what is sent, so that it can be sent again. ``is_at_bound``: the master has to wait until it is shorter."""

    @property
    def is_at_bound(self) -> bool: ...

    def append(self, recorded: Sequence[bytes]) -> None: ...


class CommandQueue:
    """``append`` and ``free`` from any thread, also from a finalizer; all else by one thread at a time.

    ``confirmed``: all records before this position are executed. ``told``: what failed of those before is known, too.
    ``log``: gets all that is taken, if there is one. ``free_record``: makes the record that frees ids, behind all
    commands of this queue that may use them.
    """

    def __init__(self, freed: list[int] | None = None) -> None:
        """``freed``: ids to be freed, where several queues have them together."""
        self.waiting: list[Command] = []
        self.append: Callable[[Command], object] = self.waiting.append
        self._freed = [] if freed is None else freed
        self._refuse: Callable[[Command], None] | None = None
        self.free_record: Callable[[list[int]], bytes] = records.free
        self.free: Callable[[int], object] = self._freed.append
        self._lines = threading.Lock()  # what stands in ``_sent`` goes, and is looked for, by several threads
        self._sent: deque[tuple[int, list[Command]]] = deque()  # batches, each with the position of its first command
        self.position = 0  # of the next record to be sent
        self.confirmed = self.told = 0
        self._behind_sent = 0  # the position behind the last record that was sent and is no free
        self.log: Log | None = None

    def take(self, last: Command | None = None) -> tuple[bytes, int]:
        """Return a batch of all that waits, with ``last`` behind it, and the position of ``last``.

        The batch is empty if nothing waits.
        """
        # What was freed is looked at first: each command that uses such a tensor is then in ``waiting`` already. The
        # lists are never replaced: another thread may be about to append.
        freed, waiting = self._freed, self.waiting
        ids = freed[: len(freed)]
        del freed[: len(ids)]
        commands = waiting[: len(waiting)]
        del waiting[: len(commands)]
        if last is not None:
            commands.append(last)
        last_position = self.position + len(commands) - 1
        if commands:
            self._behind_sent = last_position + 1
        if ids:
            commands.append((self.free_record(ids), "free", None))
        if counting:
            count_commands(commands)
        if commands:
            self._sent.append((self.position, commands))
            self.position += len(commands)
        batch = [command[0] for command in commands]
        if self.log is not None and batch:
            self.log.append(batch)
        return b"".join(batch), last_position

    def discard(self) -> None:
        """The node is lost: forget all, and take nothing more. The oldest of the user's commands stays known."""
        self.append, self.free = self._refuse or self._append_to_lost, ignore
        first = self._first_of_user()
        with self._lines:
            self._sent.clear()
            if first is not None:
                self._sent.append((self.position, [first]))
        del self._freed[:], self.waiting[:]

    def refuse(self, error: Callable[[], Exception]) -> None:
        """Nothing may be issued any more: who tries gets that error at once. Takes no lock."""

        def refuse(command: Command) -> None:
            raise error()

        self.append = self._refuse = refuse

    def _append_to_lost(self, command: Command) -> None:
        if not self._sent and command[2] is not None:
            self._sent.append((self.position, [command]))

    def confirm(self, position: int) -> None:
        """All records before ``position`` were executed. Some may have failed: their lines are still needed."""
        self.confirmed = max(self.confirmed, position)

    def tell(self, position: int) -> None:
        """As ``confirm``, and what failed of them was noted: their lines are needed no more."""
        self.confirm(position)
        self.told = max(self.told, position)
        with self._lines:
            while self._sent and self._sent[0][0] + len(self._sent[0][1]) <= position:
                self._sent.popleft()

    def find(self, position: int) -> tuple[str, str]:
        """Return operation and line of a record that was sent, and of which it was not told whether it failed."""
        command = self._at(position)
        if command is None:
            return "an operation", "a line that is not known any more"
        return command[1], line_of(command[2])

    def shown(self, position: int) -> str:
        """Return operation and line of a record of the user's that is not confirmed; empty for another one."""
        command = self._at(position)
        if command is None or command[2] is None or position < self.confirmed:
            return ""
        return f"{command[1]} at {line_of(command[2])}"

    def first_unconfirmed(self) -> str:
        """Return the oldest operation that may be lost, with its line; empty if there is none."""
        first = self._first_of_user()
        return "" if first is None else f"{first[1]} at {line_of(first[2])}"

    def _at(self, position: int) -> Command | None:
        with self._lines:
            if position < self.told:
                return None
            batches = self._sent.copy()  # at once: another thread may append meanwhile
        return next((batch[position - at] for at, batch in batches if 0 <= position - at < len(batch)), None)

    def _first_of_user(self) -> Command | None:
        # ``copy`` and slices are taken at once: other threads append meanwhile.
        with self._lines:
            batches, confirmed = self._sent.copy(), self.confirmed
        sent = (each for at, batch in batches for each in batch[max(0, confirmed - at) :])
        return next((each for each in (*sent, *self.waiting[:]) if each[2] is not None), None)

    @property
    def end(self) -> int:
        """The position behind all that was appended; no batch may be taken meanwhile."""
        return self.position + len(self.waiting)

    @property
    def num_unexecuted(self) -> int:
        """How many may be executed still, with those that wait; no batch may be taken meanwhile."""
        return self.end - self.confirmed

    @property
    def behind(self) -> int:
        """The position behind the last command that is no free; no batch may be taken meanwhile."""
        return self.end if self.waiting else self._behind_sent

    @property
    def num_unconfirmed(self) -> int:
        return self.position - self.confirmed


def ignore(id_: int) -> None:
    """The tensor of a lost node needs no record to be freed."""
