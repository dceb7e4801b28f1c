"""The weights that updates bring, in files of the deployment's folder: each version of each stage in one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import DeploymentError
from ..whole_file import whole_file


class WeightsStore:
    """Reads and writes on threads: a large model takes its time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "weights"

    async def put(
        self, stage: str, version: int, weights: Mapping[str, Any] | str | Path, *, over: str | None = None
    ) -> str:
        """Keep weights, which are given or lie in a file of ``torch.save``, and return where they are now.

        ``over``: the file of the version before, whose weights those are that are not given. Raises DeploymentError for
        what is no dict of tensors.
        """
        return await asyncio.to_thread(self._put, stage, version, weights, over)

    async def get(self, path: str) -> dict[str, Tensor]:
        return await asyncio.to_thread(_read, path)

    def keep_only(self, stage: str, version: int) -> None:
        """Remove the files of other versions of a stage, and what a controller that was killed left half-written."""
        kept = self._path(stage, version)
        for path in [*self._folder.glob(f"{stage}-*.pt"), *self._folder.glob(f".{stage}-*.pt.*")]:
            is_of_stage = path.name.removeprefix(".").rpartition("-")[0] == stage
            if is_of_stage and path != kept and path.suffix != f".{os.getpid()}":
                path.unlink(missing_ok=True)

    def _path(self, stage: str, version: int) -> Path:
        return self._folder / f"{stage}-{version}.pt"

    def _put(self, stage: str, version: int, weights: Mapping[str, Any] | str | Path, over: str | None) -> str:
        given = _read(str(weights)) if isinstance(weights, (str, Path)) else dict(weights)
        tensors = {name: value.detach().cpu() for name, value in given.items() if isinstance(value, Tensor)}
        if not tensors or not all(isinstance(name, str) for name in tensors):
            raise DeploymentError(
                f"weights for stage {stage!r} must be a dict of tensors by name, got {weights!r:.100}"
            )
        others = [str(name) for name in given if name not in tensors]
        if others:
            raise DeploymentError(
                f"weights for stage {stage!r} hold what is no tensor, and cannot be updated: {', '.join(others[:5])}. "
                "Leave it out if it is to stay as it is."
            )
        if over is not None:
            tensors = {**_read(over), **tensors}
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(stage, version)
        with whole_file(path) as file:
            torch.save(tensors, file)
        return str(path)


def _read(path: str) -> dict[str, Tensor]:
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises what it likes for a file that is not its own
        why = f"{type(error).__name__}: {error}"
        raise DeploymentError(
            f"the weights in {path} cannot be read; expected a file in which torch.save wrote a dict of tensors ({why})"
        ) from error
    if not isinstance(weights, dict):
        raise DeploymentError(f"the weights in {path} are a {type(weights).__name__}, not a dict of tensors by name")
    return weights
