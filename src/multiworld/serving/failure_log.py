"""Log what a user's code raises: with its traceback the first time, and counted from then on."""

from __future__ import annotations

import logging
from collections import OrderedDict

from .user_code import place_of_error, users_traceback

__all__ = ["FailureLog"]

MAX_KINDS = 256  # that are remembered, the latest


class FailureLog:
    """Errors are the same if their class and the line of the user's code are: messages often hold what was asked."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: OrderedDict[tuple[type[BaseException], str], int] = OrderedDict()

    def failed(self, stage: str, error: Exception, described: str) -> None:
        """A request failed in a stage. Logged are the first one of a kind, the 10th, the 100th, and so on."""
        kind = (type(error), place_of_error(error))
        count = self._counts.pop(kind, 0) + 1
        self._counts[kind] = count
        if len(self._counts) > MAX_KINDS:
            self._counts.popitem(last=False)
        if count == 1:
            trace = users_traceback(error)
            self._logger.warning("stage %s failed: %s%s", stage, described, f"\n{trace.rstrip()}" if trace else "")
        elif str(count).strip("0") == "1":
            self._logger.warning("stage %s failed: %s: the same error %d more times", stage, described, count - 1)
