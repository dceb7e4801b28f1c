"""The replies of a node to what its master asks, by request, on whichever thread they come."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial

from ...errors import ProtocolError
from ...wire.progress.operation import Operation
from ..protocol.reply import request_of

logger = logging.getLogger(__name__)

Discard = Callable[[int, memoryview], None]
"""Called with a request and the reply that nobody takes."""


class Answers:
    """Those that come over one link. ``is_open`` tells whether somebody waits, or is about to, for a request's reply.

    A node that is made anew may answer before the wait that its loss interrupted has begun once more.
    """

    def __init__(self, is_open: Callable[[int], bool], discard: Discard) -> None:
        self._is_open, self._discard = is_open, discard
        self._error: Exception | None = None
        self._by_request: dict[int, Operation[memoryview]] = {}
        self._lock = threading.Lock()  # guards the lines above

    def __len__(self) -> int:
        """How many replies are awaited, or have come and were not taken yet."""
        return len(self._by_request)

    @property
    def are_awaited(self) -> bool:
        """Whether a reply is still to come."""
        with self._lock:
            return any(not each.done for each in self._by_request.values())

    def of(self, request: int) -> Operation[memoryview]:
        """Return the reply to a request, which may be still to come; it fails with the link."""
        with self._lock:
            if self._error is None or request in self._by_request:
                return self._by_request.setdefault(request, Operation())
            error = self._error
        failed: Operation[memoryview] = Operation()
        failed.fail(error)
        return failed

    def came(self, reply: memoryview) -> None:
        try:
            request = request_of(reply)
        except ProtocolError as error:  # nobody can wait for it
            logger.warning("a node sent no reply: %s", error)
            return
        with self._lock:
            operation = self._by_request.setdefault(request, Operation()) if self._is_open(request) else None
        if operation is not None:
            operation.on_undo = partial(self._discard, request, reply)
        if operation is None or not operation.succeed(reply):  # the wait was given up
            self._discard(request, reply)

    def ended(self, error: Exception) -> None:
        """Nothing comes any more. What has come is still to be had."""
        with self._lock:
            self._error = error
            pending = [each for each in self._by_request.values() if not each.done]
        for operation in pending:
            operation.fail(error)

    def close(self, request: int) -> None:
        """Nobody waits for this reply any more."""
        with self._lock:
            self._by_request.pop(request, None)
