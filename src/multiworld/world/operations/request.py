"""A request: an operation that was started on the blocking API, and can be waited for later, from any thread."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

from ...channel.base import ANY_RANK
from ...errors import InvalidValueError, RequestCancelledError
from ...wire.progress.operation import Operation
from ...wire.progress.waiting import outcome
from .operations import WorldOperations

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Request(Generic[T]):
    """An operation under way. It goes on whether or not somebody waits, and keeps its tensors alive until it is done.

    Leave the tensors alone until then. All methods work from any thread, and may be called again. A request that is
    dropped goes on too; if it fails, and nobody waited for it, looked at its error or cancelled it, the log says so.
    """

    __slots__ = ("__weakref__", "_name", "_operation", "_peer", "_seen", "_value_of", "_world")

    def __init__(
        self,
        world: WorldOperations,
        operation: Operation[Any],
        name: str,
        peer: int | None = None,
        value_of: Callable[[Any], T] | None = None,
    ) -> None:
        """``peer``: the rank that it depends on, or ANY_RANK.

        ``value_of`` turns the operation's result into the request's.
        """
        self._world, self._operation, self._name, self._peer = world, operation, name, peer
        self._value_of = value_of
        self._seen = False

    def __repr__(self) -> str:
        operation = self._operation
        state = "under way" if not operation.done else "done" if operation.error is None else "failed"
        direction = "to" if self._name.startswith("isend") else "from"
        peer = "" if self._peer is None or self._peer == ANY_RANK else f" {direction} rank {self._peer}"
        return f"<Request {self._name}{peer} in world {self._world.name!r}: {state}>"

    @property
    def done(self) -> bool:
        """Whether it has ended, with a result or with an error. Never blocks."""
        return self._operation.done

    def is_completed(self) -> bool:
        """As ``done``: the name in ``torch.distributed``."""
        return self._operation.done

    @property
    def error(self) -> BaseException | None:
        """What it failed with; None if it is under way or has succeeded."""
        error = self._operation.error
        self._seen = self._seen or error is not None
        return error

    def wait(self, timeout_s: float | None = None) -> T:
        """Block until it is done, and return its result or raise its error.

        After ``timeout_s`` of waiting (0: do not wait) raises TimeoutError, and the operation goes on, as it does when
        the wait is interrupted. That is not the operation's own deadline, after which it has ended with
        OperationTimeoutError.
        """
        if timeout_s is not None and not timeout_s >= 0:
            raise InvalidValueError(f"timeout_s must be a number of seconds from 0, or None, got {timeout_s!r}")
        operation = self._operation
        if operation.done:
            return self._outcome()
        if self._world.abandoned:
            raise RuntimeError(
                f"{self!r} belongs to the parent of this forked process, and can only be waited for there"
            )
        if not self._world.wait_for(operation, self._peer, timeout_s):
            raise TimeoutError(f"timed out: {self!r} has not ended within the {timeout_s:g} s of this wait; it goes on")
        return self._outcome()

    def result(self) -> T:
        """Return the result or raise the error of a request that is done; RuntimeError if it is not. Never blocks."""
        if not self._operation.done:
            raise RuntimeError(f"{self!r} has no result yet: wait() for it")
        return self._outcome()

    def cancel(self) -> bool:
        """End it, unless it is done. True: it has ended with RequestCancelledError.

        Its tensor is left alone from then on. The world stays usable (on gloo and nccl it may break, once data moves).
        """
        self._seen = True
        world = self._world
        return self._operation.cancel(RequestCancelledError(world.name, world.generation, self._name))

    def _outcome(self) -> T:
        self._seen = True
        value = outcome(self._operation)
        return value if self._value_of is None else self._value_of(value)

    def __del__(self) -> None:
        if self._seen:
            return
        log = partial(_log_unseen, f"{self._name} in world {self._world!r}")
        if self._operation.done:
            log(self._operation)
        else:  # later, and elsewhere: this may be called by the garbage collector with any lock held
            self._world.soon(partial(self._operation.add_callback, log))


def _log_unseen(what: str, operation: Operation[Any]) -> None:
    if operation.error is not None:
        logger.error("nobody waited for this request, and it failed: %s: %s", what, operation.error)
