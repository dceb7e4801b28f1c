"""Simulated worlds: who meets in them, and who is told that a member is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from multiworld.errors import (
    JoinError,
    JoinTimeoutError,
    PeerDiedError,
    PeerSilentError,
    PeerStoppedError,
    PeerUnreachableError,
    WorldBrokenError,
)
from multiworld.wire.progress.operation import Operation

from .member import SEEN_S, Member
from .network import LEASE_S, Network
from .turns import Process, Turns

MEET_S = 0.002
"""Mean time until a world is formed on one of its members, once all have come."""


class Worlds:
    """All worlds of a simulation."""

    def __init__(self, turns: Turns, network: Network) -> None:
        self.turns, self.network = turns, network
        self._forming: dict[tuple[str, str], Formation] = {}
        """By store and name: who joins at one store meets nobody who joins at another."""
        self.standing: list[Member] = []
        """That are not closed on living processes."""

    def join(
        self, process: Process, store: str, name: str, rank: int, size: int, timeout_s: float
    ) -> Operation[Member]:
        formation = self._forming.setdefault((store, name), Formation(self, store, name, size))
        return formation.join(process, rank, size, timeout_s)

    def formed(self, formation: Formation) -> None:
        del self._forming[formation.store, formation.name]

    def with_peer(self, process: Process) -> Iterator[tuple[Member, int]]:
        """Yield the worlds of others that are not closed there, in which that process is a member, and its rank."""
        for here in list(self.standing):
            if here.process is not process:
                for peer in here.others():
                    if peer.process is process:
                        yield here, peer.rank

    def died(self, process: Process) -> None:
        """The kernels of all that reach it see its connections close, each at its time."""
        self.standing = [each for each in self.standing if each.process is not process]
        for here, rank in self.with_peer(process):
            self._lose_later(self.turns.some(SEEN_S), here, rank, PeerDiedError)
        self._tell_forming(process)

    def _tell_forming(self, process: Process) -> None:
        for formation in self._forming.values():
            formation.died(process)

    def stopped(self, process: Process) -> None:
        """It does not answer any more. After a lease the others take it for lost."""
        for here, rank in self.with_peer(process):
            error = PeerStoppedError if here.process.host == process.host else PeerSilentError
            self._lose_later(LEASE_S, here, rank, error, lambda: process.is_stopped)

    def cut(self) -> None:
        """Some hosts do not reach the others any more."""
        number = self.network.cut_number
        for here in list(self.standing):
            for other in here.others():
                if not self.network.reaches(here.process, other.process):
                    seen_s = LEASE_S + self.turns.some(SEEN_S)
                    self._lose_later(
                        seen_s, here, other.rank, PeerUnreachableError, lambda: self.network.cut_number == number
                    )

    def part(self, one: Process, other: Process) -> None:
        """They live, and take each other for gone."""
        for process, peer in ((one, other), (other, one)):
            for here, rank in self.with_peer(peer):
                if here.process is process:
                    self._lose_later(self.turns.some(SEEN_S), here, rank, PeerUnreachableError)

    def healed(self) -> None:
        for formation in list(self._forming.values()):
            formation.look()

    def _lose_later(
        self,
        delay_s: float,
        here: Member,
        rank: int,
        error: type[WorldBrokenError],
        still: Callable[[], bool] = lambda: True,
    ) -> None:
        def lose() -> None:
            if error is PeerDiedError and not self.network.reaches(here.process, here.process_of(rank)):
                self._lose_later(LEASE_S, here, rank, PeerUnreachableError)
            elif still():
                here.loses(rank, error)

        self.turns.after(delay_s, lose, here.process)


@dataclass
class _Joining:
    process: Process
    operation: Operation[Member]


class Formation:
    """A world that is being formed. All meet as soon as all have come, and reach each other."""

    def __init__(self, worlds: Worlds, store: str, name: str, size: int) -> None:
        self.store, self.name, self.size = store, name, size
        self._worlds = worlds
        self._came: dict[int, _Joining] = {}
        self.members: list[Member] = []

    def join(self, process: Process, rank: int, size: int, timeout_s: float) -> Operation[Member]:
        assert size == self.size, f"{self.name}: {size} and {self.size} members"
        turns = self._worlds.turns
        turns.check_alive()
        operation: Operation[Member] = Operation()
        joining = _Joining(process, operation)

        def came() -> None:
            if not operation.done:
                assert rank not in self._came, f"{self.name}: rank {rank} twice"
                self._came[rank] = joining
                self.look()

        def cancelled() -> None:
            if not self.members and self._came.get(rank) is joining:
                del self._came[rank]
            elif self.members:
                self.members[rank].abort()

        operation.on_cancel = cancelled
        turns.after(turns.some(MEET_S), came, process)
        turns.after(
            timeout_s, lambda: operation.cancel(JoinTimeoutError(self.name, "the others did not come")), process
        )
        return operation

    def died(self, process: Process) -> None:
        for rank, joining in list(self._came.items()):
            if joining.process is process:
                del self._came[rank]

    def look(self) -> None:
        worlds, some = self._worlds, list(self._came.values())
        if len(some) < self.size or any(not worlds.network.reaches(some[0].process, each.process) for each in some):
            return
        worlds.formed(self)
        self.members = [Member(worlds, self, rank, self._came[rank].process) for rank in range(self.size)]
        worlds.standing += self.members
        for member in self.members:
            joining = self._came[member.rank]
            worlds.turns.after(worlds.turns.some(MEET_S), partial(self._met, member, joining), member.process)

    def _met(self, member: Member, joining: _Joining) -> None:
        if member.activate():
            if not joining.operation.succeed(member):
                member.abort()
        else:
            error = member.error
            member.abort()
            joining.operation.fail(JoinError(self.name, f"a member was lost meanwhile: {error}"))
