"""WorldCommunicator: every operation reaches its world, and every way to be broken raises BrokenWorldException."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from collections.abc import Awaitable, Callable

import pytest
import torch
from torch.distributed import ReduceOp

from multiworld.communicator import BrokenWorldException, WorldCommunicator
from multiworld.errors import (
    PeerDiedError,
    PeerLeftError,
    StaleGenerationError,
    TensorMismatchError,
    WorldBrokenError,
    WorldClosedError,
)
from tests.unit.compat.fakes import FakeManager

Operation = Callable[[WorldCommunicator, str], Awaitable[None]]

X, Y = torch.zeros(2), torch.ones(2)
OPERATIONS: dict[str, Operation] = {
    "send": lambda communicator, name: communicator.send(X, 1, name),
    "recv": lambda communicator, name: communicator.recv(X, 1, name),
    "broadcast": lambda communicator, name: communicator.broadcast(X, 0, name),
    "all_reduce": lambda communicator, name: communicator.all_reduce(X, ReduceOp.SUM, name),
    "reduce": lambda communicator, name: communicator.reduce(X, 0, ReduceOp.SUM, name),
    "all_gather": lambda communicator, name: communicator.all_gather([X, Y], X, name),
    "gather": lambda communicator, name: communicator.gather(X, [X, Y], 0, name),
    "scatter": lambda communicator, name: communicator.scatter(X, [X, Y], 0, name),
}


async def initialized(*names: str) -> FakeManager:
    manager = FakeManager()
    for port, name in enumerate(names, start=29500):
        await manager.initialize_world(name, 0, 2, port=port)
    return manager


def test_signatures_are_those_of_the_forerunner() -> None:
    parameters = {name: list(inspect.signature(getattr(WorldCommunicator, name)).parameters) for name in OPERATIONS}
    assert parameters == {
        "send": ["self", "tensor", "dst", "world_name"],
        "recv": ["self", "tensor", "src", "world_name"],
        "broadcast": ["self", "tensor", "src", "world_name"],
        "all_reduce": ["self", "tensor", "op", "world_name"],
        "reduce": ["self", "tensor", "dst", "op", "world_name"],
        "all_gather": ["self", "tensors", "tensor", "world_name"],
        "gather": ["self", "tensor", "gather_list", "dst", "world_name"],
        "scatter": ["self", "tensor", "scatter_list", "src", "world_name"],
    }


async def test_operations_reach_the_world_that_they_name() -> None:
    manager = await initialized("one", "two")
    communicator = manager.communicator
    await communicator.send(X, 1, "two")
    await communicator.broadcast(X, src=0, world_name="two")
    await communicator.all_reduce(X, world_name="two")
    await communicator.reduce(X, 1, ReduceOp.MAX, "two")
    await communicator.all_gather([X, Y], X, "two")
    await communicator.gather(X, world_name="two")
    await communicator.scatter(X, [X, Y], 0, "two")
    assert manager.fake("one").calls == []
    assert [call[0] for call in manager.fake("two").calls] == [
        "send", "broadcast", "all_reduce", "reduce", "all_gather", "gather", "scatter"
    ]  # fmt: skip
    assert manager.fake("two").calls[2] == ("all_reduce", X, ReduceOp.SUM)
    assert manager.fake("two").calls[5] == ("gather", X, None, 0)


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_broken_world_raises_with_the_typed_error_as_cause(operation: str) -> None:
    manager = await initialized("world1")
    manager.fake("world1").break_with(PeerDiedError("world1", 4, 1, "the kernel closed its socket"))
    with pytest.raises(BrokenWorldException) as caught:
        await OPERATIONS[operation](manager.communicator, "world1")
    assert isinstance(caught.value.__cause__, PeerDiedError)
    assert (caught.value.world, caught.value.generation, caught.value.rank) == ("world1", 4, 1)
    assert caught.value.cause == "the kernel closed its socket"
    assert str(caught.value).startswith("world1 broken: lost rank 1, which died: the kernel closed its socket")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", ["never seen", ""])
async def test_an_unknown_world_is_broken(operation: str, name: str) -> None:
    manager = await initialized("world1")
    assert manager.communicator.is_broken(name)
    with pytest.raises(BrokenWorldException) as caught:
        await OPERATIONS[operation](manager.communicator, name)
    assert caught.value.world == name


@pytest.mark.parametrize("error", [PeerLeftError, StaleGenerationError])
async def test_a_pending_operation_raises_when_its_world_breaks(error: type[WorldBrokenError]) -> None:
    manager = await initialized("world1", "world2")
    pending = asyncio.create_task(manager.communicator.recv(X, 1, "world1"))
    other = asyncio.create_task(manager.communicator.recv(X, 1, "world2"))
    await asyncio.sleep(0)
    manager.fake("world1").break_with(error("world1", 1, 1, "so the test says"))
    with pytest.raises(BrokenWorldException) as caught:
        await pending
    assert isinstance(caught.value.__cause__, error)
    assert manager.communicator.is_broken("world1")
    assert not manager.communicator.is_broken("world2")
    other.cancel()


async def test_a_pending_operation_raises_when_its_world_is_removed() -> None:
    manager = await initialized("world1")
    pending = asyncio.create_task(manager.communicator.recv(X, 1, "world1"))
    await asyncio.sleep(0)
    manager.remove_world("world1")
    with pytest.raises(BrokenWorldException, match="world1 broken: it was removed") as caught:
        await pending
    assert isinstance(caught.value.__cause__, WorldClosedError)


async def test_errors_that_break_nothing_pass_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = await initialized("world1")
    error = TensorMismatchError("world1", 1, 1, "float32 [2]", "int64 [3]")
    fake = manager.fake("world1")

    async def recv(*_: object) -> None:
        raise error

    monkeypatch.setattr(fake, "recv", recv, raising=False)
    with pytest.raises(TensorMismatchError) as caught:
        await manager.communicator.recv(X, 1, "world1")
    assert caught.value is error


def test_the_exception_is_made_as_in_the_forerunner_and_pickles() -> None:
    plain = BrokenWorldException("world1", "exception raised by watchdog")
    typed = BrokenWorldException.of(PeerDiedError("world1", 7, 2, "its pidfd fired"))
    assert isinstance(plain, WorldBrokenError)
    assert str(plain) == "world1 broken: exception raised by watchdog"
    for exception in (plain, typed):
        copy = pickle.loads(pickle.dumps(exception))
        assert type(copy) is BrokenWorldException
        assert (str(copy), copy.args, vars(copy)) == (str(exception), exception.args, vars(exception))
