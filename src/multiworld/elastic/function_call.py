"""A function and its arguments on their way to workers, and what each returns on its way back, by files."""

from __future__ import annotations

import importlib
import multiprocessing.spawn
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["keep_result", "load_call", "load_results", "name_of", "pickled_call"]

MAIN = "__main__"
NEEDS_CLOUDPICKLE = "install cloudpickle (pip install cloudpickle), or define it in a module that workers can import"


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def pickled_call(function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    """Return what ``load_call`` takes in another process of this host.

    With cloudpickle, functions of a notebook, lambdas and closures can be sent; without it what pickle sends, and
    functions of a script, which each worker then runs as ``multiprocessing`` does. Raises ValueError for others.
    """
    cloudpickle = _cloudpickle()
    preparation = dict(multiprocessing.spawn.get_preparation_data("worker"))
    preparation.pop("authkey", None)  # a secret, which may not be pickled; workers are no children of multiprocessing
    if cloudpickle is not None:
        for name in ("init_main_from_name", "init_main_from_path"):
            preparation.pop(name, None)
    elif getattr(function, "__module__", None) == MAIN and not hasattr(sys.modules[MAIN], "__file__"):
        raise ValueError(f"{name_of(function)} is defined in an interactive session: {NEEDS_CLOUDPICKLE}")
    try:
        call = (cloudpickle or pickle).dumps((function, tuple(arguments)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        advice = "" if cloudpickle is not None else f"; {NEEDS_CLOUDPICKLE}"
        raise ValueError(f"{name_of(function)} and its arguments cannot be sent to workers: {error}{advice}") from error
    return pickle.dumps((preparation, call))


def load_call(content: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Make this process like the one that sent the call, as far as it matters for imports, and return the call."""
    preparation, call = pickle.loads(content)
    multiprocessing.spawn.prepare(preparation)
    function, arguments = pickle.loads(call)
    return function, arguments


def keep_result(folder: Path, local_rank: int, rank: str, result: object) -> None:
    """Write what a worker returns, in one piece. Raises TypeError for what cannot be sent."""
    try:
        content = (_cloudpickle() or pickle).dumps(result)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        kind = type(result).__qualname__
        raise TypeError(f"rank {rank} returns a {kind}, which cannot be sent to its launcher: {error}") from error
    unfinished = folder / f"{local_rank}.{os.getpid()}"
    unfinished.write_bytes(content)
    unfinished.replace(folder / str(local_rank))


def load_results(folder: Path, ranks: dict[int, int]) -> dict[int, Any]:
    """Return by rank what the workers have returned. ``ranks``: those of the local ranks."""
    return {rank: pickle.loads((folder / str(local_rank)).read_bytes()) for local_rank, rank in sorted(ranks.items())}


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None
