"""A manager and worlds without processes, for the tests of what 0.2.x programs call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import torch

from multiworld.compat.manager import WorldManager
from multiworld.compat.named_worlds import NamedWorlds
from multiworld.errors import WorldBrokenError, WorldClosedError
from multiworld.wire.progress.operation import Operation
from multiworld.world.state import WorldState

if TYPE_CHECKING:
    from multiworld.world.world import World


class FakeWorld:
    """Records operations; ``fate``, once set, is what they raise."""

    def __init__(self, name: str, rank: int) -> None:
        self.name, self.rank = name, rank
        self.state = WorldState.ACTIVE
        self.error: WorldBrokenError | None = None
        self.calls: list[tuple[Any, ...]] = []
        self._fate: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def break_with(self, error: WorldBrokenError) -> None:
        self.state, self.error = WorldState.BROKEN, error
        self._fate.set_exception(error)

    def close(self) -> None:
        self.state = WorldState.CLOSED
        if not self._fate.done():
            self._fate.set_exception(WorldClosedError(self.name, 1))
            self._fate.exception()  # nobody needs to be waiting

    def __getattr__(self, operation: str) -> Any:
        async def call(*args: Any) -> None:
            self.calls.append((operation, *args))
            if operation == "recv" or self._fate.done():
                await asyncio.shield(self._fate)

        return call


class FakeManager(WorldManager):
    """Joins at once, or when ``may_join`` is set; leaves at once, or when ``finish_leaves`` is called."""

    def __init__(self) -> None:
        self._named = self.named = NamedWorlds(self)  # and nothing of today's manager: no thread, no socket
        self.leaves_at_once = True
        self.leaving: list[tuple[str, Operation[None]]] = []
        self.worlds_by_name: dict[str, World] = {}
        self.served: set[str] = set()
        self.joins: list[dict[str, Any]] = []
        self.may_join = asyncio.Event()
        self.may_join.set()
        self.failure: Exception | None = None
        self.closed = False

    @property
    def worlds(self) -> dict[str, World]:
        return self.worlds_by_name

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
    ) -> World:
        assert rank is not None
        assert store is not None
        old = self.worlds_by_name.pop(name, None)
        assert old is None or old.state is WorldState.BROKEN
        self.joins.append(
            {
                "name": name,
                "rank": rank,
                "world_size": world_size,
                "store": store,
                "backend": backend,
                "timeout_s": timeout_s,
                "device": device,
                "serve_store": serve_store,
            }
        )
        if serve_store:
            self.served.add(store)
        await self.may_join.wait()
        if self.failure is not None:
            raise self.failure
        world = cast("World", FakeWorld(name, rank))
        self.worlds_by_name[name] = world
        return world

    def close(self, timeout_s: float = 5.0) -> None:
        self.closed = True

    def fake(self, name: str) -> FakeWorld:
        return cast(FakeWorld, self.worlds_by_name[name])

    def serves_store(self, url: str) -> bool:
        return url in self.served

    def stop_store(self, url: str) -> None:
        self.served.remove(url)

    def start_leave(self, world: World, timeout_s: float) -> Operation[None]:
        cast(FakeWorld, world).close()
        operation: Operation[None] = Operation()
        self.leaving.append((world.name, operation))
        if self.leaves_at_once:
            self.finish_leaves()
        return operation

    def finish_leaves(self) -> None:
        while self.leaving:
            name, operation = self.leaving.pop()
            del self.worlds_by_name[name]
            operation.succeed(None)
