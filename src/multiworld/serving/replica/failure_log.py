"""Log what a user's code raises: with its traceback the first time, and counted from then on."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from ...model.user_code import place_of_error, users_traceback
from ..member.failure import Failure

MAX_KINDS = 256  # that are remembered, the latest


class FailureLog:
    """Errors are the same if their class and the line of the user's code are: messages often hold what was asked."""

    def __init__(self, logger: logging.Logger, *, clock: Callable[[], float] = time.time) -> None:
        self._logger, self._clock = logger, clock
        self._failures: OrderedDict[tuple[type[BaseException], str], Failure] = OrderedDict()

    @property
    def last(self) -> Failure | None:
        """The kind of error that came last; None before the first."""
        return next(reversed(self._failures.values()), None)

    def failed(self, stage: str, error: Exception, described: str) -> None:
        """A request failed in a stage. Logged are the first one of a kind, the 10th, the 100th, and so on."""
        place = place_of_error(error)
        key, at = (type(error), place), self._clock()
        before = self._failures.pop(key, None)
        if before is None:
            kind, trace = f"{type(error).__name__} at {place}", users_traceback(error).rstrip()
            failure = Failure(kind=kind, error=described, count=1, at=at, traceback=trace)
        else:
            failure = replace(before, error=described, count=before.count + 1, at=at)
        self._failures[key] = failure
        if len(self._failures) > MAX_KINDS:
            self._failures.popitem(last=False)
        if failure.count == 1:
            trace = f"\n{failure.traceback}" if failure.traceback else ""
            self._logger.warning("stage %s failed: %s%s", stage, described, trace)
        elif str(failure.count).strip("0") == "1":
            again = failure.count - 1
            self._logger.warning("stage %s failed: %s: the same error %d more times", stage, described, again)
