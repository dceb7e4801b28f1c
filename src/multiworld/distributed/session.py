"""One life of the default group, from `init_process_group` to `destroy_process_group`, and the groups made in it."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence

import torch

from ..world.manager import WorldManager
from ..world.processes.lifetime import unwatch_process, watch_process
from ..world.state import WorldState
from ..world.world import World
from .place import Place
from .process_group import GroupMember, ProcessGroup, check_timeout

NAME = "default"
BROKE = "this group broke before rejoin(): make it again with new_group(), in all processes"
DESTROYED = "this group was destroyed: make another with new_group(), in all processes"


class Session:
    """A manager with one world of all processes, and one world for each group of some of them."""

    def __init__(
        self,
        manager: WorldManager,
        place: Place,
        *,
        backend: str,
        device: torch.device | str | None,
        timeout_s: float | None,
        join_timeout_s: float,
        on_forked: Callable[[Session], None],
    ) -> None:
        self._manager, self._place, self._backend, self._device = manager, place, backend, device
        self._timeout_s, self._join_timeout_s = timeout_s, join_timeout_s
        self._on_forked = on_forked
        self._lock = threading.Lock()
        self._default: ProcessGroup | None = None
        self._groups: list[ProcessGroup] = []
        self._last_number = 0  # of a group of the default group's present generation
        self._over = ""
        watch_process(self)

    @property
    def default(self) -> ProcessGroup:
        assert self._default is not None, "used before it was formed"
        return self._default

    def form(self) -> None:
        place = self._place
        world = self._manager.blocking.join(
            NAME,
            rank=place.rank,
            world_size=place.world_size,
            store=place.store,
            backend=self._backend,
            timeout_s=self._join_timeout_s,
            device=self._device,
            serve_store=place.serves_store,
        )
        self._use(world)

    def form_again(self, join_timeout_s: float | None) -> None:
        self._use(self._manager.blocking.rejoin(NAME, self._join_s(join_timeout_s)))
        for group in self._groups.copy():
            if group.world.state is WorldState.BROKEN:
                self.destroy(group, 0.0, BROKE)

    def new_group(
        self,
        ranks: Sequence[int] | None,
        *,
        backend: str | None,
        device: torch.device | str | None,
        timeout_s: float | None,
        join_timeout_s: float | None,
    ) -> ProcessGroup | GroupMember:
        everyone = self.default.world
        members = _check_ranks(ranks, everyone.world_size)
        check_timeout(timeout_s)
        backend = self._backend if backend is None else backend
        join_s = self._join_s(join_timeout_s)
        number = _agree(everyone, self._last_number + 1, members, backend, join_s)
        self._last_number = number
        if everyone.rank not in members:
            return GroupMember.NON_GROUP_MEMBER
        world = self._manager.blocking.join(
            f"group-{everyone.generation}.{number}",
            rank=members.index(everyone.rank),
            world_size=len(members),
            store=self._place.store,
            backend=backend,
            timeout_s=join_s,
            device=self._device if device is None else device,
        )
        group = ProcessGroup(world, members, self._timeout_s if timeout_s is None else timeout_s)
        with self._lock:
            self._groups.append(group)
            group.over = self._over  # another thread may have ended the session meanwhile
        return group

    def destroy(self, group: ProcessGroup, timeout_s: float, reason: str = DESTROYED) -> None:
        group.over = reason
        with self._lock:
            if group in self._groups:
                self._groups.remove(group)
        group.world.blocking.leave(timeout_s)

    def close(self, timeout_s: float, reason: str) -> None:
        """Leave all groups; ``reason`` is what those who use them get to read."""
        unwatch_process(self)
        with self._lock:
            self._end(reason)
        self._manager.close(timeout_s)

    def on_exit(self) -> None:
        """The manager leaves its worlds itself."""

    def on_fork(self) -> None:
        self._on_forked(self)

    def abandon(self, reason: str) -> None:
        """In a forked child, where no lock is safe to take."""
        self._end(reason)

    def _end(self, reason: str) -> None:
        self._over = reason
        for group in self._groups if self._default is None else [self._default, *self._groups]:
            group.over = reason

    def _use(self, world: World) -> None:
        """Groups are counted anew in each generation, so that newcomers count like all others."""
        self._default = ProcessGroup(world, range(world.world_size), self._timeout_s)
        self._last_number = 0

    def _join_s(self, join_timeout_s: float | None) -> float:
        return self._join_timeout_s if join_timeout_s is None else join_timeout_s


def _check_ranks(ranks: Sequence[int] | None, world_size: int) -> list[int]:
    """Return the ranks of a new group in ascending order; None: all. Raises TypeError or ValueError."""
    if ranks is None:
        return list(range(world_size))
    if isinstance(ranks, (str, bytes)) or not isinstance(ranks, Sequence):
        raise TypeError(f"ranks must be a list of ranks (ints), got {ranks!r}")
    for rank in ranks:
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise TypeError(f"ranks must be a list of ranks (ints), but holds {rank!r}")
        if not 0 <= rank < world_size:
            raise ValueError(f"ranks={list(ranks)}: {rank} is not one of the ranks 0 to {world_size - 1}")
    if not ranks:
        raise ValueError("ranks=[]: a group has at least one member; None stands for all processes")
    if len(set(ranks)) < len(ranks):
        raise ValueError(f"ranks={list(ranks)}: a rank is named twice")
    return sorted(ranks)


def _agree(everyone: World, number: int, ranks: list[int], backend: str, timeout_s: float | None) -> int:
    """Compare the new group with what all others mean to make; return the highest ``number`` that any of them has.

    ValueError on each if they differ. Without this, processes that mean different groups would wait for each other,
    or form one that nobody meant.
    """
    mine = torch.zeros(2 + everyone.world_size, dtype=torch.int64)
    mine[0], mine[1] = number, zlib.crc32(backend.encode())
    mine[[2 + rank for rank in ranks]] = 1
    calls = [torch.empty_like(mine, device=everyone.device) for _ in range(everyone.world_size)]
    everyone.blocking.all_gather(calls, mine.to(everyone.device), timeout_s)
    records = [call.tolist() for call in calls]
    for rank, record in enumerate(records):
        theirs = [other for other, is_in in enumerate(record[2:]) if is_in]
        if theirs != ranks:
            raise ValueError(
                f"new_group({ranks}) was called here, but rank {rank} called new_group({theirs}) as the same: all "
                "processes make the same groups in the same order"
            )
        if record[1] != mine[1]:
            raise ValueError(f"new_group({ranks}): rank {rank} asks for another backend than {backend!r}")
    return max(int(record[0]) for record in records)
