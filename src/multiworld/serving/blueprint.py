"""What the processes of a deployment are to run, in files of its folder: the graph, and each stage's work by itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from ..model.user_main import dumps_for, main_of_this_process
from ..model.work import import_work, set_up_work
from ..wire.messages import Json
from .errors import DeploymentError
from .graph import Graph, Stage
from .whole_file import whole_file

if TYPE_CHECKING:
    from .generation.loop import GenerationOptions

GRAPH_FILE = "pipeline.pickle"
WORKS = "works"
MINE = 0o700


class PipelineOptions(TypedDict, total=False):
    """A dict, as members of the release before read it. ``signature``: as JSON."""

    policy: str
    backend: str
    timeout_s: float | None
    admission: Mapping[str, float]
    signature: Mapping[str, Json] | None
    generation: GenerationOptions | None


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """``options``: what else members need to know. ``main``: how to find the user's ``__main__``."""

    name: str
    stages: tuple[Stage, ...]
    options: PipelineOptions = field(default_factory=PipelineOptions)
    main: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, stages: Iterable[Stage], options: PipelineOptions, *, in_main: bool = True) -> Blueprint:
        """Draw it up in the process that made the pipeline. ``in_main``: its ``__main__`` may define works."""
        main = main_of_this_process(with_works=in_main)
        return cls(name=name, stages=tuple(stages), options=options, main=main)

    @property
    def graph(self) -> Graph:
        return Graph(self.stages)

    def write(self, folder: Path) -> None:
        """Write all into a folder, which only this user can read. Raises DeploymentError for what does not pickle."""
        works = folder / WORKS
        works.mkdir(mode=MINE, parents=True, exist_ok=True)
        for stage in self.stages:
            if not isinstance(stage.work, str):
                with whole_file(works / f"{stage.name}.pickle") as file:
                    file.write(self._pickled(stage, "work", stage.work))
            self._pickled(stage, "canary", stage.canary)
        named = tuple(
            stage if isinstance(stage.work, str) else replace(stage, work=_in_file(stage)) for stage in self.stages
        )
        with whole_file(folder / GRAPH_FILE) as file:
            pickle.dump(replace(self, stages=named), file)

    def _pickled(self, stage: Stage, name: str, value: Any) -> bytes:
        try:
            return dumps_for(self.main, value)
        except Exception as error:
            raise DeploymentError(
                f"stage {stage.name!r}: its {name} cannot be sent to another process ({type(error).__name__}: {error})."
                " Define it at the top level of a module, not inside a function, or name it as "
                "'package.module:attribute'."
            ) from error

    @classmethod
    def read(cls, folder: Path) -> Blueprint:
        """Read the graph; works are read one by one, by ``load_work``."""
        value = pickle.loads((folder / GRAPH_FILE).read_bytes())
        if not isinstance(value, cls):
            raise DeploymentError(f"{folder / GRAPH_FILE} holds no pipeline, but a {type(value).__name__}")
        return value


async def load_work(stage: Stage, folder: Path) -> Callable[..., Any]:
    """Return what the stage calls, set up on its device. Errors of the user's code pass through."""
    work: Any = stage.work
    if isinstance(work, str):
        work = _read(folder, work) if work == _in_file(stage) else import_work(work)
    return await set_up_work(work, device=stage.device, name=f"stage {stage.name!r}")


def _in_file(stage: Stage) -> str:
    return f"file:{stage.name}"


def _read(folder: Path, name: str) -> Any:
    return pickle.loads((folder / WORKS / f"{name.removeprefix('file:')}.pickle").read_bytes())
