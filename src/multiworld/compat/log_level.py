"""The level of the logger ``multiworld``, which programs for multiworld 0.2.x set by ``M8D_LOG_LEVEL``."""

from __future__ import annotations

import logging
import os

LOG_LEVEL_VARIABLE = "M8D_LOG_LEVEL"


def set_log_level() -> None:
    """Give the logger ``multiworld`` the level that ``M8D_LOG_LEVEL`` names, unless the program gave it one.

    Raises ValueError for a name that is no level. No handler is installed: the program shows the records.
    """
    name = os.environ.get(LOG_LEVEL_VARIABLE)
    package_logger = logging.getLogger("multiworld")
    if not name or package_logger.level != logging.NOTSET:
        return
    level = logging.getLevelName(name.upper())
    if not isinstance(level, int):
        expected = "DEBUG, INFO, WARNING, ERROR or CRITICAL"
        raise ValueError(f"{LOG_LEVEL_VARIABLE}={name!r} is not a logging level: expected {expected}")
    package_logger.setLevel(level)
