"""What WorldManager keeps of multiworld 0.2.x: names, stores, removal, the watchdog and the logging level."""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import multiworld
from multiworld.communicator import BrokenWorldException
from multiworld.compat.manager import WatchDog, WorldManager, set_log_level
from multiworld.errors import JoinError, JoinTimeoutError, PeerDiedError
from tests.unit.compat.fakes import FakeManager

X = torch.zeros(2)


@pytest.fixture
def package_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("multiworld")
    level = logger.level
    logger.setLevel(logging.NOTSET)
    yield logger
    logger.setLevel(level)


def test_signatures_are_those_of_the_forerunner() -> None:
    signature = inspect.signature(WorldManager.initialize_world)
    assert {name: parameter.default for name, parameter in list(signature.parameters.items())[4:]} == {
        "backend": "gloo",
        "addr": "127.0.0.1",
        "port": -1,
        "timeout": 30,
        "device": torch.device("cpu"),
    }
    assert list(signature.parameters)[1:4] == ["world_name", "rank", "world_size"]
    assert not inspect.iscoroutinefunction(WorldManager.remove_world)
    assert not inspect.iscoroutinefunction(WorldManager.add_world)
    assert not inspect.iscoroutinefunction(WorldManager.cleanup)


async def test_rank_0_hosts_the_store_at_the_address_that_all_give() -> None:
    manager = FakeManager()
    await manager.initialize_world("world1", 0, 2, port=29501)
    await manager.initialize_world("world2", 1, 3, "gloo", "10.20.1.50", 29502, 5)
    await manager.initialize_world("world3", 1, 2, addr="fd00::1", port=29503)
    assert manager.joins == [
        {
            "name": name,
            "rank": rank,
            "world_size": world_size,
            "store": store,
            "backend": "gloo",
            "timeout_s": timeout_s,
            "device": None,
            "serve_store": rank == 0,
        }
        for name, rank, world_size, store, timeout_s in [
            ("world1", 0, 2, "tcp://127.0.0.1:29501", 30),
            ("world2", 1, 3, "tcp://10.20.1.50:29502", 5),
            ("world3", 1, 2, "tcp://[fd00::1]:29503", 30),
        ]
    ]


@pytest.mark.parametrize(
    ("asked", "device", "joined_with"),
    [
        ("gloo", "cuda:1", None),  # a program with a GPU passes it to its gloo worlds too
        ("nccl", "cuda:1", torch.device("cuda:1")),
        ("tcp", "cuda:1", None),
        ("other", "cpu", torch.device("cpu")),
    ],
)
async def test_the_device_is_passed_to_backends_that_look_at_it(
    asked: str, device: str, joined_with: torch.device | None
) -> None:
    manager = FakeManager()
    await manager.initialize_world("world1", 0, 2, backend=asked, port=29500, device=torch.device(device))
    assert manager.joins[0]["device"] == joined_with


async def test_nccl_without_a_device_takes_the_one_that_pytorch_would_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    manager = FakeManager()
    await manager.initialize_world("world1", 6, 8, backend="nccl", port=29500)
    assert manager.joins[0]["device"] == torch.device("cuda:2")


@pytest.mark.parametrize("port", [-1, 0, 65536])
async def test_a_port_that_nobody_could_find_is_refused(port: int) -> None:
    manager = FakeManager()
    with pytest.raises(ValueError, match="from 1 to 65535"):
        await manager.initialize_world("world1", 0, 2, port=port)
    assert manager.joins == []


async def test_a_name_is_in_use_from_the_start_of_its_initialization() -> None:
    manager = FakeManager()
    manager.may_join.clear()
    first = asyncio.create_task(manager.initialize_world("world1", 0, 2, port=29500))
    await asyncio.sleep(0)
    assert not manager.communicator.is_broken("world1")
    sending = asyncio.create_task(manager.communicator.send(X, 1, "world1"))
    with pytest.raises(ValueError, match="already exists"):
        await manager.initialize_world("world1", 0, 2, port=29500)
    assert not sending.done(), "it waits until the world is formed"
    manager.may_join.set()
    await first
    await sending
    with pytest.raises(ValueError, match="already exists"):
        await manager.initialize_world("world1", 0, 2, port=29500)
    assert len(manager.joins) == 1


async def test_who_does_not_await_an_initialization_has_the_world_all_the_same() -> None:
    """multiworld 0.0.x: a plain function, called in a coroutine."""
    manager = FakeManager()
    manager.initialize_world("world1", 0, 2, port=29500)  # type: ignore[unused-coroutine]
    with pytest.raises(ValueError, match="already exists"):
        manager.initialize_world("world1", 0, 2, port=29500)  # type: ignore[unused-coroutine]
    manager.initialize_world("world2", 0, 2, port=30500)  # type: ignore[unused-coroutine]
    await manager.communicator.send([X, X + 1], "world1", 1)
    await manager.communicator.send(X, "world2", 1)
    assert [call[0] for call in manager.fake("world1").calls] == ["send", "send"]
    assert manager.fake("world2").calls == [("send", X, 1)]


async def test_an_initialization_that_nobody_awaits_fails_in_the_log_and_at_the_next_operation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = FakeManager()
    manager.failure = JoinTimeoutError("world1", "rank 1 did not come within 30 s")
    manager.initialize_world("world1", 0, 2, port=29500)  # type: ignore[unused-coroutine]
    with pytest.raises(BrokenWorldException, match=r"could not be initialized: .*rank 1 did not come") as broken:
        await manager.communicator.recv(X, "world1", 1)
    assert broken.value.__cause__ is manager.failure
    assert "world 'world1' could not be initialized" in caplog.text
    manager.failure = None
    await manager.initialize_world("world1", 0, 2, port=29500)
    await manager.communicator.send(X, "world1", 1)


async def test_an_initialization_is_a_coroutine_to_asyncio() -> None:
    manager = FakeManager()
    await asyncio.gather(*(manager.initialize_world(name, 0, 2, port=29500) for name in ("a", "b")))
    await asyncio.create_task(manager.initialize_world("c", 0, 2, port=29500))
    await asyncio.wait_for(manager.initialize_world("d", 0, 2, port=29500), 5)
    assert asyncio.iscoroutine(manager.initialize_world("e", 0, 2, port=29500))
    await manager.communicator.send(X, 1, "e")


async def test_removing_a_world_before_its_initialization_has_begun_gives_it_up() -> None:
    manager = FakeManager()
    initializing = manager.initialize_world("world1", 0, 2, port=29500)
    manager.remove_world("world1")
    with pytest.raises(JoinError, match="remove_world"):
        await initializing
    assert manager.joins == []
    await manager.initialize_world("world1", 0, 2, port=29500)


@pytest.mark.parametrize("arguments", [(X, "world1"), (X, "world1", "world2"), (X, 1, 1), (3, 1, "world1")])
async def test_a_call_in_no_known_order_is_refused(arguments: tuple[Any, ...]) -> None:
    manager = FakeManager()
    await manager.initialize_world("world1", 0, 2, port=29500)
    with pytest.raises(TypeError, match="expected a"):
        await manager.communicator.send(*arguments)


async def test_a_failed_initialization_leaves_no_name_behind() -> None:
    manager = FakeManager()
    manager.failure = JoinTimeoutError("world1", "rank 1 did not come within 30 s")
    with pytest.raises(RuntimeError):  # what programs for 0.2.x catch; a JoinError at the same time
        await manager.initialize_world("world1", 0, 2, port=29500)
    assert manager.communicator.is_broken("world1")
    manager.failure = None
    await manager.initialize_world("world1", 0, 2, port=29500)
    assert not manager.communicator.is_broken("world1")


async def test_cancelling_an_initialization_leaves_no_name_behind() -> None:
    manager = FakeManager()
    manager.may_join.clear()
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(manager.initialize_world("world1", 0, 2, port=29500), 0.01)
    manager.may_join.set()
    await manager.initialize_world("world1", 0, 2, port=29500)


async def test_cancelling_an_initialization_before_its_first_step_leaves_no_name_behind() -> None:
    manager = FakeManager()

    async def initialize() -> None:
        await manager.initialize_world("world1", 0, 2, port=29500)

    task = asyncio.create_task(initialize())
    await asyncio.sleep(0)  # it has been called, and has not begun
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(manager.named.wait_initialized("world1"), 5)
    assert not manager.named.is_forming("world1")
    await manager.initialize_world("world1", 0, 2, port=29500)
    assert len(manager.joins) == 1


async def test_removing_a_world_gives_up_its_initialization() -> None:
    manager = FakeManager()
    manager.may_join.clear()
    pending = asyncio.create_task(manager.initialize_world("world1", 0, 2, port=29500))
    await asyncio.sleep(0)
    manager.remove_world("world1")
    with pytest.raises(JoinError, match="remove_world"):
        await pending
    assert manager.communicator.is_broken("world1")


async def test_an_added_name_is_reserved_until_it_is_initialized_or_removed() -> None:
    manager = FakeManager()
    manager.add_world("world1", "gloo")
    assert not manager.communicator.is_broken("world1")
    with pytest.raises(ValueError, match="already exists"):
        manager.add_world("world1", "gloo")
    await manager.initialize_world("world1", 0, 2, port=29500)
    with pytest.raises(ValueError, match="already exists"):
        manager.add_world("world1", "gloo")
    manager.add_world("world2", "gloo")
    manager.remove_world("world2")
    assert manager.communicator.is_broken("world2")


async def test_a_removed_world_is_broken_at_once_and_its_name_is_free_at_once() -> None:
    manager = FakeManager()
    await manager.initialize_world("world1", 0, 2, port=29500)
    removed = manager.fake("world1")
    manager.leaves_at_once = False
    manager.remove_world("world1")
    assert manager.communicator.is_broken("world1")
    with pytest.raises(BrokenWorldException, match="removed, or never"):
        await manager.communicator.send(X, 1, "world1")
    again = asyncio.create_task(manager.initialize_world("world1", 0, 2, port=29500))
    await asyncio.sleep(0.01)
    assert len(manager.joins) == 1, "it joins again only when what was sent has been delivered"
    manager.finish_leaves()
    await again
    assert manager.fake("world1") is not removed
    assert not manager.communicator.is_broken("world1")


async def test_a_store_closes_with_the_last_world_that_it_was_opened_for() -> None:
    manager = FakeManager()
    manager.served.add("tcp://127.0.0.1:29501")  # by serve_store(): it is not ours to close
    for name, port in (("own", 29500), ("served", 29501), ("shared1", 29502), ("shared2", 29502)):
        await manager.initialize_world(name, 0, 2, port=port)
    await manager.initialize_world("elsewhere", 1, 2, port=29503)
    for name in ("own", "served", "shared1", "elsewhere"):
        manager.remove_world(name)
    assert manager.served == {"tcp://127.0.0.1:29501", "tcp://127.0.0.1:29502"}
    manager.remove_world("shared2")
    manager.failure = JoinTimeoutError("world1", "rank 1 did not come within 30 s")
    with pytest.raises(JoinTimeoutError):
        await manager.initialize_world("failed", 0, 2, port=29504)
    assert manager.served == {"tcp://127.0.0.1:29501"}


async def test_removing_twice_is_let_pass_but_an_unknown_name_is_an_error() -> None:
    manager = FakeManager()
    await manager.initialize_world("world1", 0, 2, port=29500)
    manager.remove_world("world1")
    manager.remove_world("world1")
    with pytest.raises(ValueError, match="does not exist"):
        manager.remove_world("world2")


async def test_a_broken_world_can_be_removed_or_initialized_again_at_once() -> None:
    manager = FakeManager()
    for remove in (True, False):
        await manager.initialize_world("world1", 0, 2, port=29500)
        manager.fake("world1").break_with(PeerDiedError("world1", 1, 1, "killed"))
        if remove:
            manager.remove_world("world1")
    await manager.initialize_world("world1", 0, 2, port=29500)
    assert not manager.communicator.is_broken("world1")


def test_a_world_is_removed_without_a_running_loop() -> None:
    async def initialize() -> FakeManager:
        manager = FakeManager()
        await manager.initialize_world("world1", 0, 2, port=29500)
        return manager

    manager = asyncio.run(initialize())
    manager.remove_world("world1")
    assert manager.worlds == {}


async def test_giving_up_while_a_removal_is_under_way_leaves_the_removal_alone() -> None:
    manager = FakeManager()
    await manager.initialize_world("world1", 0, 2, port=29500)
    manager.leaves_at_once = False
    manager.remove_world("world1")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(manager.initialize_world("world1", 0, 2, port=29500), 0.01)
    manager.finish_leaves()
    await manager.initialize_world("world1", 0, 2, port=29500)


async def test_cleanup_flushes_closes_and_returns(capsys: pytest.CaptureFixture[str]) -> None:
    manager = FakeManager()
    print("last words", end="")
    manager.cleanup()
    assert manager.closed
    assert capsys.readouterr().out == "last words"


async def test_the_watchdog_shows_what_is_watched_and_what_broke() -> None:
    manager = FakeManager()
    watchdog = WatchDog(manager)
    await manager.initialize_world("world1", 0, 2, port=29501)
    await manager.initialize_world("world2", 0, 2, port=29502)
    error = PeerDiedError("world1", 1, 1, "killed")
    manager.fake("world1").break_with(error)
    assert watchdog.watched == ["world2"]
    assert watchdog.broken == {"world1": error}


def test_the_package_tells_its_version() -> None:
    assert multiworld.__version__ == importlib.metadata.version("multiworld")


def test_the_variable_sets_the_level_of_the_package_logger_only(
    package_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    root_level, handlers = logging.getLogger().level, list(package_logger.handlers)
    monkeypatch.setenv("M8D_LOG_LEVEL", "debug")
    set_log_level()
    assert package_logger.level == logging.DEBUG
    assert logging.getLogger().level == root_level
    assert package_logger.handlers == handlers


def test_a_level_that_the_program_set_wins(package_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    package_logger.setLevel(logging.ERROR)
    monkeypatch.setenv("M8D_LOG_LEVEL", "DEBUG")
    set_log_level()
    assert package_logger.level == logging.ERROR


def test_without_the_variable_nothing_is_set(package_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("M8D_LOG_LEVEL", raising=False)
    set_log_level()
    assert package_logger.level == logging.NOTSET


@pytest.mark.usefixtures("package_logger")
def test_a_level_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M8D_LOG_LEVEL", "LOUD")
    with pytest.raises(ValueError, match="M8D_LOG_LEVEL='LOUD'"):
        set_log_level()
