"""What a machine does better without the interpreter. Without a compiler there is none of it, and all goes on slower.

``core`` is a library of the few steps that are written in C, or None: then Python does the same. See
``docs/decisions/012-native-core.md``. Which modules are compiled from Python says ``compiled``.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os

from .compiled import VARIABLE, use

__all__ = ["VARIABLE", "core", "holding", "not_compiled", "why_not"]

VERSION = 5  # of the functions and their parameters


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


core, why_not = _load()
"""The library, or None and the reason."""

holding = None if core is None else ctypes.PyDLL(core._name)
"""The same library. A call through it keeps the interpreter lock: for what takes no longer than giving that up and
getting it back, which other threads may make long."""

not_compiled = use()
"""Why modules are loaded as they were written; empty: they are loaded compiled."""
