"""What the processes of a deployment are to run, in files of its folder: the graph, and each stage's work by itself."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import io
import multiprocessing.spawn
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import Any

from .errors import DeploymentError
from .graph import Graph, Stage

__all__ = ["Blueprint", "is_replaying_main", "load_work", "prepare_main"]

GRAPH_FILE = "pipeline.pickle"
WORKS = "works"
MINE = 0o700
NOT_WANTED = ("authkey", "start_method", "log_to_stderr", "log_level", "name")  # of multiprocessing's preparation
_replaying_main = False


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """``options``: what else members need to know, ready for JSON. ``main``: how to find the user's ``__main__``."""

    name: str
    stages: tuple[Stage, ...]
    options: dict[str, Any] = field(default_factory=dict)
    main: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, stages: Iterable[Stage], options: dict[str, Any], *, in_main: bool = True) -> Blueprint:
        """Draw it up in the process that made the pipeline. ``in_main``: its ``__main__`` may define works."""
        main = multiprocessing.spawn.get_preparation_data("serving")
        if not in_main or not _can_be_imported(main):
            main = {key: value for key, value in main.items() if not key.startswith("init_main")}
        return cls(
            name=name,
            stages=tuple(stages),
            options=options,
            main={key: value for key, value in main.items() if key not in NOT_WANTED},
        )

    @property
    def graph(self) -> Graph:
        return Graph(self.stages)

    def write(self, folder: Path) -> None:
        """Write all into a folder, which only this user can read. Raises DeploymentError for what does not pickle."""
        works = folder / WORKS
        works.mkdir(mode=MINE, parents=True, exist_ok=True)
        for stage in self.stages:
            if not isinstance(stage.work, str):
                _write(works / f"{stage.name}.pickle", self._pickled(stage, "work", stage.work))
            self._pickled(stage, "canary", stage.canary)
        named = tuple(
            stage if isinstance(stage.work, str) else replace(stage, work=_in_file(stage)) for stage in self.stages
        )
        _write(folder / GRAPH_FILE, pickle.dumps(replace(self, stages=named)))

    def _pickled(self, stage: Stage, name: str, value: Any) -> bytes:
        has_main = any(key.startswith("init_main") for key in self.main)
        found = io.BytesIO()
        try:
            (pickle.Pickler if has_main else _WithoutMain)(found).dump(value)
        except Exception as error:
            raise DeploymentError(
                f"stage {stage.name!r}: its {name} cannot be sent to another process ({type(error).__name__}: {error})."
                " Define it at the top level of a module, not inside a function, or name it as "
                "'package.module:attribute'."
            ) from error
        return found.getvalue()

    @classmethod
    def read(cls, folder: Path) -> Blueprint:
        """Read the graph; works are read one by one, by ``load_work``."""
        value = pickle.loads((folder / GRAPH_FILE).read_bytes())
        if not isinstance(value, cls):
            raise DeploymentError(f"{folder / GRAPH_FILE} holds no pipeline, but a {type(value).__name__}")
        return value


def _can_be_imported(main: Mapping[str, Any]) -> bool:
    """Return whether ``multiprocessing`` can; the path of a program from standard input ends in <stdin>."""
    name, path = main.get("init_main_from_name"), main.get("init_main_from_path")
    if name is not None:
        return str(name).rpartition(".")[2] != "__main__"  # that of a package is not run again
    return path is not None and Path(path).is_file()


class _WithoutMain(pickle.Pickler):
    """Refuses what is defined in a ``__main__`` that no other process can import."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, FunctionType)) and value.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in a program that no other process can import: one that was typed "
                "in, or read from standard input or `python -c`, or the __main__ of a package; put it in another file"
            )
        return NotImplemented


def is_replaying_main() -> bool:
    """Return whether the user's main module is just being imported again, by a process of a deployment."""
    return _replaying_main


def prepare_main(main: Mapping[str, Any], *, elsewhere: bool = False) -> None:
    """Make what the user's main module defines available under its name, as ``multiprocessing`` does.

    ``elsewhere``: on another host, which may have other folders, and the same modules in other places.
    """
    global _replaying_main
    _replaying_main = True
    try:
        multiprocessing.spawn.prepare(_fitting(main) if elsewhere else dict(main))
    finally:
        _replaying_main = False


def _fitting(main: Mapping[str, Any]) -> dict[str, Any]:
    """Return what another host can do: modules are looked up in its own places first, and no folder is missing."""
    found = {key: value for key, value in main.items() if key not in ("dir", "orig_dir") or os.path.isdir(value)}
    if "sys_path" in main:
        found["sys_path"] = [*sys.path, *(entry for entry in main["sys_path"] if entry not in sys.path)]
    return found


async def load_work(stage: Stage, folder: Path) -> Callable[..., Any]:
    """Return what the stage calls, set up: classes are made, ``setup`` has run, modules are in evaluation mode.

    Raises whatever the user's code raises.
    """
    work: Any = stage.work
    if isinstance(work, str):
        work = _read(folder, work) if work == _in_file(stage) else _imported(work)
    if inspect.isclass(work):
        work = work()
    setup = getattr(work, "setup", None)
    if callable(setup):
        result = setup()
        if inspect.isawaitable(result):
            await result
    if not callable(work):
        raise TypeError(f"stage {stage.name!r}: {work!r} cannot be called")
    evaluate, move = getattr(work, "eval", None), getattr(work, "to", None)
    if callable(evaluate) and callable(getattr(work, "state_dict", None)):
        evaluate()
        if callable(move) and stage.device != "cpu":
            move(stage.device)
    await asyncio.sleep(0)
    return work  # type: ignore[no-any-return]


def _in_file(stage: Stage) -> str:
    return f"file:{stage.name}"


def _read(folder: Path, name: str) -> Any:
    return pickle.loads((folder / WORKS / f"{name.removeprefix('file:')}.pickle").read_bytes())


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: a process that starts meanwhile reads the old one."""
    temporary = path.with_suffix(f".{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
