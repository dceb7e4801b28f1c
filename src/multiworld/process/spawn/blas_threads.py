"""How many threads numpy's OpenBLAS computes with: it looks at its variables only when it is loaded.

Told to use one, it has no threads at all after a fork; told to use more, it starts them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from ..facts import libraries

# Distributions of numpy and scipy rename its functions, each in their own way.
NAMES = [f"{prefix}openblas_{{}}_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "_64_", "")]


def get_blas_threads() -> int | None:
    """Return the number, or None if no OpenBLAS is loaded."""
    functions = _functions()
    return None if functions is None else functions[0]()


def set_blas_threads(num_threads: int) -> None:
    """Do nothing if no OpenBLAS is loaded."""
    functions = _functions()
    if functions is not None:
        functions[1](num_threads)


@functools.cache
def _functions() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    for path in libraries("openblas"):
        library = ctypes.CDLL(path)
        for name in NAMES:
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None
