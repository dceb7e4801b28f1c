"""What a member's part in a check has to work with: its worlds, known tensors, and a word with the other members."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

import multiworld as mw

from ...channel.base import DataChannel
from ...channel.registry import find_channel
from ...world.world import World
from ..deadlines import scaled
from ..samples import MOVABLE, any_tensor, difference
from .catalogue import ConformanceError


class PendingCalls:
    """The calls that have begun and not ended, oldest first."""

    def __init__(self) -> None:
        self._calls: dict[object, tuple[float, str]] = {}

    def begin(self, text: str) -> object:
        key = object()
        self._calls[key] = (time.monotonic(), text)
        return key

    def end(self, key: object) -> None:
        del self._calls[key]

    def describe(self) -> str:
        now = time.monotonic()
        texts = [f"{text} for {now - at:.1f} s" for at, text in self._calls.values()]
        if not texts:
            return "none of its operations"
        return ", ".join(texts[:6]) + (f" and {len(texts) - 6} more" if len(texts) > 6 else "")


class WatchedWorld:
    """Stands for a ``World``: its coroutine methods are noted while they run."""

    def __init__(self, world: World, pending: PendingCalls) -> None:
        self._world, self._pending = world, pending

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._world, name)
        if not inspect.iscoroutinefunction(value):
            return value

        async def call(*args: Any, **kwargs: Any) -> Any:
            key = self._pending.begin(f"{name}({_text(args, kwargs)})")
            try:
                return await value(*args, **kwargs)
            finally:
                self._pending.end(key)

        return call


def _text(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    texts = [_short(value) for value in args] + [f"{name}={_short(value)}" for name, value in kwargs.items()]
    return ", ".join(texts)


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (list, dict)):
        return f"{type(value).__name__} of {len(value)}"
    return str(value)


JOIN_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Role:
    """Who a member is in one performance of a check, as the examiner tells it."""

    check: str
    label: str
    """Names this performance, and begins the names of its worlds."""
    rank: int
    size: int
    store: str
    backend: str
    device: str
    seed: int
    num_moments: int
    timeout_s: float


class Stage:
    """One performance. ``chance`` draws the same on all members, ``own_chance`` for each its own."""

    def __init__(self, manager: mw.WorldManager, role: Role, exchange: Callable[[Any], Awaitable[list[Any]]]) -> None:
        self.role, self.rank, self.size = role, role.rank, role.size
        self.device = torch.device(role.device)
        self.channel: type[DataChannel] = find_channel(role.backend, self.device)
        self.chance = random.Random(f"{role.seed} {role.check} {role.size}")
        self.own_chance = random.Random(f"{role.seed} {role.check} {role.size} {role.rank}")
        self.pending = PendingCalls()
        self._manager, self._exchange = manager, exchange
        self._worlds: list[mw.World] = []

    @property
    def ranks(self) -> range:
        return range(self.size)

    @property
    def others(self) -> list[int]:
        return [rank for rank in self.ranks if rank != self.rank]

    # ---- worlds

    async def join(self, name: str = "w") -> mw.World:
        """Form a world of all members; where that name broke, its next generation."""
        key = self.pending.begin(f"join {name!r}")
        world = await self._manager.join(
            f"{self.role.label}.{name}",
            self.rank,
            self.size,
            self.role.store,
            backend=self.role.backend,
            device=self.device,
            timeout_s=scaled(JOIN_S),
        )
        self.pending.end(key)
        self._worlds.append(world)
        return cast(mw.World, WatchedWorld(world, self.pending))

    async def standing(self, world: mw.World) -> mw.World:
        """Return the world if no member's has broken, else its next generation. All members call it."""
        if all(await self.exchange(world.state is mw.WorldState.ACTIVE)):
            return world
        if not self.channel.cancel_costs_world:
            self.fail(
                f"giving up an operation broke the world, though the channel claims that it costs none: {world.error}"
            )
        world.abort()
        await self.meet()  # nobody joins the next one while another is in this one still
        return await self.join(world.name.rpartition(".")[2])

    async def leave(self) -> None:
        """Leave all worlds, once everybody has come here."""
        await self.meet()
        await asyncio.gather(*(world.leave() for world in self._worlds if world.state is mw.WorldState.ACTIVE))

    def abort(self) -> None:
        for world in self._worlds:
            world.abort()

    # ---- the other members, without the channel

    async def exchange(self, value: Any = None) -> list[Any]:
        """Wait for all members, and return what each gave, in the order of the ranks. What they give must fit JSON."""
        key = self.pending.begin("waiting for the other members to come to the same point")
        values = await self._exchange(value)
        self.pending.end(key)
        return values

    async def meet(self) -> None:
        await self.exchange()

    # ---- tensors

    def sample(self, shape: Sequence[int], dtype: torch.dtype, *key: object) -> Tensor:
        """Return random bits, the same on every member for the same key."""
        return any_tensor(shape, dtype, self.seed_of(*key)).to(self.device)

    def full(self, numel: int, value: float) -> Tensor:
        """Return float32 of one value."""
        return torch.full((numel,), float(value), device=self.device)

    def blank(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor to receive into, whose every byte is 1."""
        raw = torch.ones(torch.Size(shape).numel() * dtype.itemsize, dtype=torch.uint8, device=self.device)
        return (
            raw.view(dtype).view(tuple(shape)) if raw.numel() else torch.empty(tuple(shape), dtype=dtype).to(raw.device)
        )

    def seed_of(self, *key: object) -> int:
        return random.Random(f"{self.role.seed} {key}").getrandbits(62)

    @property
    def movable(self) -> list[torch.dtype]:
        return [dtype for dtype in MOVABLE if self.channel.can_move(dtype)]

    # ---- verdicts

    def fail(self, what: str) -> NoReturn:
        raise ConformanceError(what)

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.fail(what)

    def check_same(self, found: Tensor, expected: Tensor, what: str) -> None:
        """Fail unless the bits of both are the same; ``what`` was done to get the first."""
        if wrong := difference(found.detach().cpu(), expected.detach().cpu()):
            self.fail(f"{what} succeeded with wrong data: {wrong}")

    def check_full(self, found: Tensor, value: float, what: str) -> None:
        """Fail unless every element has that value."""
        if not bool((found == value).all()):
            low, high = found.min().item(), found.max().item()
            self.fail(f"{what}: values from {low:g} to {high:g}, where all had to be {value:g}")

    async def receive_full(self, world: mw.World, numel: int, value: float, src: int, tag: int, what: str) -> None:
        """Receive float32, and fail unless it is the message whose every element has that value."""
        target = self.full(numel, -1)
        try:
            await world.recv(target, src, tag=tag)
        except mw.TensorMismatchError as error:
            raise ConformanceError(
                f"{what} got another message: it offered {error.expected}, and met {error.actual}"
            ) from error
        self.check_full(target, value, f"{what} got another message")

    async def must_raise(
        self,
        operation: Coroutine[Any, Any, Any],
        kinds: type[BaseException] | tuple[type[BaseException], ...],
        what: str,
    ) -> BaseException:
        """Wait for the operation's error, and fail unless it is of these kinds."""
        try:
            value = await operation
        except kinds as error:
            return error
        except ConformanceError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            self.fail(f"{what} had to raise {_names(kinds)}, but raised {type(error).__name__}: {error}")
        result = "" if value is None else f" with {value!r}"
        raise ConformanceError(f"{what} had to raise {_names(kinds)}, but succeeded{result}")

    async def in_time(self, operation: Coroutine[Any, Any, Any], bound_s: float, what: str) -> Any:
        """Return or raise what the operation does; fail if it takes longer."""
        task = asyncio.ensure_future(operation)
        began = time.monotonic()
        done, _ = await asyncio.wait([task], timeout=bound_s)
        if not done:
            task.add_done_callback(_forget)
            self.fail(f"{what} had not ended {bound_s:g} s later: {self.pending.describe()}")
        took_s = time.monotonic() - began
        self.check(took_s < bound_s, f"{what} took {took_s:.3f} s, more than {bound_s:g} s")
        return task.result()


def _forget(task: asyncio.Future[Any]) -> None:
    """Nobody waits for it any more, so its error is no news."""
    if not task.cancelled():
        task.exception()


def _names(kinds: type[BaseException] | tuple[type[BaseException], ...]) -> str:
    return " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
