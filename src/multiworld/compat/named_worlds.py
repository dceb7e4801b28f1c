"""What ``initialize_world`` and ``remove_world`` of multiworld 0.0.x and 0.2.x do: which name is which world, and when.

A name is taken from the call of ``initialize_world`` on, before there is a world, and free again at ``remove_world``,
before the world has been left. ``WorldCommunicator`` looks the names up here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

import torch

from ..errors import JoinError
from ..store.base import StoreURL
from ..wire.progress.operation import Operation
from ..wire.progress.waiting import wait_async
from ..world.state import WorldState
from ..world.world import LEAVE_S, World
from .initialization import Initialization

REMEMBERED_NAMES = 1024
CPU = torch.device("cpu")


class JoiningManager(Protocol):
    """What forms and leaves the worlds: today's ``WorldManager``."""

    @property
    def worlds(self) -> Mapping[str, World]:
        """Its worlds by name, broken or not."""

    async def join(
        self,
        name: str,
        rank: int | None = None,
        world_size: int | None = None,
        store: str | None = None,
        backend: str = "auto",
        timeout_s: float = 30.0,
        device: torch.device | str | None = None,
        serve_store: bool = False,
    ) -> World: ...

    def serves_store(self, url: str) -> bool: ...

    def stop_store(self, url: str) -> None: ...

    def start_leave(self, world: World, timeout_s: float) -> Operation[None]: ...


class NamedWorlds:
    """The worlds of one manager, for programs that know them by their names. Its methods run on the event loop."""

    def __init__(self, manager: JoiningManager) -> None:
        self._manager = manager
        self._added_names: set[str] = set()
        self._initializing: dict[str, asyncio.Future[World]] = {}
        self._failed: OrderedDict[str, BaseException] = OrderedDict()
        """Why worlds could not be initialized, for those who did not await it; the last REMEMBERED_NAMES of them."""
        self._removing: dict[str, Operation[None]] = {}
        self._hosted: dict[str, str] = {}
        """The URL of the store that was opened here for each world that is initialized, and is closed with it."""
        self._removed_names: deque[str] = deque(maxlen=REMEMBERED_NAMES)

    def initialize_world(
        self,
        world_name: str,
        rank: int,
        world_size: int,
        backend: str,
        addr: str,
        port: int,
        timeout: float,
        device: torch.device | str | None,
    ) -> Coroutine[Any, Any, None]:
        """See ``WorldManager.initialize_world``."""
        store = _store_url(addr, port)
        if self._is_in_use(world_name):
            raise _name_error(world_name)
        self._added_names.discard(world_name)
        self._failed.pop(world_name, None)
        join = partial(
            self._join_when_free,
            world_name,
            rank=rank,
            world_size=world_size,
            store=store,
            backend=backend,
            timeout_s=timeout,
            device=_device(backend, rank, device),
        )
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # asyncio.run(manager.initialize_world(...))
            return self._initialize(world_name, None, join)
        reserved: asyncio.Future[World] = loop.create_future()
        self._initializing[world_name] = reserved  # the name is in use now, the work begins in a moment

        def release() -> None:  # it was cancelled before its first step, which takes the name over
            if self._initializing.get(world_name) is reserved:
                del self._initializing[world_name]
                reserved.cancel()

        return Initialization(world_name, self._initialize(world_name, reserved, join), release)

    async def _initialize(
        self, world_name: str, reserved: asyncio.Future[World] | None, join: Callable[[], Coroutine[Any, Any, World]]
    ) -> None:
        if reserved is not None and reserved.cancelled():
            raise _given_up(world_name)
        forming = asyncio.ensure_future(join())
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

    def add_world(self, world_name: str) -> None:
        """See ``WorldManager.add_world``."""
        if world_name in self._added_names or self._is_in_use(world_name):
            raise _name_error(world_name)
        self._added_names.add(world_name)

    def remove_world(self, world_name: str) -> None:
        """See ``WorldManager.remove_world``."""
        forming = self._initializing.pop(world_name, None)
        world = self.find_world(world_name)
        if forming is not None:
            forming.cancel()
        elif world is not None:
            leaving = self._removing[world_name] = self._manager.start_leave(world, LEAVE_S)
            leaving.add_callback(lambda _: self._end_removal(world_name, leaving))
        elif world_name in self._added_names:
            self._added_names.discard(world_name)
        elif world_name not in self._removed_names:
            known = ", ".join(sorted(self._manager.worlds)) or "none"
            raise ValueError(f"world {world_name!r} does not exist; the worlds of this process: {known}")
        if world_name not in self._removed_names:
            self._removed_names.append(world_name)

    def find_world(self, world_name: str) -> World | None:
        """Return the world of that name, broken or not; None if there is none or it was removed."""
        return None if world_name in self._removing else self._manager.worlds.get(world_name)

    def is_forming(self, world_name: str) -> bool:
        """Whether the name was added, or is being initialized, and has no world yet."""
        return world_name in self._added_names or world_name in self._initializing

    def _is_in_use(self, world_name: str) -> bool:
        if world_name in self._initializing:
            return True
        world = self.find_world(world_name)
        return world is not None and world.state in (WorldState.FORMING, WorldState.ACTIVE)

    async def _join_when_free(
        self,
        name: str,
        *,
        rank: int,
        world_size: int,
        store: str,
        backend: str,
        timeout_s: float,
        device: torch.device | None,
    ) -> World:
        """Join, but first let the removal of an earlier world of that name come to its end, which is bounded."""
        leaving = self._removing.get(name)
        if leaving is not None:
            await wait_async(_copy_of(leaving))
        serve_store = rank == 0
        if serve_store and (not self._manager.serves_store(store) or store in self._hosted.values()):
            if self._hosted.get(name) not in (None, store):  # of a world of that name that has broken
                self._close_store_of(name)
            self._hosted[name] = store
        try:
            return await self._manager.join(
                name,
                rank=rank,
                world_size=world_size,
                store=store,
                backend=backend,
                timeout_s=timeout_s,
                device=device,
                serve_store=serve_store,
            )
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
            self._manager.stop_store(store)


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
