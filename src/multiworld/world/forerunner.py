"""What a ``WorldManager`` offers so that programs for multiworld 0.0.x and 0.2.x run unchanged: worlds by name."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..errors import JoinError
from ..store.base import StoreURL
from ..wire.operation import Operation
from ..wire.waiting import wait_async
from .communicator import WorldCommunicator
from .initialization import Initialization
from .state import WorldState
from .watchdog import WatchDog
from .world import LEAVE_S

if TYPE_CHECKING:
    from .world import World

__all__ = ["ForerunnerManager", "set_log_level"]

LOG_LEVEL_VARIABLE = "M8D_LOG_LEVEL"
REMEMBERED_NAMES = 1024
CPU = torch.device("cpu")


class ForerunnerManager(ABC):
    """The part of ``WorldManager`` that multiworld 0.2.x had.

    New programs use ``join``, ``rejoin`` and ``World.leave`` instead; both may be mixed.
    """

    def __init__(self, *, enable_monitor: bool = True) -> None:
        set_log_level()
        self._communicator = WorldCommunicator(self)
        self._watchdog = WatchDog(self) if enable_monitor else None
        self._added_names: set[str] = set()
        self._initializing: dict[str, asyncio.Future[World]] = {}
        self._failed: OrderedDict[str, BaseException] = OrderedDict()
        """Why worlds could not be initialized, for those who did not await it; the last REMEMBERED_NAMES of them."""
        self._removing: dict[str, Operation[None]] = {}
        self._hosted: dict[str, str] = {}
        """The URL of the store that was opened here for each world that is initialized, and is closed with it."""
        self._removed_names: deque[str] = deque(maxlen=REMEMBERED_NAMES)

    @property
    @abstractmethod
    def worlds(self) -> Mapping[str, World]: ...

    @abstractmethod
    async def join(
        self,
        name: str,
        *,
        rank: int,
        world_size: int,
        store: str,
        backend: str = "auto",
        timeout_s: float = 30.0,
        device: torch.device | str | None = None,
        serve_store: bool = False,
    ) -> World: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def _serves_store(self, url: str) -> bool: ...

    @abstractmethod
    def _stop_store(self, url: str) -> None: ...

    @abstractmethod
    def _leave(self, world: World, timeout_s: float) -> Operation[None]: ...

    @property
    def communicator(self) -> WorldCommunicator:
        """The operations of all worlds of this manager, each with a ``world_name``."""
        return self._communicator

    def initialize_world(
        self,
        world_name: str,
        rank: int,
        world_size: int,
        backend: str = "gloo",
        addr: str = "127.0.0.1",
        port: int = -1,
        timeout: float = 30,
        device: torch.device | str | None = CPU,
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
        store = _store_url(addr, port)
        if self._is_in_use(world_name):
            raise _name_error(world_name)
        self._added_names.discard(world_name)
        self._failed.pop(world_name, None)
        arguments = {
            "rank": rank,
            "world_size": world_size,
            "store": store,
            "backend": backend,
            "timeout_s": timeout,
            "device": _device(backend, rank, device),
            "serve_store": rank == 0,
        }
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # asyncio.run(manager.initialize_world(...))
            return self._initialize(world_name, None, arguments)
        reserved: asyncio.Future[World] = loop.create_future()
        self._initializing[world_name] = reserved  # the name is in use now, the work begins in a moment

        def release() -> None:  # it was cancelled before its first step, which takes the name over
            if self._initializing.get(world_name) is reserved:
                del self._initializing[world_name]
                reserved.cancel()

        return Initialization(world_name, self._initialize(world_name, reserved, arguments), release)

    async def _initialize(
        self, world_name: str, reserved: asyncio.Future[World] | None, arguments: Mapping[str, Any]
    ) -> None:
        if reserved is not None and reserved.cancelled():
            raise _given_up(world_name)
        forming = asyncio.ensure_future(self._join_when_free(world_name, **arguments))
        self._initializing[world_name] = forming
        if reserved is not None:
            reserved.cancel()  # who waits for it goes on with what took its place
        try:
            await forming
        except asyncio.CancelledError:
            if self._initializing.get(world_name) is not forming:
                raise _given_up(world_name) from None
            raise
        except Exception as error:
            self._note_failure(world_name, error)
            raise
        finally:
            if self._initializing.get(world_name) is forming:
                del self._initializing[world_name]

    async def wait_initialized(self, world_name: str) -> None:
        """Return when no initialization of that name is under way; its errors are not this caller's."""
        while (forming := self._initializing.get(world_name)) is not None:
            await asyncio.wait([forming])
            await asyncio.sleep(0)  # whoever forms it notes the outcome

    def why_failed(self, world_name: str) -> BaseException | None:
        """Return why the last initialization of that name failed, if it did."""
        return self._failed.get(world_name)

    def _note_failure(self, world_name: str, error: BaseException) -> None:
        self._failed[world_name] = error
        while len(self._failed) > REMEMBERED_NAMES:
            self._failed.popitem(last=False)

    def add_world(self, world_name: str, backend: str = "gloo") -> None:
        """Reserve a name, which ``initialize_world`` then uses. Raises ValueError if it is in use.

        Programs need not call it. ``backend`` is without effect: ``initialize_world`` is told again.
        """
        if world_name in self._added_names or self._is_in_use(world_name):
            raise _name_error(world_name)
        self._added_names.add(world_name)

    def remove_world(self, world_name: str) -> None:
        """Leave a world; its name is free at once. Does not block inside a running loop.

        Pending operations on it raise ``BrokenWorldException``; what was sent is still delivered, and the peers see
        that this rank left. Raises ValueError for a name that this manager never had; one that it removed before is
        let pass, as in 0.2.x.
        """
        forming = self._initializing.pop(world_name, None)
        world = self.find_world(world_name)
        if forming is not None:
            forming.cancel()
        elif world is not None:
            leaving = self._removing[world_name] = self._leave(world, LEAVE_S)
            leaving.add_callback(lambda _: self._end_removal(world_name, leaving))
        elif world_name in self._added_names:
            self._added_names.discard(world_name)
        elif world_name not in self._removed_names:
            known = ", ".join(sorted(self.worlds)) or "none"
            raise ValueError(f"world {world_name!r} does not exist; the worlds of this process: {known}")
        if world_name not in self._removed_names:
            self._removed_names.append(world_name)

    def cleanup(self) -> None:
        """Leave every world gracefully and give everything back. Unlike 0.2.x it does not end the process."""
        sys.stdout.flush()
        self.close()

    def find_world(self, world_name: str) -> World | None:
        """Return the world of that name, broken or not; None if there is none or it was removed."""
        return None if world_name in self._removing else self.worlds.get(world_name)

    def is_forming(self, world_name: str) -> bool:
        """Whether the name was added, or is being initialized, and has no world yet."""
        return world_name in self._added_names or world_name in self._initializing

    def _is_in_use(self, world_name: str) -> bool:
        if world_name in self._initializing:
            return True
        world = self.find_world(world_name)
        return world is not None and world.state in (WorldState.FORMING, WorldState.ACTIVE)

    async def _join_when_free(self, name: str, **arguments: Any) -> World:
        """Join, but first let the removal of an earlier world of that name come to its end, which is bounded."""
        leaving = self._removing.get(name)
        if leaving is not None:
            await wait_async(_copy_of(leaving))
        store = arguments["store"]
        if arguments["serve_store"] and (not self._serves_store(store) or store in self._hosted.values()):
            if self._hosted.get(name) not in (None, store):  # of a world of that name that has broken
                self._close_store_of(name)
            self._hosted[name] = store
        try:
            return await self.join(name, **arguments)
        except BaseException:
            self._close_store_of(name)
            raise

    def _end_removal(self, name: str, leaving: Operation[None]) -> None:
        if self._removing.get(name) is leaving:
            del self._removing[name]
            self._close_store_of(name)

    def _close_store_of(self, name: str) -> None:
        """Close the store that was opened for a world, unless another world uses it."""
        store = self._hosted.pop(name, None)
        if store is not None and store not in self._hosted.values():
            self._stop_store(store)


def set_log_level() -> None:
    """Give the logger ``multiworld`` the level that ``M8D_LOG_LEVEL`` names, unless the program gave it one.

    Raises ValueError for a name that is no level. No handler is installed: showing the records is up to the program.
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


def _copy_of(operation: Operation[None]) -> Operation[None]:
    """Return an operation that may be cancelled without the other."""
    copy: Operation[None] = Operation()

    def finish(_: Operation[None]) -> None:
        copy.succeed(None)

    operation.add_callback(finish)
    return copy


def _given_up(world_name: str) -> JoinError:
    return JoinError(world_name, "remove_world() was called while it was being initialized")


def _name_error(world_name: str) -> ValueError:
    return ValueError(f"world {world_name!r} already exists; remove_world() it first, or use another name")


def _store_url(addr: str, port: int) -> str:
    if not 0 < port < 65536:
        raise ValueError(f"port must be the number, from 1 to 65535, at which rank 0 hosts the store, got {port}")
    return str(StoreURL("tcp", addr, port))


def _device(backend: str, rank: int, device: torch.device | str | None) -> torch.device | None:
    """Return the device to join with. For worlds on the CPU programs pass their GPU too, which 0.2.x let pass."""
    device = CPU if device is None else torch.device(device)
    if backend in ("gloo", "tcp"):
        return None
    if backend == "nccl" and device.type == "cpu":
        return torch.device("cuda", rank % max(1, torch.cuda.device_count()))
    return device
