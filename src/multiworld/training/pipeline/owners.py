"""Which members keep which parameters equal, and the worlds in which they do: one for each distinct set of owners."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

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
    """Uses of parameters, and buffers, that the same members hold or get, and the same members compute.

    Members are places in the team's world; ``computing`` are those of ``owners`` that have gradients.
    """

    owners: tuple[int, ...]
    computing: tuple[int, ...]
    uses: tuple[str, ...]
    buffers: tuple[str, ...]


def owned_by(
    assignment: Assignment,
    place_of: Callable[[str], int],
    uses: Mapping[str, tuple[Sequence[int], Sequence[int]]],
    buffers: Mapping[str, Sequence[int]],
    kind: Callable[[Sequence[int]], tuple[object, ...]] = lambda layers: (),
    *,
    coming: Assignment | None = None,
) -> list[Owned]:
    """Return what a member holds by its owners, in an order that all owners find. Pure.

    ``uses``: of each use of a parameter that it holds, the layers that hold it and those that compute it; ``buffers``:
    of each, its layers; both in the model's order. ``kind``: given layers that compute a use, what else has to be equal
    for two uses to be together. ``coming``: those who get layers by it are owners already.
    """

    def computing_places(layers: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(map(place_of, assignment.owners_of_all(layers))))

    def places(layers: Sequence[int]) -> tuple[int, ...]:
        more = () if coming is None else coming.owners_of_all(layers)
        return tuple(sorted({*computing_places(layers), *map(place_of, more)}))

    found: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[object, ...]], tuple[list[str], list[str]]] = {}
    for name, (held_in, computed_in) in uses.items():
        found.setdefault((places(held_in), computing_places(computed_in), kind(computed_in)), ([], []))[0].append(name)
    for name, layers in buffers.items():
        found.setdefault((places(layers), computing_places(layers), kind(layers)), ([], []))[1].append(name)
    return [
        Owned(owners=owners, computing=computing, uses=tuple(mine), buffers=tuple(others))
        for (owners, computing, _), (mine, others) in sorted(found.items())
    ]


class OwnersWorlds:
    """The worlds of the sets of owners that this process is in. All members together have the team's world; one alone
    has none.
    """

    def __init__(self) -> None:
        self._worlds: dict[tuple[int, ...], World] = {}

    def form(self, team: World, sets: Sequence[tuple[int, ...]]) -> Mapping[tuple[int, ...], World]:
        """Form those of a new generation, all at once; the old ones are over.

        Raises the error of the team's world if that breaks meanwhile; then nothing is left behind.
        """
        self.close()
        joining = {
            owners: team.start_beside(_name(team, owners), owners.index(team.rank), len(owners), FORM_S)
            for owners in dict.fromkeys(sets)
            if 1 < len(owners) < team.world_size
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
        _end_together(team, self._worlds)
        whole = {owners: team for owners in sets if 1 < len(owners) == team.world_size}
        return {**self._worlds, **whole}

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


def _end_together(team: World, worlds: Mapping[tuple[int, ...], World]) -> None:
    """Have a loss in one world end what waits in all others. Who leaves one leaves the others, too.

    The team's world breaks with the same error, so that it knows whom it has lost. The others are aborted here, each
    of them: a world that was aborted has no error by which it could end a third one.
    """
    worlds = dict(worlds)

    def end_others(broken: World, owners: Sequence[int]) -> None:
        error = broken.error
        if error is None or isinstance(error, PeerLeftError):
            return
        if broken is not team:
            rank = owners[error.rank] if 0 <= error.rank < len(owners) else -1
            team.break_with(type(error)(team.name, team.generation, rank, error.cause))
        for world in worlds.values():
            if world is not broken:
                world.abort()

    team.on_broken(partial(end_others, team, ()))
    for owners, world in worlds.items():
        world.on_broken(partial(end_others, world, owners))
