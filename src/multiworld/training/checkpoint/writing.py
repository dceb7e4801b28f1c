"""Write one checkpoint: this writer's part of it and, as the first writer, what makes it whole."""

from __future__ import annotations

import contextlib
import io
import mmap
import pickle
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from ...wire.backoff import BackOff
from .disk import Disk, Unclosed
from .finding import look
from .manifest import FileFacts, Manifest
from .names import MANIFEST, deleted_name, leftovers, surplus, unfinished_name, whole_name
from .orders import Write
from .packing import Packer
from .staging import Staged

FIRST_LOOK_S, LAST_LOOK_S = 0.01, 0.5
MOST_NAMED = 3

Gone = Callable[[float], Collection[int]]
"""Waits up to so many seconds for news, and returns the writers that are gone."""


class UnfinishedError(Exception):
    """A checkpoint cannot be made whole: the message says why."""


@dataclass(frozen=True)
class Part:
    """What one writer says of what it wrote: to the first one, in a file."""

    plan: SavePlan
    results: list[WriteResult]
    files: dict[str, FileFacts]


def write_checkpoint(
    order: Write, staged: Staged, memory: mmap.mmap | None, disk: Disk, packer: Packer, gone: Gone
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
        part = _write_part(order, staged, memory, disk, packer, unfinished)
        if order.writer > 0:
            disk.write(unfinished / _part_name(order.writer), pickle.dumps(part))
            return None
        return _complete(order, [part, *_others(order, disk, unfinished, gone)], disk, directory, unfinished)
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


def _write_part(
    order: Write, staged: Staged, memory: mmap.mmap | None, disk: Disk, packer: Packer, unfinished: Path
) -> Part:
    plan, places = staged.plan()
    tensors = {name: place.view(memory) for name, place in places.items()}
    writer = _dcp_writer(unfinished, disk)
    plan = writer.prepare_global_plan([SavePlan([])] * order.writer + [plan])[order.writer]
    # To DCP's writer all items are bytes, as tensors are packed already: to the reader there is no difference.
    as_bytes = [replace(item, type=WriteItemType.BYTE_IO) for item in plan.items]
    results = writer.write_data(replace(plan, items=as_bytes), _StagedPlanner(tensors, staged, packer)).value()
    return Part(plan, results, dict(disk.facts))


def _complete(order: Write, parts: list[Part], disk: Disk, directory: Path, unfinished: Path) -> Path:
    """Write DCP's metadata and the manifest, and give the directory its name as the last thing of all."""
    _, metadata = DefaultSavePlanner().create_global_plan([part.plan for part in parts])
    if missing := partial(metadata):
        raise UnfinishedError(
            f"{', '.join(missing)}: not all of it was written; were all processes of the replica writers?"
        )
    _dcp_writer(unfinished, disk).finish(metadata, [part.results for part in parts])
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


def partial(metadata: Metadata) -> list[str]:
    """Return tensors that the checkpoint has in part only: DCP would read them without an error. At most a few."""
    volumes = {
        name: (saved.size.numel(), sum(chunk.sizes.numel() for chunk in saved.chunks))
        for name, saved in metadata.state_dict_metadata.items()
        if isinstance(saved, TensorStorageMetadata)
    }
    return [name for name, (whole, written) in volumes.items() if written < whole][:MOST_NAMED]


def reason_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error) if isinstance(error, UnfinishedError) else f"{type(error).__name__}: {error}"


def _part_name(writer: int) -> str:
    return f"part-{writer}"


def _failure_name(writer: int) -> str:
    return f"failed-{writer}"


def _dcp_writer(path: Path, disk: Disk) -> FileSystemWriter:
    # No copies ahead: in a process that sees a GPU they would make a context on it.
    writer = FileSystemWriter(path, sync_files=False, per_thread_copy_ahead=0)  # the disk syncs
    writer.fs = disk
    writer.transforms = _NoTransforms()  # type: ignore[assignment]
    return writer


class _NoTransforms:
    """DCP's own makes two classes for each item, even where nothing is to be transformed."""

    def transform_save_stream(self, write_item: WriteItem, raw_stream: io.IOBase) -> tuple[Unclosed, list[str]]:
        return Unclosed(raw_stream), []


class _StagedPlanner(DefaultSavePlanner):
    """Gives DCP's writer what the training thread has staged."""

    def __init__(self, tensors: Mapping[str, Tensor], staged: Staged, packer: Packer) -> None:
        super().__init__()
        self._tensors, self._staged, self._packer = tensors, staged, packer

    def resolve_data(self, write_item: WriteItem) -> io.BytesIO:
        name = write_item.index.fqn
        if name in self._tensors:
            return io.BytesIO(self._packer.tensor(self._tensors[name]))
        return io.BytesIO(self._staged.bytes_of(name, self._packer))
