"""The interface of a rendezvous: where a job's coordinator is, or that this agent is to be it."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ...wire.progress.thread import ProgressThread


class Address(NamedTuple):
    """Where an agent listens; ``host`` is numeric."""

    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What one look has found: ``leads`` if this agent is to coordinate, else whom to call, in this order.

    ``taken``: those of ``call`` that are addresses of this host, at which somebody else listens already.
    """

    leads: bool = False
    call: list[Address] = field(default_factory=list)
    taken: list[Address] = field(default_factory=list)


class Rendezvous(abc.ABC):
    """Everything here runs on the agent's progress thread; coroutines are steps for ``wire.progress.operation.drive``.

    A rendezvous introduces. Once agents know each other, they agree among themselves who coordinates after a loss.
    """

    retry_s: float = 0.25
    """How long to wait between two looks."""

    def attach(self, loop: ProgressThread, me: Address) -> None:
        """Called once, before the first look: ``loop`` is the progress thread, ``me`` where this agent listens."""

    @abc.abstractmethod
    async def look(self, listen: Callable[[Address], bool]) -> Advice:
        """Look once. ``listen`` makes this agent listen at one more address; False: that is taken.

        Raises MultiworldError if nothing can come of it, however often it is tried.
        """

    def announce(self, me: Address, term: int) -> None:
        """This agent coordinates from now on, at ``me``; terms count coordinators. Must not block."""

    def withdraw(self) -> None:
        """It does no longer."""

    def lookouts(self) -> list[Address]:
        """Return where agents may wait that were started anew, and do not know that the job has moved."""
        return []

    def why_nobody(self) -> str:
        """Return, in a clause, why the last look may have led to nobody, and what to see to."""
        return "is the agent of that host running, and can it be reached from here?"

    def close(self) -> None:
        """Begin to end it. Idempotent; must not block."""

    def wait_closed(self, timeout_s: float) -> None:
        """Wait for what ``close`` began; the one method for other threads than the progress thread."""

    @abc.abstractmethod
    def __str__(self) -> str:
        """Where it looks, for people."""
