"""Several operations that were started side by side, as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..wire.operation import Operation, StepsCancelled, drive

__all__ = ["start_all", "together"]


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
