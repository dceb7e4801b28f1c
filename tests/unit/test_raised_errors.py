"""An error that is raised to a caller keeps none of the caller's locals alive once it is dealt with.

A model that was wrapped for a world that has broken, say, is gone then, with its hooks, before the next one is wrapped;
and memory is free again without the garbage collector.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from multiworld.errors import BrokenWorldException, OperationTimeoutError, PeerDiedError, again
from multiworld.wire.progress.operation import Operation
from multiworld.wire.progress.waiting import outcome, wait_async, wait_blocking, wait_to_the_end


class Local:
    """What a caller has in a variable."""


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def failed() -> Operation[None]:
    operation: Operation[None] = Operation()
    operation.fail(PeerDiedError("pair", 1, 1, "its connection was closed"))
    return operation


def outlived_by(raising: Callable[[], None], kind: type[BaseException]) -> object:
    """Return what is left of the caller's local."""

    def call() -> weakref.ref[Local]:
        local = Local()
        with pytest.raises(kind):
            raising()
        return weakref.ref(local)

    return call()()


@pytest.mark.parametrize("wait", [outcome, wait_blocking])
def test_the_error_of_an_operation_keeps_no_caller(wait: Callable[[Operation[None]], None]) -> None:
    operation = failed()
    assert outlived_by(lambda: wait(operation), PeerDiedError) is None
    assert operation.error is not None
    assert operation.error.__traceback__ is None


@pytest.mark.parametrize("wait", [wait_async, wait_to_the_end])
def test_a_task_that_is_cancelled_keeps_no_caller(wait: Callable[[Operation[None]], object]) -> None:
    async def call() -> weakref.ref[Local]:
        local = Local()
        operation: Operation[None] = Operation()
        asyncio.get_running_loop().call_later(0.02, operation.succeed, None)
        try:
            await wait(operation)  # type: ignore[misc]
        except asyncio.CancelledError:
            return weakref.ref(local)
        raise AssertionError("it was not cancelled")

    async def scenario() -> None:
        task = asyncio.ensure_future(call())
        await asyncio.sleep(0)
        task.cancel()
        assert (await task)() is None

    asyncio.run(scenario())


def test_a_copy_is_the_same_error() -> None:
    error = OperationTimeoutError("pair", 1, "recv", 0.5)
    error.__cause__ = cause = KeyError("why")
    copy = again(error)
    assert copy is not error
    assert (type(copy), copy.args, copy.__cause__) == (OperationTimeoutError, error.args, cause)
    assert again(cause) is cause


def test_a_copy_has_what_the_constructor_did_not_set_and_is_told_of_beside_what_was_handled() -> None:
    error = BrokenWorldException.of(PeerDiedError("pair", 3, 1, "its connection was closed"))
    copy = again(error)
    assert (copy.generation, copy.rank, copy.cause) == (3, 1, "its connection was closed")
    assert not copy.__suppress_context__
