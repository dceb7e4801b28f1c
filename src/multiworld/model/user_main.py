"""Makes what the user's ``__main__`` defines available in another process, and pickles values for that process."""

from __future__ import annotations

import io
import multiprocessing.spawn
import os
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import Any

UNWANTED = ("authkey", "start_method", "log_to_stderr", "log_level", "name")
"""Fields of multiprocessing's preparation data that our processes do not take over."""
_replaying_main = False


def main_of_this_process(*, with_works: bool = True) -> dict[str, Any]:
    """Return how another process finds this one's ``__main__``, ready for JSON.

    ``with_works``: whether ``__main__`` may define works, so that the other process has to import it.
    """
    main = multiprocessing.spawn.get_preparation_data("multiworld")
    unwanted = set(UNWANTED)
    if not with_works or not _can_be_imported(main):
        unwanted |= {key for key in main if key.startswith("init_main")}
    return {key: value for key, value in main.items() if key not in unwanted}


def _can_be_imported(main: Mapping[str, Any]) -> bool:
    """Return whether ``multiprocessing`` can import it. The path of a program from standard input ends in <stdin>."""
    name, path = main.get("init_main_from_name"), main.get("init_main_from_path")
    if name is not None:
        return str(name).rpartition(".")[2] != "__main__"  # multiprocessing does not run a package's __main__ again
    return path is not None and Path(path).is_file()


def dumps_for(main: Mapping[str, Any], value: Any) -> bytes:
    """Pickle a value for a process that gets ``main``. Raises what pickle raises.

    Raises PicklingError for a class or function of a ``__main__`` that the other process cannot import.
    """
    has_main = any(key.startswith("init_main") for key in main)
    buffer = io.BytesIO()
    (pickle.Pickler if has_main else _PicklerWithoutMain)(buffer).dump(value)
    return buffer.getvalue()


class _PicklerWithoutMain(pickle.Pickler):
    """Refuses what is defined in a ``__main__`` that no other process can import."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in a program that no other process can import: one that was typed "
                "in, or read from standard input or `python -c`, or the __main__ of a package; put it in another file"
            )
        return NotImplemented


def prepare_main(main: Mapping[str, Any], *, elsewhere: bool = False) -> None:
    """Make what the user's main module defines available under its name, as ``multiprocessing`` does.

    ``elsewhere``: this is another host. Its folders may differ, and it may have the same modules in other places.
    """
    global _replaying_main
    _replaying_main = True
    try:
        multiprocessing.spawn.prepare(_for_this_host(main) if elsewhere else dict(main))
    finally:
        _replaying_main = False


def is_replaying_main() -> bool:
    """Return whether ``prepare_main`` is importing the user's main module right now."""
    return _replaying_main


def _for_this_host(main: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out folders that do not exist here, and look modules up in this host's own places first."""
    found = {key: value for key, value in main.items() if key not in ("dir", "orig_dir") or os.path.isdir(value)}
    if "sys_path" in main:
        found["sys_path"] = [*sys.path, *(entry for entry in main["sys_path"] if entry not in sys.path)]
    return found
