"""Operations made of others: several that were started side by side, as one; one and what is done with its result."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ...wire.progress.operation import Operation, StepsCancelled, drive

T = TypeVar("T")


def start_all(starts: Iterable[Callable[[], Operation[Any]]]) -> Operation[None]:
    """Start all, and return what is done when they are; if one cannot be started, none goes on."""
    operations: list[Operation[Any]] = []
    try:
        for start in starts:
            operations.append(start())  # noqa: PERF401 - those that were started have to be known if one raises
    except BaseException:
        _cancel(operations)
        raise
    return together(operations)


def together(operations: Sequence[Operation[Any]]) -> Operation[None]:
    """Return an operation that ends when all have ended, with the first error of them in their order.

    Cancelling it cancels all.
    """
    operation = drive(_wait(operations))
    operation.slow_cancel = any(each.slow_cancel for each in operations)
    return operation


def then(operation: Operation[T], finish: Callable[[], None]) -> Operation[T]:
    """Return an operation that is done when ``finish`` (a copy into the caller's memory layout) has run.

    Cancelled, it does not run any more once the cancel has returned; but what had come by then is delivered.
    """
    finishing = threading.Lock()

    def detach() -> None:
        operation.cancel(_Detached())
        complete(operation)

    def complete(_: Operation[T]) -> None:
        with finishing:
            if outer.done:
                return
            error = operation.error
            if error is None:
                try:
                    finish()
                    outer.on_undo = operation.on_undo
                    outer.settle(operation.result())
                except Exception as raised:  # it belongs to the caller
                    error = raised.with_traceback(None)  # which would refer to this frame
        if error is not None:
            outer.fail(error)
        else:
            outer.tell()

    outer: Operation[T] = Operation(detach)
    outer.slow_cancel = operation.slow_cancel
    operation.add_callback(complete)
    return outer


async def _wait(operations: Sequence[Operation[Any]]) -> None:
    errors: list[Exception] = []
    for operation in operations:
        try:
            await operation
        except StepsCancelled:
            _cancel(operations)
            raise
        except Exception as error:  # raised below, when nothing is under way any more
            errors.append(error)
    if errors:
        raise errors[0]


def _cancel(operations: Sequence[Operation[Any]]) -> None:
    for operation in operations:
        operation.cancel(StepsCancelled())


class _Detached(Exception):
    """Never seen by users."""
