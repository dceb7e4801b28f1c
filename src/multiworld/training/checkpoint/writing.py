"""Write one checkpoint: this writer's part of it and, as the first writer, what makes it whole."""

from __future__ import annotations

import contextlib
import mmap
import pickle
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ...wire.backoff import BackOff
from .data_file import DataFile
from .disk import Disk
from .finding import look
from .manifest import FileFacts, Manifest
from .metadata_file import MetadataFile
from .names import MANIFEST, deleted_name, leftovers, surplus, unfinished_name, whole_name
from .orders import UnfinishedError, Write
from .staging import Staged

FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.5

Gone = Callable[[float], Collection[int]]
"""Waits up to so many seconds for news, and returns the writers that are gone."""


@dataclass(frozen=True)
class Part:
    """What one writer says of what it wrote: to the first one, in a file. ``described``: of its data file."""

    described: bytes
    files: dict[str, FileFacts]


@dataclass(frozen=True)
class Files:
    """The files that one process writes again and again."""

    data: DataFile = field(default_factory=DataFile)
    metadata: MetadataFile = field(default_factory=MetadataFile)


def write_checkpoint(
    order: Write, staged: Staged, memory: mmap.mmap | None, disk: Disk, files: Files, gone: Gone
) -> Path | None:
    """Return the path of the whole checkpoint as the first writer, None as another one.

    Raises OSError or UnfinishedError, and what DCP raises. What was written is removed then, so that a full disk does
    not stay full.
    """
    directory = Path(order.directory)
    unfinished = directory / unfinished_name(order.step, order.attempt)
    try:
        disk.mkdir(unfinished)
        if order.writer == 0:
            for name in leftovers(disk.names(directory), current=unfinished.name):
                disk.remove_tree(directory / name)
        described = files.data.write(staged, memory, writer=order.writer, disk=disk, directory=unfinished)
        part = Part(described, dict(disk.facts))
        if order.writer > 0:
            disk.write(unfinished / _part_name(order.writer), pickle.dumps(part))
            return None
        parts = [part, *_others(order, disk, unfinished, gone)]
        files.metadata.write([each.described for each in parts], disk, unfinished)
        return _complete(order, parts, disk, directory, unfinished)
    except Exception as error:
        _give_up(order, disk, unfinished, error)
        raise


def remove_surplus(order: Write, disk: Disk) -> None:
    """Remove all but the ``keep`` newest. Each first gets a name that is never read. Raises OSError."""
    directory = Path(order.directory)
    found, _ = look(directory)
    for name in surplus(found, order.job, order.keep):
        deleted = directory / deleted_name(name, order.attempt)
        disk.rename(directory / name, deleted)
        disk.remove_tree(deleted)


def _complete(order: Write, parts: list[Part], disk: Disk, directory: Path, unfinished: Path) -> Path:
    """Write the manifest, and give the directory its name as the last thing of all."""
    for index in range(1, len(parts)):
        disk.rm_file(unfinished / _part_name(index))
    found, _ = look(directory)
    manifest = Manifest(
        job=order.job,
        step=order.step,
        sequence=1 + max((each.sequence for each in found), default=0),
        attempt=order.attempt,
        saved_at=time.time(),
        torch=str(torch.__version__),
        num_writers=order.num_writers,
        files={name: facts for files in (disk.facts, *(part.files for part in parts)) for name, facts in files.items()},
    )
    disk.write(unfinished / MANIFEST, manifest.to_bytes())
    disk.sync_directory(unfinished)
    whole = directory / whole_name(order.step, disk.names(directory))
    disk.rename(unfinished, whole)
    disk.sync_directory(directory)
    return whole


def _others(order: Write, disk: Disk, unfinished: Path, gone: Gone) -> list[Part]:
    """Wait for the other writers' parts: their files are looked for, since nothing else connects the writers."""
    looks = BackOff(FIRST_LOOK_S, LAST_LOOK_S)
    until = time.monotonic() + order.timeout_s
    lost: Collection[int] = ()
    while missing := _missing(order, disk, unfinished, lost):
        if time.monotonic() > until:
            raise UnfinishedError(
                f"writers {missing} of {order.num_writers} left no part in {order.directory} within "
                f"{order.timeout_s:.0f} s; is it a directory that all hosts share?"
            )
        lost = gone(looks.next_s())
    return [pickle.loads((unfinished / _part_name(index)).read_bytes()) for index in range(1, order.num_writers)]


def _missing(order: Write, disk: Disk, unfinished: Path, lost: Collection[int]) -> list[int]:
    names = set(disk.names(unfinished))
    missing = [index for index in range(1, order.num_writers) if _part_name(index) not in names]
    for index in missing:
        if _failure_name(index) in names:
            raise UnfinishedError(f"writer {index} failed: {(unfinished / _failure_name(index)).read_text()}")
        if index in lost:
            raise UnfinishedError(f"writer {index} was lost before its part was written")
    return missing


def _give_up(order: Write, disk: Disk, unfinished: Path, error: Exception) -> None:
    """Make room again, and tell the first writer. The error itself is raised and reported by the caller."""
    with contextlib.suppress(OSError):
        if order.writer == 0:
            disk.remove_tree(unfinished)
            return
        for name in disk.names(unfinished):
            if name.startswith(f"__{order.writer}_"):
                disk.rm_file(unfinished / name)
        disk.write(unfinished / _failure_name(order.writer), reason_of(error).encode())


def reason_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) if isinstance(error, UnfinishedError) else f"{type(error).__name__}: {error}"


def _part_name(writer: int) -> str:
    return f"part-{writer}"


def _failure_name(writer: int) -> str:
    return f"failed-{writer}"
