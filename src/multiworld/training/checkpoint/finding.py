"""Which checkpoints there are in a directory, newest first, and whether each is what was written."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointDamagedError, CheckpointVersionError
from .manifest import FileFacts, Manifest
from .names import MANIFEST, is_whole

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """A checkpoint whose manifest is whole. Its other files were not read yet."""

    path: str
    manifest: Manifest

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def job(self) -> str:
        return self.manifest.job

    @property
    def sequence(self) -> int:
        return self.manifest.sequence

    @property
    def step(self) -> int:
        """So many steps had been committed: the index of the next one."""
        return self.manifest.step

    @property
    def identity(self) -> str:
        """Equal on all hosts that see this checkpoint, and no other one."""
        return f"{self.manifest.sequence}:{self.manifest.step}:{self.manifest.attempt}"


Problem = CheckpointDamagedError | CheckpointVersionError


def look(directory: str | os.PathLike[str]) -> tuple[list[Found], list[Problem]]:
    """Return the checkpoints, newest first, and what is wrong with those whose manifest cannot be used.

    Raises OSError if the directory exists and cannot be read.
    """
    found: list[Found] = []
    problems: list[Problem] = []
    root = Path(directory)
    try:
        names = [name for name in os.listdir(root) if is_whole(name)]
    except FileNotFoundError:
        return [], []
    for name in sorted(names):
        path = str(root / name)
        try:
            found.append(Found(path, Manifest.from_bytes((root / name / MANIFEST).read_bytes(), path)))
        except (CheckpointDamagedError, CheckpointVersionError) as problem:
            problems.append(problem)
        except OSError as error:
            if (root / name).exists():  # else it was deleted meanwhile, as an old one
                problems.append(CheckpointDamagedError(path, MANIFEST, _cause(error)))
    found.sort(key=lambda each: (each.sequence, each.step, each.name), reverse=True)
    return found, problems


def verify(found: Found, *, hashes: bool = True) -> None:
    """Compare all files with the manifest. Raises CheckpointDamagedError for the first that differs."""
    from .disk import facts_of  # what only looks needs no torch

    for name, expected in sorted(found.manifest.files.items()):
        path = Path(found.path, name)
        try:
            size = path.stat().st_size
            actual = facts_of(path) if hashes and size == expected.size_bytes else FileFacts(size_bytes=size, sha256="")
        except OSError as error:
            raise CheckpointDamagedError(found.path, name, _cause(error)) from error
        if actual.size_bytes != expected.size_bytes:
            problem = f"it has {actual.size_bytes} bytes, and {expected.size_bytes} were written"
            raise CheckpointDamagedError(found.path, name, problem)
        if hashes and actual.sha256 != expected.sha256:
            raise CheckpointDamagedError(found.path, name, "its bytes are not those that were written (SHA-256)")


def candidates(directory: str | os.PathLike[str], *, hashes: bool = True) -> list[Found]:
    """Return the whole checkpoints, newest first. Those newer than the first whole one are damaged, and warned of.

    Of the rest only sizes are compared, as long as nobody needs them. Raises CheckpointVersionError if a later release
    wrote into this directory: an older checkpoint would silently undo its work.
    """
    found, problems = look(directory)
    for problem in problems:
        if isinstance(problem, CheckpointVersionError):
            raise problem
        logger.warning("%s", problem)
    whole: list[Found] = []
    for each in found:
        try:
            verify(each, hashes=hashes and not whole)
        except CheckpointDamagedError as problem:
            if Path(each.path).exists():  # else it was deleted meanwhile, as an old one
                logger.warning("%s", problem)
        else:
            whole.append(each)
    return whole


def newest(directory: str | os.PathLike[str], *, hashes: bool = True) -> Found | None:
    """Return the newest whole checkpoint, or None if there is none. Raises and warns as ``candidates`` does."""
    whole = candidates(directory, hashes=hashes)
    return whole[0] if whole else None


def agree(seen: Sequence[Sequence[str]]) -> str | None:
    """Return the newest that all members see: its identity. Pure. ``seen``: of each member, newest first."""
    if not seen:
        return None
    common = set(seen[0]).intersection(*seen[1:])
    return next((identity for identity in seen[0] if identity in common), None)


def _cause(error: OSError) -> str:
    return error.strerror or str(error)
