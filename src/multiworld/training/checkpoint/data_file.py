"""One writer's data file. ``torch.distributed.checkpoint`` (DCP) writes it; the next ones are put together from it.

DCP takes 0.1 ms of Python for each tensor and value. But in two checkpoints of one training only the bytes of the
tensors and a few values differ. So what lies around these is kept, and the next file is that, with the new bytes. The
first time, its hash is compared with that of DCP's file. DCP writes again what has another layout or another length.
"""

from __future__ import annotations

import hashlib
import mmap
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.storage import WriteResult

from .dcp import numbered, write_items
from .disk import Disk
from .packing import Packer
from .pattern import Pattern
from .staging import Place, Staged


@dataclass(frozen=True)
class Described:
    """What one writer was to write, and where it wrote it: DCP makes the checkpoint's metadata of it."""

    plan: SavePlan
    results: list[WriteResult]


@dataclass(frozen=True)
class _Last:
    """The last file. ``described``: pickled, and equal for all files of the pattern."""

    writer: int
    layout: bytes
    name: str
    described: bytes
    pattern: Pattern


class DataFile:
    """Of one process that writes checkpoint after checkpoint."""

    def __init__(self) -> None:
        self._packer = Packer()
        self._last: _Last | None = None

    def write(self, staged: Staged, memory: mmap.mmap | None, *, writer: int, disk: Disk, directory: Path) -> bytes:
        """Return the pickled ``Described``. ``memory``: as in ``Place.view``. Raises OSError, and what DCP raises."""
        last = self._last
        if last is not None and (last.writer, last.layout) == (writer, staged.layout):
            packed = self._packed(last.pattern.lengths, staged, memory)
            if last.pattern.takes(packed):
                with disk.create_stream(directory / last.name, "wb") as stream:
                    for chunk in last.pattern.filled(_bytes_of(memory), packed):
                        stream.write(chunk)
                return last.described
        return self._write_by_dcp(staged, memory, writer, disk, directory)

    def _write_by_dcp(
        self, staged: Staged, memory: mmap.mmap | None, writer: int, disk: Disk, directory: Path
    ) -> bytes:
        self._last = None
        unnumbered, places = staged.plan()
        plan = numbered(unnumbered, writer)
        results = write_items(plan, lambda name: self._pack(name, places, staged, memory), directory, disk)
        described = pickle.dumps(Described(plan, results))
        names = {result.storage_data.relative_path for result in results}
        if len(names) == 1:
            (name,) = names
            pattern = self._pattern_of(results, staged, memory)
            packed = self._packed(pattern.lengths, staged, memory)
            if disk.facts[name].sha256 == _digest(pattern.filled(_bytes_of(memory), packed)):
                self._last = _Last(writer, staged.layout, name, described, pattern)
        return described

    def _pattern_of(self, results: Iterable[WriteResult], staged: Staged, memory: mmap.mmap | None) -> Pattern:
        ranges = {}
        for name, place in staged.plan()[1].items():
            if (form := self._packer.form(place.view(memory))) is not None:
                ranges[name] = form.before, _range_of(place), form.after
        where = sorted((result.storage_data.offset, result.index.fqn, result.size_in_bytes) for result in results)
        return Pattern.of([(name, length) for _, name, length in where], ranges)

    def _packed(self, names: Iterable[str], staged: Staged, memory: mmap.mmap | None) -> dict[str, bytes]:
        _, places = staged.plan()
        return {name: self._pack(name, places, staged, memory) for name in names}

    def _pack(self, name: str, places: Mapping[str, Place], staged: Staged, memory: mmap.mmap | None) -> bytes:
        place = places.get(name)
        return staged.bytes_of(name, self._packer) if place is None else self._packer.tensor(place.view(memory))


def _range_of(place: Place) -> slice:
    size = torch.Size(place.shape).numel() * place.dtype.itemsize
    return slice(place.offset, place.offset + size)


def _bytes_of(memory: mmap.mmap | None) -> memoryview:
    return memoryview(b"" if memory is None else memory)


def _digest(chunks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
