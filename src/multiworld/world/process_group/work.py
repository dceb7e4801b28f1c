"""What an operation of a world looks like to c10d: a ``Work``, with a ``torch.futures.Future``."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from ...errors import OperationTimeoutError
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import outcome
from ..world import World
from .futures import Completer, GroupFuture

_NO_TIMEOUT = timedelta(0)


class WorldWork(dist.Work):
    """An operation of a world. It goes on whether or not somebody waits, and keeps its tensors alive until it is done.

    ``peer`` is the rank that it depends on, if it is one. ``value`` is what the future holds: c10d's
    convention for this kind of operation.
    """

    def __init__(
        self,
        world: World,
        completer: Completer,
        name: str,
        operation: Operation[Any],
        value: Any,
        *,
        peer: int | None = None,
        is_collective: bool = True,
    ) -> None:
        super().__init__()
        self._world, self._completer, self._name = world, completer, name
        self._operation, self._value, self._peer, self._is_collective = operation, value, peer, is_collective
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None

    def __repr__(self) -> str:
        operation = self._operation
        state = "under way" if not operation.done else "done" if operation.error is None else "failed"
        return f"<WorldWork {self._name} in world {self._world.name!r}: {state}>"

    @property
    def operation(self) -> Operation[Any]:
        return self._operation

    def wait(self, timeout: timedelta = _NO_TIMEOUT) -> bool:
        """Block until it is done, and raise its error. After a ``timeout`` (0: none) it has ended as at a deadline of
        its own: with OperationTimeoutError, and its tensors are left alone.
        """
        operation, world, timeout_s = self._operation, self._world, timeout.total_seconds()
        if timeout_s <= 0:
            if not operation.done:
                world.wait_thread(operation, self._peer, None)
        elif not world.wait_for(operation, self._peer, timeout_s):
            operation.cancel(OperationTimeoutError(world.name, world.generation, self._name, timeout_s))
        outcome(operation)
        return True

    def is_completed(self) -> bool:
        return self._operation.done

    def is_success(self) -> bool:
        return self._operation.done and self._operation.error is None

    def exception(self) -> BaseException | None:
        return self._operation.error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that it fills, once it is done."""
        if not self._operation.done:
            raise RuntimeError(f"{self!r} has no result yet: wait() for it")
        outcome(self._operation)
        value = self._value
        return [tensor for row in value for tensor in row] if value and isinstance(value[0], list) else list(value)

    def source_rank(self) -> int:
        """Return the rank that a receive from any rank received from, once it is done."""
        rank = outcome(self._operation) if self._operation.done else None
        return rank if rank is not None else -1 if self._peer is None else self._peer

    def _source_rank(self) -> int:
        return self.source_rank()

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """Return its future. What is chained to that runs on a thread of the group; an error is the future's error.

        Within a backward pass, the pass does not end before the operation, and raises its error. DDP waits for it
        there too, but through C++, which turns errors into RuntimeError.
        """
        with self._lock:
            future = self._future
            if future is None:
                future = self._future = GroupFuture(devices=_devices(self._world))
                future.completer = self._completer
                num_looks = len(_devices(self._world) or ())
                complete = partial(_complete, future, self._operation, self._value, num_looks)
                self._operation.add_callback(lambda _: self._completer.run(complete))
                if self._is_collective and torch._C._current_graph_task_id() != -1:
                    torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)
        return future


class _Failed:
    """The value of a future whose operation failed. C++ looks for tensors in it by pickling it, and gets the error.

    ``num_looks`` times it finds none instead: a future of a device looks before it takes the value, and would have an
    error of its own if that fails.
    """

    def __init__(self, operation: Operation[Any], num_looks: int) -> None:
        self._operation, self._num_looks = operation, num_looks

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        if not self._num_looks:
            self.raise_error()
        self._num_looks -= 1
        return str, ("no tensors",)

    def raise_error(self, _: Any = None) -> NoReturn:
        outcome(self._operation)
        raise AssertionError("a failed operation has an error")


def _devices(world: World) -> list[int | str | torch.device] | None:
    """Return the devices of a future's tensors: c10d wants to know those that are not the CPU."""
    return [world.device] if world.device.type == "cuda" else None


def _complete(future: torch.futures.Future[Any], operation: Operation[Any], value: Any, num_looks: int) -> None:
    if operation.error is None:
        future.set_result(value)
        return
    failed = _Failed(operation, num_looks)
    future._set_unwrap_func(failed.raise_error)
    future.set_result(failed)
