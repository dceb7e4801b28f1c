"""Which members keep which parameters equal, and the worlds in which they do: one for each distinct set of owners."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...errors import JoinError, PeerLeftError, StoreError, WorldBrokenError, WorldClosedError
from ...wire.progress.operation import Operation
from ...world.state import WorldState
from ...world.world import World
from .assignment import Assignment

FORM_S = 5.0
LEAVE_S = 1.0
WATCH_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Owned:
    """Names of parameters and buffers that the same members hold: ``owners``, by their place in the team's world."""

    owners: tuple[int, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]


def owned_by(
    assignment: Assignment,
    member: str,
    place_of: Callable[[str], int],
    layers_with: Callable[[str], Sequence[int]],
    parameters: Sequence[str],
    buffers: Sequence[str],
) -> list[Owned]:
    """Return what ``member`` holds by its owners, in an order that all owners find. Pure.

    ``parameters``, ``buffers``: the names of those that it holds, in the model's order.
    """
    by_owners: dict[tuple[int, ...], tuple[list[str], list[str]]] = {}
    for number, names in enumerate((parameters, buffers)):
        for name in names:
            owners = tuple(sorted(map(place_of, assignment.owners_of_all(layers_with(name)))))
            assert place_of(member) in owners, f"{name} is held by a member that does not own it"
            by_owners.setdefault(owners, ([], []))[number].append(name)
    return [
        Owned(owners=owners, parameters=tuple(mine), buffers=tuple(others))
        for owners, (mine, others) in sorted(by_owners.items())
    ]


class OwnersWorlds:
    """The worlds of the sets of owners that this process is in, beside the team's world; a set of one has none."""

    def __init__(self) -> None:
        self._worlds: dict[tuple[int, ...], World] = {}

    def form(self, team: World, sets: Sequence[tuple[int, ...]]) -> Mapping[tuple[int, ...], World]:
        """Form those of a new generation, all at once; the old ones are over.

        Raises the error of the team's world if that breaks meanwhile; then nothing is left behind.
        """
        self.close()
        joining = {
            owners: team.start_beside(_name(team, owners), owners.index(team.rank), len(owners), FORM_S)
            for owners in sets
            if len(owners) > 1
        }
        try:
            for owners, operation in joining.items():
                self._worlds[owners] = _joined(team, operation)
        except BaseException:
            for operation in joining.values():
                operation.cancel(JoinError(team.name, "it was given up"))
            for operation in joining.values():
                if operation.done and operation.error is None:
                    operation.result().abort()
            self._worlds.clear()
            raise
        for world in self._worlds.values():
            _end_with(team, world)
            _end_with(world, team)
        return dict(self._worlds)

    @property
    def error(self) -> WorldBrokenError | None:
        return next((each.error for each in self._worlds.values() if each.error is not None), None)

    def close(self) -> None:
        worlds, self._worlds = self._worlds, {}
        for world in worlds.values():
            if world.state is WorldState.ACTIVE:
                world.blocking.leave(LEAVE_S)
            else:
                world.abort()


def _name(team: World, owners: Sequence[int]) -> str:
    return f"{team.name}.owners-{'-'.join(map(str, owners))}"


def _joined(team: World, operation: Operation[World]) -> World:
    settled = threading.Event()
    operation.add_callback(lambda _: settled.set())
    while not settled.wait(WATCH_S):
        if team.error is not None:
            raise team.error
    try:
        return operation.result()
    except (JoinError, StoreError, WorldBrokenError):
        error = team.error
        team.abort()  # the others look for the next generation, too
        raise error or WorldClosedError(team.name, team.generation) from None


def _end_with(world: World, other: World) -> None:
    """Have a loss in one world end what waits in the other one. Who leaves one leaves the other one, too."""

    def ended() -> None:
        if world.error is not None and not isinstance(world.error, PeerLeftError):
            other.abort()

    world.on_broken(ended)
