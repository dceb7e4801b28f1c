"""What a machine does better without the interpreter. Without a compiler there is none of it, and all goes on slower.

``core`` is a library of the few steps that are written in C, or None: then Python does the same. See
``docs/decisions/012-native-core.md``. ``for_remote`` has what each operation of remote tensors goes through, or is None
likewise (``docs/decisions/050-native-remote.md``). Which modules are compiled from Python says ``compiled``.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
from types import ModuleType

from .compiled import VARIABLE, use

__all__ = ["VARIABLE", "core", "for_remote", "holding", "not_compiled", "why_not", "why_not_for_remote"]

VERSION = 6  # of the functions and their parameters
VERSION_FOR_REMOTE = 2


def _load() -> tuple[ctypes.CDLL | None, str]:
    if os.environ.get(VARIABLE) == "0":
        return None, f"{VARIABLE}=0 in the environment"
    spec = importlib.util.find_spec(f"{__name__}.core")
    if spec is None or spec.origin is None:
        return None, "it was not built: was there a C compiler when the package was installed?"
    try:
        library = ctypes.CDLL(spec.origin)
        library.multiworld_version.restype = ctypes.c_uint64
        version = library.multiworld_version()
    except (OSError, AttributeError) as error:
        return None, f"it does not load: {error}"
    if version != VERSION:
        return None, f"{spec.origin} is of version {version}, not {VERSION}: install the package again"
    return library, ""


def _load_for_remote() -> tuple[ModuleType | None, str]:
    if os.environ.get(VARIABLE) == "0":
        return None, f"{VARIABLE}=0 in the environment"
    try:
        module = importlib.import_module(f"{__name__}.remote")
        version = module.VERSION
    except ModuleNotFoundError:
        return None, "it was not built: were there a C compiler and Python's headers when the package was installed?"
    except (ImportError, AttributeError) as error:
        return None, f"it does not load: {error}"
    if version != VERSION_FOR_REMOTE:
        return None, f"{module.__file__} is of version {version}, not {VERSION_FOR_REMOTE}: install the package again"
    return module, ""


core, why_not = _load()
"""The library, or None and the reason."""

for_remote, why_not_for_remote = _load_for_remote()
"""The module, or None and the reason."""

holding = None if core is None else ctypes.PyDLL(core._name)
"""The same library. A call through it keeps the interpreter lock: for what takes no longer than giving that up and
getting it back, which other threads may make long."""

not_compiled = use()
"""Why modules are loaded as they were written; empty: they are loaded compiled."""
