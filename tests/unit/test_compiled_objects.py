"""Objects of compiled modules whose attributes end while others look: they are what interpreted ones are.

The end of a tensor lets other threads run, a finalizer runs whatever it likes. See ``native/generated.py``.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest
import torch

from multiworld import native
from multiworld.wire.progress.operation import Operation, settler
from multiworld.wire.progress.waiting import outcome, start_and_wait, wait_async, wait_to_the_end


class Ending:
    """Calls when it ends; can be called itself."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self) -> None: ...

    def __del__(self) -> None:
        self._call()


def hold(_: torch.Tensor) -> None: ...


def test_a_module_is_what_is_said_of_all() -> None:
    assert str(importlib.import_module("multiworld.wire.connection.frames").__file__).endswith(".py") == bool(
        native.not_compiled
    )
    assert str(importlib.import_module("multiworld.wire.connection.waiter").__file__).endswith(".py")


def test_threads_that_wait_at_once_each_have_their_own_environment() -> None:
    """What a wait has held ends with it, and is the last that refers to a tensor."""
    wrong: list[object] = []

    def work() -> None:
        for number in range(3_000):

            def start(number: int = number) -> Operation[int]:
                operation: Operation[int] = Operation()
                operation.on_undo = partial(hold, torch.empty(8))
                operation.succeed(number)
                return operation

            result = start_and_wait(start, outcome)
            if result != number:
                wrong.append((number, result))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:coroutine 'wait_async' was never awaited")
def test_a_coroutine_that_begins_while_another_ends_keeps_what_it_has() -> None:
    async def scenario() -> None:
        begun: list[Coroutine[Any, Any, str]] = []

        def begin() -> None:
            begun.append(wait_async(Operation.succeeded("the second")))

        first = wait_async(Operation.succeeded(Ending(begin)))
        del first
        assert [await coroutine for coroutine in begun] == ["the second"]

    asyncio.run(scenario())


def test_an_attribute_that_is_assigned_from_outside_has_its_new_value_when_the_former_one_ends() -> None:
    operation: Operation[None] = Operation()
    seen: list[object] = []
    operation.on_cancel = Ending(lambda: seen.append(operation.on_cancel))
    operation.on_cancel = None
    assert seen == [None]


def test_an_attribute_that_compiled_code_assigns_has_its_new_value_when_the_former_one_ends() -> None:
    operation: Operation[None] = Operation()
    seen: list[object] = []
    operation.on_cancel = Ending(lambda: seen.append(operation.on_cancel))
    operation.settle(None)
    assert seen == [None]


def test_a_long_chain_of_closures_ends_without_a_stack_as_deep() -> None:
    operation: Operation[None] = Operation()
    for _ in range(100_000):
        following: Operation[None] = Operation()
        following.on_undo = settler(operation)
        operation = following
    del operation, following


def test_two_that_are_cancelled_slowly_at_once_each_raise_their_own() -> None:
    seen: dict[str, object] = {}

    async def wait(name: str) -> None:
        operation: Operation[None] = Operation(on_cancel=partial(time.sleep, 0.02))
        operation.slow_cancel = True
        try:
            await wait_async(operation)
        except asyncio.CancelledError as error:
            seen[name] = error.args

    async def scenario() -> None:
        tasks = {name: asyncio.ensure_future(wait(name)) for name in ("one", "two")}
        await asyncio.sleep(0)
        for name, task in tasks.items():
            task.cancel(name)
        await asyncio.gather(*tasks.values())
        assert sys.exc_info() == (None, None, None)

    asyncio.run(scenario())
    assert seen == {"one": ("one",), "two": ("two",)}


def test_a_task_that_is_cancelled_gets_that_and_no_warning() -> None:
    """Where warnings are errors, one that Python gives while it hands the cancel on would be raised instead."""

    async def scenario() -> None:
        operation: Operation[None] = Operation()
        task = asyncio.ensure_future(wait_async(operation))
        await asyncio.sleep(0)
        task.cancel()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            await asyncio.wait([task])
        assert task.cancelled()
        assert operation.is_cancelled

    asyncio.run(scenario())


def test_a_coroutine_that_is_closed_while_it_waits_ends() -> None:
    async def scenario() -> None:
        operation: Operation[None] = Operation()
        waiting = wait_async(operation)
        waiting.send(None)
        waiting.close()
        assert not operation.done
        with pytest.raises((StopIteration, RuntimeError)):
            waiting.send(None)

    asyncio.run(scenario())


def test_what_is_awaited_may_deal_with_a_cancel_and_go_on() -> None:
    async def scenario() -> None:
        operation: Operation[None] = Operation()
        task = asyncio.ensure_future(wait_to_the_end(operation))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        operation.succeed(None)
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(scenario())
