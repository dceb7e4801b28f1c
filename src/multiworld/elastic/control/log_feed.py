"""The output of one host's workers, for somebody who asked: the last lines, and those that follow."""

from __future__ import annotations

from collections.abc import Callable

from ..agent.agent import Agent
from ..logs.pump import LogPump
from .messages import Lines


def last_lines(agent: Agent, pump: LogPump, rank: int | None, num_lines: int) -> list[str]:
    """Return the last lines of each worker, or of one: its stdout's, then its stderr's. Progress thread."""
    lines: list[str] = []
    for held in agent.held:
        if held.streams is not None and rank in (None, held.assignment.rank):
            prefix = pump.prefix(held.assignment).decode()
            lines += [prefix + line for stream in held.streams.tails() for line in stream[-num_lines:] if num_lines]
    return lines


def follow_lines(agent: Agent, pump: LogPump, rank: int | None, tell: Callable[[Lines], bool]) -> Callable[[], None]:
    """Call ``tell`` on the pump's thread with parts of an answer; return what ends that.

    ``tell`` returns False if it cannot take more now: then lines are left out, and their number is told later.
    """
    return pump.follow(_Feed(agent, pump, rank, tell).take)


class _Feed:
    def __init__(self, agent: Agent, pump: LogPump, rank: int | None, tell: Callable[[Lines], bool]) -> None:
        self._agent, self._pump, self._rank, self._tell = agent, pump, rank, tell
        self._prefixes: set[bytes] = set()  # also former ones: a worker that gets another place may still write
        self._num_left_out = 0

    def take(self, labelled: bytes) -> None:
        lines = labelled.splitlines()
        if self._rank is not None:
            for held in self._agent.held:
                if held.assignment.rank == self._rank:
                    self._prefixes.add(self._pump.prefix(held.assignment))
            lines = [line for line in lines if line.startswith(tuple(self._prefixes))]
        if not lines:
            return
        texts = tuple(line.decode(errors="replace") for line in lines)
        if self._tell(Lines(lines=texts, left_out=self._num_left_out)):
            self._num_left_out = 0
        else:
            self._num_left_out += len(lines)
