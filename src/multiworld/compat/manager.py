"""``multiworld.WorldManager``: today's manager, and beside it the calls of multiworld 0.0.x and 0.2.x."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Coroutine
from typing import Any

import torch

from ..errors import WorldBrokenError
from ..world import manager
from ..world.liveness import DEFAULT_LEASE_S
from ..world.state import WorldState
from .communicator import WorldCommunicator
from .named_worlds import NamedWorlds

LOG_LEVEL_VARIABLE = "M8D_LOG_LEVEL"


class WatchDog:
    """Shows what the failure detection of one manager sees.

    It detects nothing itself. Detection belongs to the links between the processes. It is always on, also with
    ``enable_monitor=False``: without it an operation could hang. A watchdog runs no thread and ends no process.
    """

    def __init__(self, manager: manager.WorldManager) -> None:
        self._manager = manager

    def __repr__(self) -> str:
        return f"<WatchDog of {len(self.watched)} worlds, {len(self.broken)} broken>"

    @property
    def watched(self) -> list[str]:
        """The names of the worlds whose members are being watched."""
        return [name for name, world in self._manager.worlds.items() if world.state is WorldState.ACTIVE]

    @property
    def broken(self) -> dict[str, WorldBrokenError]:
        """What broke each broken world, until it is removed or formed again."""
        return {name: world.error for name, world in self._manager.worlds.items() if world.error is not None}


class WorldManager(manager.WorldManager):
    """All worlds of this process. Use it as ``async with`` or ``with``, or call ``aclose`` or ``close``.

    ``job`` separates jobs that share a store; default: the launcher's, else ``"default"``. ``token`` (default:
    ``MULTIWORLD_TOKEN``) is a secret, long and random, that every process of the job must prove. ``lease_s`` (0.3 to
    60): a peer that shows no sign of life for this long is lost. ``host``: the numeric address to listen on; default:
    the one that leads to the store, so loopback stays loopback.

    Programs for multiworld 0.0.x and 0.2.x run unchanged with ``initialize_world``, ``remove_world`` and
    ``communicator``. New programs use ``join``, ``rejoin`` and ``World.leave``; both may be mixed. ``enable_monitor``
    is theirs, too: peers are watched in any case.
    """

    def __init__(
        self,
        enable_monitor: bool = True,
        *,
        job: str | None = None,
        token: str | None = None,
        lease_s: float = DEFAULT_LEASE_S,
        host: str | None = None,
    ) -> None:
        set_log_level()
        super().__init__(job=job, token=token, lease_s=lease_s, host=host)
        self._named = NamedWorlds(self)
        self._watchdog = WatchDog(self) if enable_monitor else None

    @property
    def communicator(self) -> WorldCommunicator:
        """The operations of all worlds of this manager, each with a ``world_name``."""
        return WorldCommunicator(self._named)

    def initialize_world(
        self,
        world_name: str,
        rank: int,
        world_size: int,
        backend: str = "gloo",
        addr: str = "127.0.0.1",
        port: int = -1,
        timeout: float = 30,
        device: torch.device | str | None = torch.device("cpu"),  # noqa: B008 - the signature of 0.2.x
    ) -> Coroutine[Any, Any, None]:
        """Form a world whose store rank 0 hosts at ``addr:port``; every rank passes the same address.

        Await what it returns, as in 0.2.x, to have the world and its errors. In a running loop it begins at once, and
        a program for 0.0.x need not await it: operations on the world wait until it is formed.

        ``port`` has no usable default: it must be given. ``timeout`` (seconds) bounds the whole call. ``device`` does
        not count for gloo and tcp; left at its default for nccl, it becomes the one that PyTorch would guess: the CUDA
        device ``rank`` modulo their number. A name is free again once its world broke or was removed.

        Raises ValueError if the name is in use or an argument is out of range, JoinError if the world could not be
        formed; nothing is left behind then, and the call may be repeated.
        """
        return self._named.initialize_world(world_name, rank, world_size, backend, addr, port, timeout, device)

    def add_world(self, world_name: str, backend: str = "gloo") -> None:
        """Reserve a name, which ``initialize_world`` then uses. Raises ValueError if it is in use.

        Programs need not call it. ``backend`` is without effect: ``initialize_world`` is told again.
        """
        self._named.add_world(world_name)

    def remove_world(self, world_name: str) -> None:
        """Leave a world; its name is free at once. Does not block inside a running loop.

        Pending operations on it raise ``BrokenWorldException``; what was sent is still delivered, and the peers see
        that this rank left. Raises ValueError for a name that this manager never had. A second removal is let pass,
        as in 0.2.x.
        """
        self._named.remove_world(world_name)

    def cleanup(self) -> None:
        """Leave every world gracefully and give everything back. Unlike 0.2.x it does not end the process."""
        sys.stdout.flush()
        self.close()


def set_log_level() -> None:
    """Give the logger ``multiworld`` the level that ``M8D_LOG_LEVEL`` names, unless the program gave it one.

    Raises ValueError for a name that is no level. No handler is installed: the program shows the records.
    """
    name = os.environ.get(LOG_LEVEL_VARIABLE)
    package_logger = logging.getLogger("multiworld")
    if not name or package_logger.level != logging.NOTSET:
        return
    level = logging.getLevelName(name.upper())
    if not isinstance(level, int):
        expected = "DEBUG, INFO, WARNING, ERROR or CRITICAL"
        raise ValueError(f"{LOG_LEVEL_VARIABLE}={name!r} is not a logging level: expected {expected}")
    package_logger.setLevel(level)
