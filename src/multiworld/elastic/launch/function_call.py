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

from ...errors import MultiworldError

MAIN = "__main__"
NEEDS_CLOUDPICKLE = "install cloudpickle (pip install cloudpickle), or define it in a module that workers can import"


class ResultError(MultiworldError):
    """The job ended well, but what the function returned in some worker is not to be had."""

    def __init__(self, function: str, rank: int, reason: str) -> None:
        super().__init__(function, rank, reason)
        self.function, self.rank, self.reason = function, rank, reason

    def __str__(self) -> str:
        return f"there is no result of {self.function} from rank {self.rank}: {self.reason}"


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


def forget_result(folder: Path, local_rank: int) -> None:
    """Remove what an earlier attempt has returned."""
    (folder / str(local_rank)).unlink(missing_ok=True)


def load_results(folder: Path, ranks: dict[int, int], *, function: str) -> dict[int, Any]:
    """Return by rank what the workers have returned. ``ranks``: those of the local ranks. Raises ResultError."""
    return {rank: _load_result(folder / str(local), rank, function) for local, rank in sorted(ranks.items())}


def _load_result(path: Path, rank: int, function: str) -> Any:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        reason = "its process ended with status 0 before the function returned, as by sys.exit(0) or os._exit(0)"
        raise ResultError(function, rank, reason) from None
    try:
        return pickle.loads(content)
    except Exception as error:
        reason = f"what it returned cannot be loaded in this process ({type(error).__name__}: {error})"
        raise ResultError(function, rank, reason) from error


def _cloudpickle() -> Any:
    try:
        return importlib.import_module("cloudpickle")
    except ImportError:
        return None
