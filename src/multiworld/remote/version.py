"""The release of this package, which master and nodes compare."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def own_version() -> str:
    try:
        return version("multiworld")
    except PackageNotFoundError:  # run from a folder of sources
        return "unknown"
