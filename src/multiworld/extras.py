"""Say which optional dependencies are missing, and how to install them.

The project is on no index: ``multiworld`` on PyPI is another package, so no advice may name it.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

__all__ = ["SERVING", "TRAINING", "install_extra", "missing_modules"]

SERVING = ("httptools", "numpy", "orjson", "safetensors", "uvicorn")
"""The modules of the extra ``serving`` without which nothing is served. PyYAML and rich have uses of their own."""
TRAINING = ("numpy", "scipy")
"""The modules of the extra ``training`` without which no pipelines are planned."""


def install_extra(name: str) -> str:
    """Return the advice for the extra ``name``, as in ``f"mpi4py is not installed: {install_extra('mpi')}"``."""
    return f"pip install '.[{name}]' in a clone of the project"


def missing_modules(names: Iterable[str]) -> list[str]:
    return [name for name in names if find_spec(name) is None]
